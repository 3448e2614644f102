use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use weir_engine::{Engine, Locality};
use weir_model::{
    Action, Change, Key, Name, Namespace, Object, Peer, Pod, PodId, Policy, PolicyId, PolicyKind,
    PolicyRule, PortMatch, PortRange, PortSpec, Program, Protocol, Requirement, Scope, Selector,
    Spec, Subject, Tier, Who,
};

use crate::workload::{self, LOCAL_PODS, NODE, address};

/// The port that policies allow, over TCP and UDP.
pub(crate) const PORT: u16 = 8080;

/// The index of the server among the local pods.
const SERVER_INDEX: usize = 49;

const NAMESPACE: &str = "shop";

/// A cluster in which several policies select one of the hundred pods of a node, the server. Each allows
/// different peers, and only the last one allows the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PolicyLoad {
    /// The number of policies that select the server.
    pub(crate) policies: usize,
    /// The number of peers of each policy.
    pub(crate) members: usize,
}

/// A pod of the node, by number.
pub(crate) fn local(at: usize) -> IpAddr {
    address(1 + at)
}

/// The pod that the policies select.
pub(crate) fn server() -> IpAddr {
    local(SERVER_INDEX)
}

/// The pod that the last policy allows. No policy selects it.
pub(crate) fn client() -> IpAddr {
    address(0x8000)
}

impl PolicyLoad {
    /// The peers of a policy.
    pub(crate) fn peers(self, policy: usize) -> impl Iterator<Item = IpAddr> {
        let last = policy + 1 == self.policies;
        let others = self.members - usize::from(last);
        let first = 0x1_0000 + policy * self.members;
        (0..others).map(move |at| address(first + at)).chain(last.then(client))
    }

    /// The compiled program of the node.
    pub(crate) fn program(self) -> Program {
        compiled(self.changes())
    }

    /// The same with the client as a pod of the node, which no policy selects.
    pub(crate) fn program_with_local_client(self) -> Program {
        let client = client();
        let team = team(self.policies - 1);
        let local = pod(format!("peer-{client}"), team, client, NODE);
        compiled(self.changes().chain([Change::Put(Object::Pod(local))]))
    }

    /// All objects as changes from a source.
    pub(crate) fn changes(self) -> impl Iterator<Item = Change> {
        self.objects().map(Change::Put)
    }

    /// An event: even numbers add a peer of the first policy, odd numbers remove it.
    pub(crate) fn event(self, number: usize) -> Change {
        newcomer(0, number)
    }

    /// An event after which no policy allows the client.
    pub(crate) fn forbid(self) -> Change {
        let last = self.policies - 1;
        let (subject, peers) =
            (selecting(("role", "server".into())), selecting(team(self.policies)));
        Change::Put(Object::Policy(policy(policy_name(last), subject, peers)))
    }

    fn objects(self) -> impl Iterator<Item = Object> {
        let locals = (0..LOCAL_PODS).map(|at| {
            let role = if at == SERVER_INDEX { "server" } else { "other" };
            pod(format!("local-{at}"), ("role", role.into()), local(at), NODE)
        });
        let peers = (0..self.policies).flat_map(move |policy| {
            self.peers(policy).map(move |address| {
                pod(format!("peer-{address}"), team(policy), address, "elsewhere")
            })
        });
        let policies = (0..self.policies).map(move |number| {
            policy(
                policy_name(number),
                selecting(("role", "server".into())),
                selecting(team(number)),
            )
        });
        let others =
            policy("others".to_owned(), selecting(("role", "other".into())), selecting(team(0)));
        [Object::Namespace(namespace()), Object::Policy(others)]
            .into_iter()
            .chain(locals.chain(peers).map(Object::Pod))
            .chain(policies.map(Object::Policy))
    }
}

/// A cluster in which several admin policies of one rule each select the server, each with different
/// peers. All but the last deny their peers. The last one passes the client, and a NetworkPolicy allows
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AdminRuleLoad {
    /// The number of admin rules for the server.
    pub(crate) rules: usize,
    /// The number of peers of each rule.
    pub(crate) members: usize,
}

