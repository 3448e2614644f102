use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use weir_model::{
    Block, Direction, Name, Pod, Policy, PolicyId, PolicyKind, PolicyRule, Protocol, Scope,
    ServiceKind, Spec, Subject, Tier, Who, World,
};

use crate::{
    Evidence, EvidenceKind, ObservedEnd, ObservedFlow, WorkloadPods,
    dns::DnsServers,
    outside,
    rules::PeerDrafts,
    workload::{Selected, Workloads},
};

/// The input of a recommendation.
pub struct Request<'a> {
    /// The cluster. Its policies are not used.
    pub world: &'a World,
    /// The workloads of the cluster.
    pub workloads: &'a [WorkloadPods],
    /// The flows that must be allowed.
    pub flows: &'a [ObservedFlow],
    /// Whether pods of a namespace get policies.
    pub is_in_scope: &'a dyn Fn(&str) -> bool,
}

/// Policies and remarks about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recommendation {
    /// The policies, by namespace and name.
    pub policies: Vec<RecommendedPolicy>,
    /// What the reader should know before the policies are applied.
    pub notes: Vec<String>,
}

/// A policy for one workload, or for workloads that no stable label distinguishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecommendedPolicy {
    /// The id.
    pub id: PolicyId,
    /// The workloads, such as `shop/deployment/web`.
    pub workloads: Vec<Name>,
    /// The pods that it applies to.
    pub subject: Subject,
    /// The ingress rules.
    pub ingress: Vec<RecommendedRule>,
    /// The egress rules.
    pub egress: Vec<RecommendedRule>,
}

/// A rule and why it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecommendedRule {
    /// The rule.
    pub rule: PolicyRule,
    /// The evidence.
    pub evidence: Vec<Evidence>,
}

impl RecommendedPolicy {
    /// The rules of one direction.
    pub fn rules(&self, direction: Direction) -> &[RecommendedRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// The policy without evidence.
    pub fn policy(&self) -> Policy {
        let rules =
            |all: &[RecommendedRule]| Some(all.iter().map(|one| one.rule.clone()).collect());
        let spec = Spec {
            tier: Tier::Namespace,
            subject: self.subject.clone(),
            ingress: rules(&self.ingress),
            egress: rules(&self.egress),
        };
        Policy { id: self.id.clone(), location: None, spec: Arc::new(spec), staged: false }
    }

    /// Whether flows or manifests show connections of the workloads.
    fn has_evidence(&self) -> bool {
        let is_shown = |one: &Evidence| one.kind != EvidenceKind::Dns;
        let mut rules = self.ingress.iter().chain(&self.egress);
        rules.any(|rule| rule.evidence.iter().any(is_shown))
    }
}

/// Derives policies that allow the flows, and DNS, and nothing else.
pub fn recommend(request: &Request<'_>) -> Recommendation {
    let workloads = Workloads::new(request.world, request.workloads);
    let mut draft = Draft::new(request, &workloads);
    request.flows.iter().for_each(|flow| draft.add_flow(flow));
    draft.add_dns();
    draft.finish()
}

/// The policies while they are collected, by namespace and selector.
struct Draft<'a> {
    world: &'a World,
    workloads: &'a Workloads<'a>,
    node_addresses: BTreeSet<IpAddr>,
    /// The index of each workload's policy; `None` out of scope.
    policy_of: Vec<Option<usize>>,
    policies: Vec<DraftPolicy<'a>>,
}

struct DraftPolicy<'a> {
    members: Vec<&'a Selected<'a>>,
    ingress: PeerDrafts,
    egress: PeerDrafts,
}

