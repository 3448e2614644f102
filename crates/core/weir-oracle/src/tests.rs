use std::{net::IpAddr, sync::Arc};

use weir_model::*;

use crate::verdict;

#[test]
fn without_policies_everything_is_allowed() {
    check(world([]), "10.0.0.1 -> 10.0.0.2", Verdict::Allow);
    check(world([]), "203.0.113.1 -> 10.0.0.2", Verdict::Allow);
}

#[test]
fn a_policy_without_rules_isolates_the_pods_it_selects() {
    let world = world([policy("lock", Tier::Namespace, Some(vec![]), None)]);
    check(world.clone(), "10.0.0.1 -> 10.0.0.2", Verdict::Deny);
    check(world.clone(), "203.0.113.1 -> 10.0.0.2", Verdict::Deny);
    check(world.clone(), "10.0.0.2 -> 10.0.0.2", Verdict::Allow);
    check(world, "10.0.0.2 -> 203.0.113.1", Verdict::Allow);
}

#[test]
fn a_node_reaches_its_pods_and_policies_apply_to_the_other_direction() {
    let world = world([policy("lock", Tier::Namespace, Some(vec![]), Some(vec![]))]);
    check(world.clone(), "192.168.0.1 -> 10.0.0.2", Verdict::Allow);
    check(world.clone(), "10.0.0.2 -> 192.168.0.1", Verdict::Deny);
    check(world.clone(), "10.0.0.2 -> 192.168.0.2", Verdict::Deny);
    // A host network pod shares its address with the node.
    check(world, "192.168.0.11 -> 10.0.0.2", Verdict::Allow);
}

#[test]
fn a_pod_that_is_being_deleted_gives_its_address_to_another() {
    let mut world = world([policy("lock", Tier::Namespace, Some(vec![]), None)]);
    let old = PodId::new("shop", "db");
    world.pods.get_mut(&old).unwrap().claim = Claim::Terminating;
    check(world.clone(), "10.0.0.1 -> 10.0.0.2", Verdict::Deny);
    let new = pod("other", "new", "10.0.0.2");
    world.pods.insert(new.id.clone(), new.clone());
    check(world.clone(), "10.0.0.1 -> 10.0.0.2", Verdict::Allow);
    world.pods.insert(new.id.clone(), Pod { finished: true, ..new });
    check(world, "10.0.0.1 -> 10.0.0.2", Verdict::Deny);
}

#[test]
fn an_address_that_two_pods_hold_is_closed() {
    let mut world = world([]);
    let rival = pod("other", "rival", "10.0.0.2");
    world.pods.insert(rival.id.clone(), rival.clone());
    check(world.clone(), "10.0.0.1 -> 10.0.0.2", Verdict::Deny);
    check(world.clone(), "10.0.0.2 -> 10.0.0.1", Verdict::Deny);
    check(world.clone(), "192.168.0.1 -> 10.0.0.2", Verdict::Allow);
    // Two nodes cannot both have it.
    world.pods.insert(rival.id.clone(), Pod { node: Some("n2".into()), ..rival });
    check(world, "192.168.0.1 -> 10.0.0.2", Verdict::Deny);
}

#[test]
fn an_empty_namespace_selector_does_not_match_a_namespace_that_does_not_exist() {
    let everyone =
        Who::Pods { scope: Scope::Matching(Selector::everything()), pods: Selector::everything() };
    let rule = PolicyRule { peers: Some(vec![peer(everyone)]), ..rule(Action::Allow) };
    let mut world = world([policy("open", Tier::Namespace, Some(vec![rule]), None)]);
    check(world.clone(), "10.0.0.1 -> 10.0.0.2", Verdict::Allow);
    check(world.clone(), "203.0.113.1 -> 10.0.0.2", Verdict::Deny);
    world.namespaces.clear();
    check(world, "10.0.0.1 -> 10.0.0.2", Verdict::Deny);
}

#[test]
fn not_in_holds_if_the_label_does_not_exist() {
    let not_in = Requirement::NotIn("app".into(), ["web".into()].into());
    let peers = Who::Pods { scope: Scope::Own, pods: [not_in].into_iter().collect() };
    let rule = PolicyRule { peers: Some(vec![peer(peers)]), ..rule(Action::Allow) };
    let world = world([policy("most", Tier::Namespace, Some(vec![rule]), None)]);
    check(world.clone(), "10.0.0.3 -> 10.0.0.2", Verdict::Allow);
    check(world, "10.0.0.1 -> 10.0.0.2", Verdict::Deny);
}

#[test]
fn a_named_port_never_matches_an_address_without_a_pod() {
    let named = PortMatch::Named { name: "http".into(), protocol: Some(Protocol::Tcp) };
    let rule =
        PolicyRule { ports: Some(vec![PortSpec { line: 0, ports: named }]), ..rule(Action::Allow) };
    let world = world([policy("http", Tier::Namespace, None, Some(vec![rule]))]);
    check(world.clone(), "10.0.0.2 -> 10.0.0.1", Verdict::Allow);
    check(world.clone(), "10.0.0.2 -> 10.0.0.3", Verdict::Deny);
    check(world, "10.0.0.2 -> 203.0.113.1", Verdict::Deny);
}