impl AdminRuleLoad {
    /// The compiled program of the node.
    pub(crate) fn program(self) -> Program {
        compiled(self.changes())
    }

    /// An event: even numbers add a peer of the middle rule, odd numbers remove it. It is the peer of no
    /// NetworkPolicy.
    pub(crate) fn event(self, number: usize) -> Change {
        newcomer(self.rules / 2, number)
    }

    /// The same with a pod of the node that all rules apply to.
    pub(crate) fn event_here(self, number: usize) -> Change {
        let address = local(LOCAL_PODS + number / 2);
        add_or_remove(pod("newcomer".to_owned(), ("role", "server".into()), address, NODE), number)
    }

    fn cluster(self) -> PolicyLoad {
        PolicyLoad { policies: self.rules, members: self.members }
    }

    /// All objects as changes from a source.
    pub(crate) fn changes(self) -> impl Iterator<Item = Change> {
        let rules = self.rules;
        let last = rules - 1;
        // Keep only the last NetworkPolicy, which allows the client.
        let is_other = (0..last).map(policy_name).collect::<BTreeSet<_>>();
        let objects = self.cluster().objects().filter(move |object| match object {
            Object::Policy(policy) => !is_other.contains(&*policy.id.name),
            _ => true,
        });
        let admin = (0..rules).map(move |number| {
            let action = if number == last { Action::Pass } else { Action::Deny };
            Object::Policy(admin_policy(number, action))
        });
        objects.chain(admin).map(Change::Put)
    }
}

/// A cluster in which every pod of the node has its own policies, few enough that each keeps its own set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantLoad {
    /// The number of sets, one for each policy.
    pub(crate) sets: usize,
    /// The number of peers of each policy.
    pub(crate) members: usize,
}

/// The number of policies of each pod of [`TenantLoad`].
const POLICIES_PER_POD: usize = 4;

impl TenantLoad {
    /// All objects as changes from a source.
    pub(crate) fn changes(self) -> impl Iterator<Item = Change> {
        let role = |tenant: usize| ("role", Name::from(format!("tenant-{tenant}")));
        let locals = (0..self.sets / POLICIES_PER_POD)
            .map(move |tenant| pod(format!("local-{tenant}"), role(tenant), local(tenant), NODE));
        let peers = (0..self.sets * self.members).map(move |at| {
            pod(format!("peer-{at}"), team(at / self.members), address(0x1_0000 + at), "elsewhere")
        });
        let policies = (0..self.sets).map(move |number| {
            let name = format!("policy-{number}");
            policy(name, selecting(role(number / POLICIES_PER_POD)), selecting(team(number)))
        });
        [Object::Namespace(namespace())]
            .into_iter()
            .chain(locals.chain(peers).map(Object::Pod))
            .chain(policies.map(Object::Policy))
            .map(Change::Put)
    }
}

/// Even numbers add a pod of a team, odd numbers remove it.
fn newcomer(of: usize, number: usize) -> Change {
    let address = address(0xff_0000 + number / 2);
    add_or_remove(pod("newcomer".to_owned(), team(of), address, "elsewhere"), number)
}

fn add_or_remove(pod: Pod, number: usize) -> Change {
    match number % 2 {
        0 => Change::Put(Object::Pod(pod)),
        _ => Change::Remove(Key::Pod(pod.id)),
    }
}

fn compiled(changes: impl Iterator<Item = Change>) -> Program {
    let mut program = Program::default();
    program.apply(Engine::new(Locality::Node(NODE.into())).apply(changes));
    program
}

fn namespace() -> Namespace {
    let labels = [("kubernetes.io/metadata.name", NAMESPACE)].into_iter().collect();
    Namespace { name: NAMESPACE.into(), labels, location: None }
}

fn team(number: usize) -> (&'static str, Name) {
    ("team", format!("team-{number}").into())
}