impl<'a> Draft<'a> {
    fn new(request: &Request<'a>, workloads: &'a Workloads<'a>) -> Self {
        let mut by_selector = BTreeMap::new();
        let mut policies: Vec<DraftPolicy<'a>> = Vec::new();
        let mut policy_of = Vec::new();
        for selected in &workloads.all {
            let namespace = &selected.workload.namespace;
            if !(request.is_in_scope)(namespace) {
                policy_of.push(None);
                continue;
            }
            let at = *by_selector.entry((namespace, &selected.selector)).or_insert(policies.len());
            if at == policies.len() {
                let (ingress, egress) = (PeerDrafts::default(), PeerDrafts::default());
                policies.push(DraftPolicy { members: Vec::new(), ingress, egress });
            }
            policies[at].members.push(selected);
            policy_of.push(Some(at));
        }
        let nodes = request.world.nodes.values().flat_map(|node| &node.addresses);
        let on_nodes = request.world.pods.values().flat_map(Pod::node_addresses);
        let node_addresses = nodes.chain(on_nodes).copied().collect();
        Draft { world: request.world, workloads, node_addresses, policy_of, policies }
    }

    fn add_flow(&mut self, flow: &ObservedFlow) {
        for direction in Direction::BOTH {
            let (own, peer) = match direction {
                Direction::Ingress => (&flow.to, &flow.from),
                Direction::Egress => (&flow.from, &flow.to),
            };
            let Some(here) = own.pod().and_then(|id| self.world.pods.get(id)) else { continue };
            let Some(policy) =
                self.workloads.of(&here.id).and_then(|workload| self.policy_of[workload])
            else {
                continue;
            };
            if direction == Direction::Ingress && self.is_own_node(here, peer) {
                continue;
            }
            self.add_peer(policy, direction, here, peer, flow);
        }
    }

    fn add_peer(
        &mut self,
        policy: usize,
        direction: Direction,
        here: &Pod,
        peer: &ObservedEnd,
        flow: &ObservedFlow,
    ) {
        let port = (flow.protocol, flow.port);
        let own = &here.id.namespace;
        let address = match peer {
            ObservedEnd::Address(address) => *address,
            ObservedEnd::Pod(id) => match self.workloads.of(id).map(|at| &self.workloads.all[at]) {
                Some(peer) => {
                    let who = Who::Pods { scope: peer.scope(own), pods: peer.selector.clone() };
                    return self.peers(policy, direction).add(who, port, flow.evidence.clone());
                }
                // A host network pod is at an address of its node.
                None => match self.world.pods.get(id).and_then(|pod| pod.addresses.first()) {
                    Some(address) => *address,
                    None => return,
                },
            },
        };
        if self.node_addresses.contains(&address) {
            let is_same = |other: &&IpAddr| other.is_ipv4() == address.is_ipv4();
            let nodes = self.node_addresses.iter().filter(is_same).copied().collect();
            for net in outside::networks(&nodes, &|net| self.has_pods(net)) {
                let who = Who::Block(Block::new(net, []));
                self.peers(policy, direction).add(who, port, flow.evidence.clone());
            }
            return;
        }
        let is_published = direction == Direction::Ingress && self.is_published(here, port);
        let evidence = flow.evidence.clone();
        self.peers(policy, direction).add_outside(address, port, is_published, evidence);
    }

    fn peers(&mut self, policy: usize, direction: Direction) -> &mut PeerDrafts {
        let policy = &mut self.policies[policy];
        match direction {
            Direction::Ingress => &mut policy.ingress,
            Direction::Egress => &mut policy.egress,
        }
    }

    /// Whether the peer is at an address of the pod's own node, from which every connection is
    /// allowed.
    fn is_own_node(&self, pod: &Pod, peer: &ObservedEnd) -> bool {
        let Some(node) = &pod.node else { return false };
        let is_declared = |address: &IpAddr| {
            self.world.nodes.get(node).is_some_and(|node| node.addresses.contains(address))
        };
        match peer {
            ObservedEnd::Address(address) => is_declared(address),
            ObservedEnd::Pod(id) => self
                .world
                .pods
                .get(id)
                .is_some_and(|peer| peer.host_network && peer.node.as_ref() == Some(node)),
        }
    }

