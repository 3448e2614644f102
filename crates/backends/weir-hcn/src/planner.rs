use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_datapath::Shortfall;
use weir_model::{Delta, Direction, Endpoint, Peers, PodId, Program, SetId, SetKey};

use crate::{
    Acl, Inventory, Plan, Rendered, Step,
    render::render,
    tracker::{Tracker, is_as_desired},
};

/// What each pod's endpoint should have.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    /// The addresses of this machine.
    host: BTreeSet<IpAddr>,
    wanted: BTreeMap<PodId, Want>,
}

/// The installed state: the machine's endpoints, and the backend's memory of what it wrote there.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    /// The endpoints and networks.
    pub inventory: Inventory,
    /// The rules that were written, and how HNS reads them back.
    pub tracker: Tracker,
    /// The name of a network whose endpoints have rules, whatever its kind.
    pub network: Option<String>,
}

#[derive(Clone, Debug)]
struct Want {
    addresses: Vec<IpAddr>,
    rendered: Rendered,
    /// The sets that its rules name.
    sets: BTreeSet<SetId>,
    /// Whether HNS rejected these rules: the next plan that touches the pod repeats them.
    is_rejected: bool,
}

impl weir_datapath::Planner for Planner {
    type Installed = Installed;
    type Plan = Plan;

    fn plan(&mut self, program: &Program, delta: &Delta) -> Plan {
        let mut touched: BTreeSet<PodId> = delta.endpoints.keys().cloned().collect();
        if !delta.sets.is_empty() {
            let names = |want: &Want| delta.sets.keys().any(|set| want.sets.contains(set));
            let named = self.wanted.iter().filter(|(_, want)| names(want));
            touched.extend(named.map(|(id, _)| id.clone()));
        }
        let mut steps = Vec::new();
        let mut left: Vec<(PodId, Vec<IpAddr>)> = Vec::new();
        for id in touched {
            let now = program.endpoints.get(&id).map(|endpoint| self.want(program, &id, endpoint));
            let before = match now {
                Some(now) => {
                    let step = now.step(&id);
                    let before = self.wanted.insert(id.clone(), now);
                    if before.as_ref().is_none_or(|was| was.is_rejected || was.step(&id) != step) {
                        steps.push(step);
                    }
                    before
                }
                None => self.wanted.remove(&id),
            };
            // Rules at an address that nobody here has any more are nobody's, but for those of a pod that keeps another: its endpoint is the
            // same, and would be open until it has them back.
            let keeps = |was: &Want| {
                let now = self.wanted.get(&id).map_or(&[][..], |now| &*now.addresses);
                was.addresses.iter().any(|address| now.contains(address))
            };
            let before = before.filter(|was| !keeps(was));
            let lost = before.map(|before| before.addresses).unwrap_or_default();
            let is_free = |address: &IpAddr| program.owner(*address).is_none();
            let lost: Vec<IpAddr> = lost.into_iter().filter(is_free).collect();
            if !lost.is_empty() {
                left.push((id, lost));
            }
        }
        let empty = |(pod, addresses)| Step::Put { pod, addresses, acls: Vec::new() };
        // Who leaves goes first: an endpoint may have one address of each of two pods.
        Plan { steps: left.into_iter().map(empty).chain(steps).collect() }
    }

    fn replan(&mut self, program: &Program, installed: &Installed) -> Plan {
        let Installed { inventory, tracker, network } = installed;
        *self = Planner::new(inventory.addresses.clone());
        for (id, endpoint) in &program.endpoints {
            let want = self.want(program, id, endpoint);
            self.wanted.insert(id.clone(), want);
        }
        self.differences(inventory, tracker, network.as_deref())
    }

    fn rejected(&mut self, pods: &BTreeMap<PodId, String>) {
        for pod in pods.keys() {
            if let Some(want) = self.wanted.get_mut(pod) {
                want.is_rejected = true;
            }
        }
    }

    fn shortfalls(&self) -> Vec<Shortfall> {
        self.wanted.values().flat_map(|want| &want.rendered.shortfalls).cloned().collect()
    }
}

impl Planner {
    /// A planner that knows of no pods yet, on a machine with these addresses.
    pub fn new(host: BTreeSet<IpAddr>) -> Self {
        Planner { host, wanted: BTreeMap::new() }
    }

    /// The addresses of the machine.
    pub fn host(&self) -> &BTreeSet<IpAddr> {
        &self.host
    }

    /// What is not as it should be. A pod that has no endpoint is told as a step, too, for somebody must wait for it.
    pub fn differences(
        &self,
        installed: &Inventory,
        tracker: &Tracker,
        network: Option<&str>,
    ) -> Plan {
        let mut steps = Vec::new();
        let mut owned = BTreeSet::new();
        for (id, want) in self.with_rules() {
            let endpoints = installed.of_pod(&want.addresses, network);
            owned.extend(endpoints.iter().map(|endpoint| endpoint.id.clone()));
            let is_right = |endpoint: &&crate::document::Endpoint| {
                is_as_desired(endpoint, &want.rendered.acls, tracker)
            };
            if want.is_rejected {
                continue;
            }
            if endpoints.is_empty() || !endpoints.iter().all(is_right) {
                steps.push(want.step(id));
            }
        }
        let orphans = installed.endpoints.iter().filter(|endpoint| {
            endpoint.has_ours() && !endpoint.is_remote && !owned.contains(&endpoint.id)
        });
        let clear =
            |endpoint: &crate::document::Endpoint| Step::Clear { endpoint: endpoint.id.clone() };
        Plan { steps: orphans.map(clear).chain(steps).collect() }
    }

    /// The pods that rules are for, with their addresses and their rules.
    pub fn pods(&self) -> impl Iterator<Item = (&PodId, &[IpAddr], &[Acl])> {
        self.with_rules().map(|(id, want)| (id, &*want.addresses, &*want.rendered.acls))
    }

    /// Whether a pod has rules.
    pub fn has_rules(&self, pod: &PodId) -> bool {
        self.wanted.get(pod).is_some_and(|want| !want.rendered.acls.is_empty())
    }

    /// How many rules there are.
    pub fn rules(&self) -> usize {
        self.wanted.values().map(|want| want.rendered.acls.len()).sum()
    }

    fn with_rules(&self) -> impl Iterator<Item = (&PodId, &Want)> {
        self.wanted.iter().filter(|(_, want)| !want.rendered.acls.is_empty())
    }

    fn want(&self, program: &Program, id: &PodId, endpoint: &Endpoint) -> Want {
        // An address that another pod has by now is that pod's.
        let own =
            |address: &&IpAddr| program.owner(**address).is_some_and(|(owner, _)| owner == id);
        let addresses: Vec<IpAddr> = endpoint.addresses.iter().filter(own).copied().collect();
        let chains = Direction::BOTH.map(|direction| endpoint.rules.chain(direction));
        let rules = chains.into_iter().flat_map(|chain| chain.rules());
        let named = rules.filter_map(|rule| match &rule.peers {
            Peers::Set(set) | Peers::PortSet(set) => Some(set.clone()),
            Peers::Any | Peers::Block(_) => None,
        });
        let node = endpoint.node.iter().map(|node| SetId::new(SetKey::Node(node.clone())));
        let sets = named.chain(node).collect();
        Want {
            addresses,
            rendered: render(id, endpoint, program, &self.host),
            sets,
            is_rejected: false,
        }
    }
}

impl Want {
    fn step(&self, pod: &PodId) -> Step {
        let acls: Vec<Acl> = self.rendered.acls.clone();
        Step::Put { pod: pod.clone(), addresses: self.addresses.clone(), acls }
    }
}