fn selecting((key, value): (&str, Name)) -> Selector {
    Selector::from_iter([Requirement::equals(key, value)])
}

fn pod(name: String, label: (&str, Name), address: IpAddr, node: &str) -> Pod {
    let labels = [label].into_iter().collect();
    workload::pod(PodId::new(NAMESPACE, name), labels, address, Some(node.into()))
}

fn policy_name(number: usize) -> String {
    format!("policy-{number}")
}

fn policy(name: String, subject: Selector, peers: Selector) -> Policy {
    let spec = Spec {
        tier: Tier::Namespace,
        subject: Subject { scope: Scope::Own, pods: subject },
        ingress: Some(vec![rule(Action::Allow, Who::Pods { scope: Scope::Own, pods: peers })]),
        egress: None,
    };
    let id = PolicyId {
        kind: PolicyKind::NetworkPolicy,
        namespace: NAMESPACE.into(),
        name: name.into(),
    };
    Policy { id, location: None, spec: Arc::new(spec), staged: false }
}

/// An admin policy for the server with the peers of one team.
fn admin_policy(number: usize, action: Action) -> Policy {
    let everywhere = || Scope::Matching(Selector::everything());
    let peers = Who::Pods { scope: everywhere(), pods: selecting(team(number)) };
    let spec = Spec {
        tier: Tier::Admin { priority: u32::try_from(number).unwrap_or(u32::MAX) },
        subject: Subject { scope: everywhere(), pods: selecting(("role", "server".into())) },
        ingress: Some(vec![rule(action, peers)]),
        egress: None,
    };
    let id = PolicyId {
        kind: PolicyKind::ClusterNetworkPolicy,
        namespace: "".into(),
        name: format!("rule-{number}").into(),
    };
    Policy { id, location: None, spec: Arc::new(spec), staged: false }
}

/// The rule for connections of these peers to the port.
fn rule(action: Action, who: Who) -> PolicyRule {
    let port =
        |protocol| PortSpec { line: 0, ports: PortMatch::Range(PortRange::one(protocol, PORT)) };
    PolicyRule {
        index: 0,
        name: None,
        line: 0,
        action,
        peers: Some(vec![Peer { index: 0, line: 0, who }]),
        ports: Some([Protocol::Tcp, Protocol::Udp].map(port).into()),
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Flow, SectionList, Verdict};

    use super::*;

    #[test]
    fn only_the_last_policy_admits_the_client() {
        for policies in [1, 10] {
            let cluster = PolicyLoad { policies, members: 20 };
            let program = cluster.program();
            assert_eq!(program.endpoints.len(), LOCAL_PODS);
            assert_eq!(cluster.peers(0).count(), 20);
            let verdict = |from, port| {
                program.verdict(&Flow { from, to: server(), protocol: Protocol::Udp, port })
            };
            assert_eq!(verdict(client(), PORT), Verdict::Allow);
            assert_eq!(verdict(client(), PORT + 1), Verdict::Deny);
            let admitting = (0..policies).filter(|at| cluster.peers(*at).any(|it| it == client()));
            assert_eq!(admitting.collect::<Vec<_>>(), [policies - 1]);
        }
    }

    #[test]
    fn admin_rules_pass_the_client_on_and_deny_all_other_peers() {
        for rules in [1, 10] {
            let ruled = AdminRuleLoad { rules, members: 20 };
            let program = ruled.program();
            let verdict = |from, port| {
                program.verdict(&Flow { from, to: server(), protocol: Protocol::Tcp, port })
            };
            assert_eq!(verdict(client(), PORT), Verdict::Allow);
            assert_eq!(verdict(client(), PORT + 1), Verdict::Deny);
            let (_, endpoint) = program.owner(server()).expect("the server has an endpoint");
            assert_eq!(endpoint.rules.ingress.admin.len(), rules);
            assert_eq!(endpoint.rules.ingress.isolation.as_ref().map(SectionList::len), Some(1));
        }
    }
}
