use expect_test::expect;
use weir_datapath::{Mode, Planner as _};
use weir_engine::{Engine, Locality};
use weir_model::{
    Action, Change, Delta, Origin, PodId, PolicyKind, PortRange, Ports, Protocol, Rule, SetId,
    SetKey,
};
use weir_testkit::{HostileAdminShape, HostileShape};

use super::*;
use crate::EbpfPlanner;

fn block(net: &str, except: &[&str]) -> Peers {
    let except = except.iter().map(|net| net.parse().unwrap());
    Peers::Block(Block::new(net.parse().unwrap(), except))
}

fn set(name: &str) -> Peers {
    Peers::Set(SetId::new(SetKey::Node(name.into())))
}

/// The elements for blocks, the depth, and the elements for ports.
#[track_caller]
fn check(rules: &[(Peers, u16, u16)], expected: (usize, usize, usize)) {
    let origin = Origin { direction: Direction::Egress, rule: 0, peer: None, line: 0 };
    let rules = rules.iter().map(|(peers, first, last)| {
        let ports = PortRange { protocol: Protocol::Tcp, first: *first, last: *last };
        let (peers, ports, origin) = (peers.clone(), Ports::from(ports), origin.clone());
        Rule { peers, ports, action: Action::Allow, origin }
    });
    let policy =
        PolicyId { kind: PolicyKind::NetworkPolicy, namespace: "a".into(), name: "b".into() };
    let section = Section { policy, location: None, rules: rules.collect(), idle: Vec::new() };
    let size = TierSize::new(TierRole::Isolation, &[Arc::new(section)]);
    assert_eq!((size.blocks, size.depth, size.ports), expected);
}

#[test]
fn separate_blocks_with_equal_ports_share_a_list() {
    check(&[(block("10.0.0.1/32", &[]), 80, 80), (block("10.0.0.3/32", &[]), 80, 80)], (2, 1, 4));
}

#[test]
fn a_nested_block_has_the_ports_of_the_outer_one() {
    check(&[(block("10.0.0.0/8", &[]), 80, 80), (block("10.1.0.0/16", &[]), 81, 81)], (3, 2, 10));
}

#[test]
fn an_excepted_block_has_only_its_own_ports() {
    let most = block("0.0.0.0/0", &["10.0.0.0/8"]);
    check(&[(most, 80, 80), (block("10.0.0.0/8", &[]), 81, 81)], (3, 2, 6));
}

#[test]
fn a_range_has_the_size_of_its_prefixes() {
    check(&[(block("10.0.0.0/8", &[]), 1000, 2000)], (1, 1, 18));
}

#[test]
fn sets_have_room_for_their_combinations() {
    check(&[(set("a"), 80, 80), (set("b"), 80, 80)], (0, 0, 4));
    let three = [(set("a"), 80, 80), (set("b"), 81, 81), (set("c"), 82, 82), (Peers::Any, 90, 90)];
    check(&three, (0, 0, 64));
}

/// The compiled rules of manifests.
fn program(manifests: &str) -> Program {
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("hostile".into(), manifests.as_bytes());
    let manifests = reader.finish();
    assert_eq!(manifests.findings.first(), None);
    let mut program = Program::default();
    let mut engine = Engine::new(Locality::Node("here".into()));
    program.apply(engine.apply(manifests.objects.into_iter().map(Change::Put)));
    program
}

/// A planner whose maps hold a program.
fn planner(program: &Program) -> EbpfPlanner {
    planner_with(program, SizeLimit::default())
}

fn planner_with(program: &Program, limit: SizeLimit) -> EbpfPlanner {
    let mut planner = EbpfPlanner::new(Mode::Enforce, [0; 16]).with_size_limit(limit);
    planner.plan(program, &Delta::from(program));
    planner
}

/// The elements of maps, and the atoms of signatures.
fn elements(planner: &EbpfPlanner) -> usize {
    let tables = planner.tables();
    let kinds = tables.networks.len() + tables.kinds.len() + planner.classes.signature_atoms;
    kinds + tables.decisions.len() + tables.ports.len()
}

/// Policies as large as etcd accepts, and smaller ones that the limit does not close.
#[test]
fn no_policy_needs_many_elements() {
    let sizes = [1_500_000, 150_000];
    let policies = HostileShape::ALL.into_iter().flat_map(|shape| {
        sizes.map(|bytes| (shape.name(), shape.manifests(Direction::Egress, bytes)))
    });
    let of_admins = HostileAdminShape::ALL.into_iter().flat_map(|shape| {
        sizes.map(|bytes| (shape.name(), shape.manifests(Direction::Egress, bytes)))
    });
    for (shape, manifests) in policies.chain(of_admins) {
        let planner = planner(&program(&manifests));
        let (bytes, elements) = (manifests.len(), elements(&planner));
        assert!(elements <= SizeLimit::default().tier, "{shape}, {bytes} bytes: {elements}");
        let is_closed = planner
            .tables()
            .pods
            .values()
            .all(|pod| pod.egress.admin.tier == 0 && pod.egress.rest.tier == 0);
        assert_eq!(!planner.shortfalls().is_empty(), is_closed, "{shape}, {bytes} bytes");
    }
}

/// A pod and its policy, which allows a port to all addresses but one, and to many networks again.
fn all_and_some(pod: usize, count: usize) -> String {
    let host = |one: usize| {
        let [.., a, b, c] = (2 * (one + pod * count)).to_be_bytes();
        format!("11.{a}.{b}.{c}/32")
    };
    let blocks = (1..count).map(|one| format!(", {{ipBlock: {{cidr: {}}}}}", host(one)));
    let all = format!("{{ipBlock: {{cidr: 0.0.0.0/0, except: [{}]}}}}", host(0));
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{pod}, namespace: evil, labels: {{a: p{pod}}}}}, \
         spec: {{nodeName: here}}, status: {{podIP: 10.9.1.{pod}}}}}\n\
         ---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, \
         metadata: {{name: p{pod}, namespace: evil}}, spec: {{podSelector: {{matchLabels: {{a: p{pod}}}}}, \
         policyTypes: [Egress], egress: [{{to: [{all}{}], ports: [{{port: {}}}]}}]}}}}\n",
        blocks.collect::<String>(),
        1 + pod
    )
}

/// Each network of a policy has a kind with the blocks of all policies.
#[test]
fn the_blocks_of_all_pods_of_a_node_fit() {
    let manifests = |pods: usize, count| {
        let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: evil}}\n".to_owned();
        let policies = (1..=pods).map(|pod| all_and_some(pod, count));
        namespace + &policies.collect::<String>() + &all_and_some(pods + 1, 10)
    };
    let limit = SizeLimit { tier: 1 << 14, node: 1 << 17 };
    let few = planner_with(&program(&manifests(10, 500)), limit);
    assert_eq!(few.shortfalls(), []);
    assert!((100_000..limit.node).contains(&elements(&few)), "{}", elements(&few));

    let many = planner_with(&program(&manifests(30, 500)), limit);
    let closed: BTreeSet<PodId> = many.shortfalls().into_iter().map(|one| one.pod).collect();
    assert_eq!(closed.len(), 30, "the small policy stays open");
    assert!(elements(&many) < 1000);
    let text = many.shortfalls().first().unwrap().to_string();
    expect!["NetworkPolicy evil/p1 for evil/p1: blocks or ports of the rules on this node multiply to more than 131072 elements: egress rules, which are among the largest, deny everything"].assert_eq(&text);
}
