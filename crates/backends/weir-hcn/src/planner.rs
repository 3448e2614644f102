use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_datapath::Shortfall;
use weir_model::{Delta, Direction, Endpoint, Name, Peers, PodId, Program, SetId, SetKey};

use crate::{
    Acl, HcnPlan, HnsEndpoint, Inventory, Rendered, Step,
    limits::AclLimits,
    render::RenderedChains,
    tracker::{Tracker, has_desired_acls},
};

/// Plans the ACLs of the endpoints of all pods.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    /// The addresses of this machine.
    host: BTreeSet<IpAddr>,
    desired: BTreeMap<PodId, DesiredPod>,
    /// The lists of addresses and ports in ACLs. Equal lists are stored once, however many pods
    /// have them.
    texts: BTreeSet<Name>,
}

/// The installed state: the endpoints of the machine, and the record of the ACLs written to them.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    /// The endpoints and networks.
    pub inventory: Inventory,
    /// The ACLs that were written, and the form in which HNS returned them.
    pub tracker: Tracker,
    /// The name of a network whose endpoints get ACLs, even if its kind is not filtered by default.
    pub network: Option<String>,
}

/// A pod and the ACLs that its endpoint should have.
#[derive(Clone, Debug)]
struct DesiredPod {
    addresses: Vec<IpAddr>,
    rendered: Rendered,
    /// The sets that the rules refer to.
    sets: BTreeSet<SetId>,
    /// Whether HNS rejected these ACLs. The next plan that touches the pod repeats them.
    is_rejected: bool,
}

impl weir_datapath::Planner for Planner {
    type Installed = Installed;
    type Plan = HcnPlan;

    fn has_rules(installed: &Installed) -> bool {
        !installed.tracker.is_empty()
    }

    fn plan(&mut self, program: &Program, delta: &Delta) -> HcnPlan {
        let mut touched: BTreeSet<PodId> = delta.endpoints.keys().cloned().collect();
        if !delta.sets.is_empty() {
            let names = |pod: &DesiredPod| delta.sets.keys().any(|set| pod.sets.contains(set));
            let named = self.desired.iter().filter(|(_, pod)| names(pod));
            touched.extend(named.map(|(id, _)| id.clone()));
        }
        let mut chains = RenderedChains::new(program, AclLimits::default());
        let mut steps = Vec::new();
        let mut stale: Vec<(PodId, Vec<IpAddr>)> = Vec::new();
        for id in touched {
            let endpoint = program.endpoints.get(&id);
            let now = endpoint.map(|endpoint| self.desired_pod(&mut chains, &id, endpoint));
            let before = match now {
                Some(now) => {
                    let step = now.step(&id);
                    let before = self.desired.insert(id.clone(), now);
                    if before.as_ref().is_none_or(|was| was.is_rejected || was.step(&id) != step) {
                        steps.push(step);
                    }
                    before
                }
                None => self.desired.remove(&id),
            };
            // The ACLs of an address that no local pod has are stale. But a pod that kept another
            // address still has the same endpoint: clearing that would remove its protection.
            let keeps = |was: &DesiredPod| {
                let now = self.desired.get(&id).map_or(&[][..], |now| &*now.addresses);
                was.addresses.iter().any(|address| now.contains(address))
            };
            let before = before.filter(|was| !keeps(was));
            let lost = before.map(|before| before.addresses).unwrap_or_default();
            let is_free = |address: &IpAddr| program.owner(*address).is_none();
            let lost: Vec<IpAddr> = lost.into_iter().filter(is_free).collect();
            if !lost.is_empty() {
                stale.push((id, lost));
            }
        }
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        let clear = |(pod, addresses)| Step::Put { pod, addresses, acls: Vec::new() };
        // Clear first, because one endpoint can have addresses of an old and of a new pod.
        HcnPlan { steps: stale.into_iter().map(clear).chain(steps).collect() }
    }

    fn replan(&mut self, program: &Program, installed: &Installed) -> HcnPlan {
        let Installed { inventory, tracker, network } = installed;
        *self = Planner::new(inventory.addresses.clone());
        let mut chains = RenderedChains::new(program, AclLimits::default());
        for (id, endpoint) in &program.endpoints {
            let pod = self.desired_pod(&mut chains, id, endpoint);
            self.desired.insert(id.clone(), pod);
        }
        self.differences(inventory, tracker, network.as_deref())
    }