    /// Whether a Service publishes the port of the pod to clients outside the cluster.
    fn is_published(&self, pod: &Pod, (protocol, port): (Protocol, u16)) -> bool {
        self.world.services.values().any(|service| {
            matches!(service.kind, ServiceKind::LoadBalancer | ServiceKind::NodePort)
                && service.selects(pod)
                && service
                    .ports
                    .iter()
                    .any(|one| one.protocol == protocol && one.number_at(pod) == Some(port))
        })
    }

    fn has_pods(&self, net: &IpNet) -> bool {
        let addresses = self.world.pods.values().flat_map(Pod::own_addresses);
        addresses.into_iter().any(|address| net.contains(address))
    }

    /// Allows every workload except the DNS servers to query them.
    fn add_dns(&mut self) {
        let servers = DnsServers::find(self.world);
        let evidence = Evidence {
            kind: EvidenceKind::Dns,
            what: "pods query the DNS servers of the cluster".into(),
            connections: 0,
            last_seen: None,
            location: None,
        };
        for policy in &mut self.policies {
            let Some(first) = policy.members.first() else { continue };
            if first.pods.iter().any(|pod| servers.contains(&pod.id)) {
                continue;
            }
            for (who, port) in servers.peers(self.workloads, &first.workload.namespace) {
                policy.egress.add_dns(who, port, evidence.clone());
            }
        }
    }

    fn finish(mut self) -> Recommendation {
        let mut recommendation = Recommendation::default();
        let mut names: BTreeSet<(Name, Name)> = BTreeSet::new();
        for draft in std::mem::take(&mut self.policies) {
            let DraftPolicy { members, ingress, egress } = draft;
            let Some(first) = members.first() else { continue };
            let namespace = &first.workload.namespace;
            let name = free_name(&mut names, namespace, &first.workload.policy_name);
            let is_pod_network = |net: &IpNet| self.has_pods(net);
            let policy = RecommendedPolicy {
                id: PolicyId {
                    kind: PolicyKind::NetworkPolicy,
                    namespace: namespace.clone(),
                    name,
                },
                workloads: members.iter().map(|one| one.workload.name.clone()).collect(),
                subject: Subject { scope: Scope::Own, pods: first.selector.clone() },
                ingress: ingress.into_rules(&is_pod_network),
                egress: egress.into_rules(&is_pod_network),
            };
            recommendation.notes.extend(notes(&policy, &members));
            recommendation.policies.push(policy);
        }
        recommendation.policies.sort_by(|one, other| one.id.cmp(&other.id));
        recommendation
    }
}

fn notes(policy: &RecommendedPolicy, members: &[&Selected<'_>]) -> Vec<String> {
    let mut notes = Vec::new();
    let own: BTreeSet<_> =
        members.iter().flat_map(|one| &one.pods).map(|pod| pod.id.clone()).collect();
    let first = &policy.workloads[0];
    let companion = members.iter().flat_map(|one| &one.companions).find(|id| !own.contains(**id));
    if let Some(other) = companion {
        notes.push(format!(
            "the selector of {} also matches {other}: give {first} a label of its own",
            policy.id
        ));
    }
    if let [_, second, ..] = &policy.workloads[..] {
        notes.push(format!(
            "no stable label distinguishes {first} from {second}, so {} applies to both",
            policy.id
        ));
    }
    if !policy.has_evidence() {
        notes.push(format!("nothing shows a connection of {first}: {} allows only DNS", policy.id));
    }
    notes
}

/// The name of a policy: that of the workload, with a number if another policy has it.
fn free_name(names: &mut BTreeSet<(Name, Name)>, namespace: &Name, wanted: &Name) -> Name {
    let numbered = (2_u32..).map(|n| Name::from(format!("{wanted}-{n}")));
    let mut candidates = std::iter::once(wanted.clone()).chain(numbered);
    let name = candidates.find(|name| names.insert((namespace.clone(), name.clone())));
    name.unwrap_or_else(|| wanted.clone())
}