#[test]
fn pass_skips_the_admin_tier_and_the_lower_priority_comes_first() {
    let tier = |name: &str, priority, action| {
        policy(name, Tier::Admin { priority }, Some(vec![rule(action)]), None)
    };
    check(
        world([tier("a", 2, Action::Allow), tier("b", 1, Action::Deny)]),
        "10.0.0.1 -> 10.0.0.2",
        Verdict::Deny,
    );
    check(
        world([
            tier("a", 2, Action::Deny),
            tier("b", 1, Action::Pass),
            policy("open", Tier::Namespace, Some(vec![rule(Action::Allow)]), None),
        ]),
        "10.0.0.1 -> 10.0.0.2",
        Verdict::Allow,
    );
}

#[test]
fn baseline_applies_unless_the_pod_is_isolated_in_that_direction() {
    let base = policy("base", Tier::Baseline { priority: 1 }, Some(vec![rule(Action::Deny)]), None);
    let egress = policy("out", Tier::Namespace, None, Some(vec![rule(Action::Allow)]));
    let ingress = policy("in", Tier::Namespace, Some(vec![rule(Action::Allow)]), None);
    check(world([base.clone(), egress]), "10.0.0.1 -> 10.0.0.2", Verdict::Deny);
    check(world([base, ingress]), "10.0.0.1 -> 10.0.0.2", Verdict::Allow);
}

#[test]
fn a_star_stands_for_at_least_one_whole_label() {
    let pattern = Who::Domain(DomainPattern::Under("example.com".into()));
    let rules = vec![
        PolicyRule { peers: Some(vec![peer(pattern)]), ..rule(Action::Allow) },
        rule(Action::Deny),
    ];
    let mut world = world([policy("names", Tier::Admin { priority: 1 }, None, Some(rules))]);
    for (name, address) in [
        ("example.com", "203.0.113.1"),
        ("a.b.example.com", "203.0.113.2"),
        ("badexample.com", "203.0.113.3"),
    ] {
        world.domains.insert(name.into(), vec![ip(address)]);
    }
    check(world.clone(), "10.0.0.2 -> 203.0.113.1", Verdict::Deny);
    check(world.clone(), "10.0.0.2 -> 203.0.113.2", Verdict::Allow);
    check(world, "10.0.0.2 -> 203.0.113.3", Verdict::Deny);
}

/// Checks TCP port 80 between two addresses.
#[track_caller]
fn check(world: World, ends: &str, expected: Verdict) {
    let (from, to) = ends.split_once(" -> ").unwrap();
    let flow = Flow { from: ip(from), to: ip(to), protocol: Protocol::Tcp, port: 80 };
    assert_eq!(verdict(&world, &flow), expected, "{flow}");
}

/// Pods web (10.0.0.1), db (.2) and plain (.3) in the namespace shop, and a host network pod
/// (192.168.0.11) on node n1 (192.168.0.1). The policies select db.
fn world(policies: impl IntoIterator<Item = Policy>) -> World {
    let labels = [("kubernetes.io/metadata.name", "shop")].into_iter().collect();
    let http = NamedPort { name: "http".into(), protocol: Protocol::Tcp, port: 80 };
    let web = Pod { labels: app("web"), ports: vec![http], ..pod("shop", "web", "10.0.0.1") };
    let db = Pod { labels: app("db"), ..pod("shop", "db", "10.0.0.2") };
    let plain = pod("shop", "plain", "10.0.0.3");
    let host = Pod { host_network: true, ..pod("shop", "host", "192.168.0.11") };
    let node = Node {
        name: "n1".into(),
        labels: Labels::default(),
        addresses: vec![ip("192.168.0.1")],
        location: None,
    };
    [web, db, plain, host]
        .map(Object::Pod)
        .into_iter()
        .chain([Object::Namespace(Namespace { name: "shop".into(), labels, location: None })])
        .chain([Object::Node(node)])
        .chain(policies.into_iter().map(Object::Policy))
        .collect()
}

fn policy(
    name: &str,
    tier: Tier,
    ingress: Option<Vec<PolicyRule>>,
    egress: Option<Vec<PolicyRule>>,
) -> Policy {
    let (kind, namespace, scope) = match tier {
        Tier::Namespace => (PolicyKind::NetworkPolicy, "shop", Scope::Own),
        _ => (PolicyKind::ClusterNetworkPolicy, "", Scope::Matching(Selector::everything())),
    };
    let pods = [Requirement::equals("app", "db")].into_iter().collect();
    Policy {
        id: PolicyId { kind, namespace: namespace.into(), name: name.into() },
        location: None,
        spec: Arc::new(Spec { tier, subject: Subject { scope, pods }, ingress, egress }),
        staged: false,
    }
}

fn rule(action: Action) -> PolicyRule {
    PolicyRule { index: 0, name: None, line: 0, action, peers: None, ports: None }
}

fn peer(who: Who) -> Peer {
    Peer { index: 0, line: 0, who }
}

fn pod(namespace: &str, name: &str, address: &str) -> Pod {
    Pod {
        id: PodId::new(namespace, name),
        labels: Labels::default(),
        addresses: vec![ip(address)],
        node: Some("n1".into()),
        ports: Vec::new(),
        host_network: false,
        finished: false,
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    }
}

fn app(value: &str) -> Labels {
    [("app", value)].into_iter().collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