    fn rejected(&mut self, pods: &BTreeMap<PodId, String>) {
        for pod in pods.keys() {
            if let Some(pod) = self.desired.get_mut(pod) {
                pod.is_rejected = true;
            }
        }
    }

    fn shortfalls(&self) -> Vec<Shortfall> {
        self.desired.values().flat_map(|pod| &pod.rendered.shortfalls).cloned().collect()
    }
}

impl Planner {
    /// A planner without pods, on a machine with these addresses.
    pub fn new(host: BTreeSet<IpAddr>) -> Self {
        Planner { host, ..Planner::default() }
    }

    /// The addresses of the machine.
    pub fn host(&self) -> &BTreeSet<IpAddr> {
        &self.host
    }

    /// The steps that make the endpoints match the desired state. A pod without an endpoint also
    /// gets a step, so that the backend waits for it.
    pub fn differences(
        &self,
        installed: &Inventory,
        tracker: &Tracker,
        network: Option<&str>,
    ) -> HcnPlan {
        let mut steps = Vec::new();
        let mut owned = BTreeSet::new();
        for (id, pod) in self.with_rules() {
            let endpoints = installed.of_pod(&pod.addresses, network);
            owned.extend(endpoints.iter().map(|endpoint| endpoint.id.clone()));
            let is_up_to_date =
                |endpoint: &&HnsEndpoint| has_desired_acls(endpoint, &pod.rendered.acls, tracker);
            if pod.is_rejected {
                continue;
            }
            if endpoints.is_empty() || !endpoints.iter().all(is_up_to_date) {
                steps.push(pod.step(id));
            }
        }
        let orphans = installed.endpoints.iter().filter(|endpoint| {
            endpoint.has_ours() && !endpoint.is_remote && !owned.contains(&endpoint.id)
        });
        let clear = |endpoint: &HnsEndpoint| Step::Clear { endpoint: endpoint.id.clone() };
        HcnPlan { steps: orphans.map(clear).chain(steps).collect() }
    }

    /// The pods with ACLs, with their addresses.
    pub fn pods(&self) -> impl Iterator<Item = (&PodId, &[IpAddr], &[Acl])> {
        self.with_rules().map(|(id, pod)| (id, &*pod.addresses, &*pod.rendered.acls))
    }

    /// Whether a pod has ACLs.
    pub fn has_rules(&self, pod: &PodId) -> bool {
        self.desired.get(pod).is_some_and(|pod| !pod.rendered.acls.is_empty())
    }

    fn with_rules(&self) -> impl Iterator<Item = (&PodId, &DesiredPod)> {
        self.desired.iter().filter(|(_, pod)| !pod.rendered.acls.is_empty())
    }

    fn desired_pod(
        &mut self,
        chains: &mut RenderedChains<'_>,
        id: &PodId,
        endpoint: &Endpoint,
    ) -> DesiredPod {
        // Ignore an address that another pod owns now.
        let own = |address: &&IpAddr| {
            chains.program.owner(**address).is_some_and(|(owner, _)| owner == id)
        };
        let addresses: Vec<IpAddr> = endpoint.addresses.iter().filter(own).copied().collect();
        let both = Direction::BOTH.map(|direction| endpoint.rules.chain(direction));
        let rules = both.into_iter().flat_map(|chain| chain.rules());
        let named = rules.filter_map(|rule| match &rule.peers {
            Peers::Set(set) | Peers::PortSet(set) => Some(set.clone()),
            Peers::Any | Peers::Block(_) => None,
        });
        let node = endpoint.node.iter().map(|node| SetId::new(SetKey::Node(node.clone())));
        let sets = named.chain(node).collect();
        let mut rendered = chains.render(id, endpoint, &self.host);
        for acl in &mut rendered.acls {
            for list in [&mut acl.remote_addresses, &mut acl.local_ports, &mut acl.remote_ports] {
                match self.texts.get(list) {
                    Some(known) => *list = known.clone(),
                    None => _ = self.texts.insert(list.clone()),
                }
            }
        }
        DesiredPod { addresses, rendered, sets, is_rejected: false }
    }
}

impl DesiredPod {
    fn step(&self, pod: &PodId) -> Step {
        let acls: Vec<Acl> = self.rendered.acls.clone();
        Step::Put { pod: pod.clone(), addresses: self.addresses.clone(), acls }
    }
}
