//! Small worlds. The examples of `docs/reference/lint.md` are tested with the command line.

use std::{collections::BTreeSet, sync::Arc};

use weir_model::{
    Action, Block, Claim, Labels, Location, NamedPort, Namespace, Object, Peer, Pod, PodId, Policy,
    PolicyId, PolicyKind, PolicyRule, PortMatch, PortRange, PortSpec, Protocol, Requirement, Scope,
    Selector, Severity, Spec, Subject, Tier, Who, World,
};

use crate::{CODES, lint};

fn labels(text: &str) -> Labels {
    text.split_terminator(',').filter_map(|pair| pair.split_once('=')).collect()
}

fn selector(text: &str) -> Selector {
    labels(text).iter().map(|(k, v)| Requirement::equals(k.clone(), v.clone())).collect()
}

fn namespace(name: &str) -> Object {
    let labels = [("kubernetes.io/metadata.name", name)].into_iter().collect();
    Object::Namespace(Namespace { name: name.into(), labels, location: None })
}

fn pod(id: &str, address: &str, text: &str) -> Object {
    let (namespace, name) = id.split_once('/').unwrap();
    Object::Pod(Pod {
        id: PodId::new(namespace, name),
        labels: labels(text),
        addresses: vec![address.parse().unwrap()],
        node: None,
        ports: vec![NamedPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        host_network: false,
        finished: false,
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    })
}

fn rule(peers: Option<Vec<Who>>, ports: Option<Vec<PortMatch>>) -> PolicyRule {
    let peer = |(index, who)| Peer { index, line: 10 + index, who };
    PolicyRule {
        index: 0,
        name: None,
        line: 5,
        action: Action::Allow,
        peers: peers.map(|peers| (0..).zip(peers).map(peer).collect()),
        ports: ports
            .map(|ports| ports.into_iter().map(|ports| PortSpec { line: 20, ports }).collect()),
    }
}

fn policy(
    id: &str,
    pods: &str,
    ingress: Option<Vec<PolicyRule>>,
    egress: Option<Vec<PolicyRule>>,
) -> Object {
    let (namespace, name) = id.split_once('/').unwrap();
    let number = |rules: Vec<PolicyRule>| {
        (0..).zip(rules).map(|(index, rule)| PolicyRule { index, ..rule }).collect()
    };
    Object::Policy(Policy {
        id: PolicyId {
            kind: PolicyKind::NetworkPolicy,
            namespace: namespace.into(),
            name: name.into(),
        },
        location: Some(Location { file: "policies.yaml".into(), line: 1 }),
        spec: Arc::new(Spec {
            tier: Tier::Namespace,
            subject: Subject { scope: Scope::Own, pods: selector(pods) },
            ingress: ingress.map(number),
            egress: egress.map(number),
        }),
        staged: false,
    })
}

fn own(text: &str) -> Who {
    Who::Pods { scope: Scope::Own, pods: selector(text) }
}

fn tcp(port: u16) -> PortMatch {
    PortMatch::Range(PortRange::one(Protocol::Tcp, port))
}

/// The codes and locations of the findings in a shop with a web and a db pod.
#[track_caller]
fn check(objects: impl IntoIterator<Item = Object>, expected: &[&str]) {
    let shop = [
        namespace("shop"),
        namespace("kube-system"),
        pod("shop/web", "10.0.0.1", "app=web"),
        pod("shop/db", "10.0.0.2", "app=db"),
    ];
    let world: World = shop.into_iter().chain(objects).collect();
    let findings = lint(&world);
    let line = |f: &weir_model::Finding| f.location.as_ref().map_or(0, |p| p.line);
    let found: Vec<String> =
        findings.iter().map(|f| format!("{} {} {}", f.code, line(f), f.field)).collect();
    assert_eq!(found, expected, "{findings:#?}");
    assert!(findings.iter().all(|f| CODES.contains(&f.code) && !f.hint.is_empty()));
}

#[test]
fn a_good_policy_has_no_findings() {
    let from_web = rule(Some(vec![own("app=web")]), Some(vec![tcp(8080)]));
    check([policy("shop/db", "app=db", Some(vec![from_web]), None)], &[]);
    check([policy("shop/deny", "", Some(vec![]), Some(vec![]))], &[]);
}

#[test]
fn selecting_nothing_suggests_the_closest_label() {
    check(
        [policy("shop/p", "app=wep", Some(vec![]), None)],
        &["selects-nothing 1 spec.podSelector"],
    );
    let world: World =
        [pod("shop/web", "10.0.0.1", "app=web"), policy("shop/p", "app=wep", Some(vec![]), None)]
            .into_iter()
            .collect();
    assert_eq!(lint(&world)[0].hint, "the pods there have app=web: did you mean that?");
}

#[test]
fn a_world_without_pods_gets_one_note() {
    let world: World = [policy("shop/p", "app=web", Some(vec![]), None)].into_iter().collect();
    let codes: Vec<_> = lint(&world).into_iter().map(|f| (f.code, f.severity)).collect();
    assert_eq!(codes, [("no-pods", Severity::Info)]);
}

#[test]
fn a_peer_that_matches_nothing_is_reported_at_its_own_line() {
    let rules = vec![rule(Some(vec![own("app=web"), own("app=cache")]), None)];
    check(
        [policy("shop/p", "app=db", Some(rules), None)],
        &["peer-matches-nothing 11 spec.ingress[0].from[1]"],
    );
}

#[test]
fn peers_of_a_clusterset_policy_can_be_in_another_cluster() {
    let elsewhere = Selector::from_iter([Requirement::equals("team", "elsewhere")]);
    let team = Who::Pods { scope: Scope::Matching(elsewhere), pods: Selector::everything() };
    let sql = PortMatch::Named { name: "sql".into(), protocol: Some(Protocol::Tcp) };
    let rules = || vec![rule(Some(vec![own("app=cache"), own("app=web"), team.clone()]), None)];
    let to = rule(Some(vec![own("app=web")]), Some(vec![sql]));
    let dns = [Protocol::Udp, Protocol::Tcp]
        .map(|protocol| PortMatch::Range(PortRange::one(protocol, 53)))
        .to_vec();
    let dns = rule(None, Some(dns));
    let Object::Policy(mut over) = policy("shop/p", "app=db", Some(rules()), Some(vec![to, dns]))
    else {
        panic!("a policy")
    };
    over.id.kind = PolicyKind::ClusterSetNetworkPolicy;
    check([Object::Policy(over)], &[]);
}

#[test]
fn two_entries_that_should_be_one_are_reported() {
    let billing = Selector::from_iter([Requirement::equals("kubernetes.io/metadata.name", "bill")]);
    let all = Who::Pods { scope: Scope::Matching(billing), pods: Selector::everything() };
    let rules = vec![rule(Some(vec![all, own("app=biller")]), None)];
    check(
        [
            namespace("bill"),
            pod("bill/b", "10.0.0.9", "app=biller"),
            policy("shop/p", "app=db", Some(rules), None),
        ],
        &["split-peer 11 spec.ingress[0].from[1]"],
    );
}

#[test]
fn port_names_that_no_destination_declares_are_reported() {
    let named = |name: &str, protocol| PortMatch::Named { name: name.into(), protocol };
    let rules = vec![rule(
        None,
        Some(vec![
            named("http", Some(Protocol::Tcp)),
            named("htpp", Some(Protocol::Tcp)),
            named("http", Some(Protocol::Udp)),
        ]),
    )];
    check(
        [policy("shop/p", "app=db", Some(rules), None)],
        &[
            "port-protocol 20 spec.ingress[0].ports[2]",
            "unknown-port-name 20 spec.ingress[0].ports[1]",
        ],
    );
}

#[test]
fn an_unknown_port_name_is_reported_with_the_action_of_the_rule() {
    for (action, does) in
        [(Action::Allow, "allows"), (Action::Deny, "denies"), (Action::Pass, "passes")]
    {
        let named = PortMatch::Named { name: "htpp".into(), protocol: None };
        let rules = vec![PolicyRule { action, ..rule(None, Some(vec![named])) }];
        let objects = [
            namespace("shop"),
            pod("shop/db", "10.0.0.2", "app=db"),
            policy("shop/p", "app=db", Some(rules), None),
        ];
        let messages: Vec<String> =
            lint(&World::from_iter(objects)).into_iter().map(|f| f.message).collect();
        let message = format!("no destination pod has a port named htpp, so this {does} nothing");
        assert_eq!(messages, [message]);
    }
}

#[test]
fn egress_without_dns_is_reported_unless_another_policy_allows_it() {
    let to_db = || vec![rule(Some(vec![own("app=db")]), Some(vec![tcp(8080)]))];
    check([policy("shop/p", "app=web", None, Some(to_db()))], &["no-dns 5 spec.egress"]);
    let dns = [Protocol::Udp, Protocol::Tcp]
        .map(|protocol| PortMatch::Range(PortRange::one(protocol, 53)))
        .to_vec();
    check(
        [
            policy("shop/p", "app=web", None, Some(to_db())),
            policy("shop/dns", "", None, Some(vec![rule(None, Some(dns))])),
        ],
        &[],
    );
}

#[test]
fn a_dns_cache_on_the_node_needs_an_address_in_a_rule() {
    let dns = || {
        let both = [Protocol::Udp, Protocol::Tcp];
        Some(both.map(|protocol| PortMatch::Range(PortRange::one(protocol, 53))).to_vec())
    };
    let cache = || {
        let Object::Pod(pod) = pod("kube-system/cache", "192.168.0.1", "k8s-app=node-local-dns")
        else {
            unreachable!("it is a pod")
        };
        Object::Pod(Pod { host_network: true, ..pod })
    };
    let kube_dns = || Who::Pods {
        scope: Scope::Matching(selector("kubernetes.io/metadata.name=kube-system")),
        pods: Selector::everything(),
    };
    let link_local =
        || Who::Block(Block { net: "169.254.20.10/32".parse().unwrap(), except: Vec::new() });
    let coredns = || pod("kube-system/coredns", "10.0.0.9", "k8s-app=kube-dns");
    let to_pods =
        || policy("shop/p", "app=web", None, Some(vec![rule(Some(vec![kube_dns()]), dns())]));
    check([coredns(), to_pods()], &[]);
    check([coredns(), cache(), to_pods()], &["node-local-dns 5 spec.egress[0]"]);
    let to_cache =
        |ports| policy("shop/c", "", None, Some(vec![rule(Some(vec![link_local()]), ports)]));
    check([coredns(), cache(), to_pods(), to_cache(dns())], &[]);
    // A rule for the cache is a rule for DNS, with and without a port.
    let to_db = || {
        policy(
            "shop/d",
            "app=web",
            None,
            Some(vec![rule(Some(vec![own("app=db")]), Some(vec![tcp(8080)]))]),
        )
    };
    check([cache(), to_db(), to_cache(dns())], &[]);
    check([cache(), to_db(), to_cache(None)], &[]);
}

#[test]
fn pods_that_no_policy_selects_are_reported_once_for_equal_labels() {
    let objects = [
        pod("shop/web-1", "10.0.0.1", "app=web"),
        pod("shop/web-2", "10.0.0.2", "app=web"),
        pod("shop/db", "10.0.0.3", "app=db"),
        policy("shop/db", "app=db", Some(Vec::new()), None),
    ];
    let world: World = objects.into_iter().collect();
    let found = crate::unselected(&world);
    assert_eq!(found.len(), 1, "{found:#?}");
    let message = "no policy selects shop/web-1 and 1 pod with the same labels: every connection is \
                   allowed";
    assert_eq!(found[0].message, message);
    assert!(lint(&world).iter().all(|finding| finding.code != "unselected-pod"));
}

#[test]
fn an_open_rule_makes_its_neighbours_redundant_and_other_policies_moot() {
    let narrow = || rule(Some(vec![own("app=web")]), None);
    check(
        [
            policy("shop/a", "", Some(vec![narrow(), rule(None, None)]), None),
            policy("shop/b", "app=db", Some(vec![narrow()]), None),
        ],
        &[
            "moot-policy 5 spec.ingress",
            "redundant-rule 5 spec.ingress[0]",
            "world-open 5 spec.ingress[1]",
        ],
    );
}

#[test]
fn blocks_that_contain_pods_are_reported() {
    let block = |net: &str, except: &[&str]| {
        Who::Block(Block::new(net.parse().unwrap(), except.iter().map(|e| e.parse().unwrap())))
    };
    let peers = vec![
        block("10.0.0.1/32", &[]),
        block("10.0.0.0/24", &["10.0.0.0/25", "10.0.0.128/25"]),
        block("10.0.0.0/16", &["10.0.0.0/24"]),
    ];
    check(
        [policy("shop/p", "app=db", Some(vec![rule(Some(peers), None)]), None)],
        &[
            "block-covers-pods 10 spec.ingress[0].from[0].ipBlock",
            "never-matches 11 spec.ingress[0].from[1].ipBlock",
        ],
    );
}

#[test]
fn blocks_of_one_family_are_reported_for_pods_that_have_both() {
    let any = Who::Block(Block::new("0.0.0.0/0".parse().unwrap(), []));
    let policy = || {
        let ports = Some(vec![tcp(8080)]);
        policy("shop/p", "app=x", Some(vec![rule(Some(vec![any.clone()]), ports)]), None)
    };
    let with = |addresses: &[&str]| {
        let mut pod = pod("shop/x", addresses[0], "app=x");
        if let Object::Pod(pod) = &mut pod {
            pod.addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        }
        pod
    };
    check([with(&["10.0.0.7"]), policy()], &[]);
    check([with(&["fd00::7"]), policy()], &[]);
    check(
        [with(&["10.0.0.7", "fd00::7"]), policy()],
        &["one-family-block 10 spec.ingress[0].from[0].ipBlock"],
    );
}

#[test]
fn two_pods_with_one_address_are_reported() {
    check([pod("shop/old", "10.0.0.2", "app=old")], &["duplicate-address 0 "]);
}

#[test]
fn the_codes_are_sorted_and_distinct() {
    let sorted: BTreeSet<_> = CODES.iter().collect();
    assert!(CODES.iter().eq(sorted), "{CODES:?}");
}

#[test]
fn a_policy_for_host_network_pods_names_them() {
    let host = |id: &str| {
        let Object::Pod(pod) = pod(id, "192.168.0.1", "app=exporter") else {
            unreachable!("it is a pod")
        };
        Object::Pod(Pod { host_network: true, ..pod })
    };
    let message = |hosts: &[&str]| {
        let policy = policy("shop/p", "app=exporter", Some(Vec::new()), None);
        let objects = hosts.iter().map(|id| host(id)).chain([namespace("shop"), policy]);
        let findings = lint(&objects.collect::<World>());
        findings.iter().map(|finding| finding.message.clone()).collect::<Vec<_>>().join("\n")
    };
    assert!(message(&["shop/a"]).contains("pods (shop/a), which"), "{}", message(&["shop/a"]));
    let two = message(&["shop/a", "shop/b"]);
    assert!(two.contains("pods (shop/a and 1 more), which"), "{two}");
}
