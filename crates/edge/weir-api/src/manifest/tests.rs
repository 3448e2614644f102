use std::{collections::BTreeSet, sync::Arc};

use expect_test::expect;
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::Value as Json;
use weir_model::{Block, DomainPattern, Name, PolicyId, PortSpec, Protocol, Spec, Subject};

use super::*;
use crate::{document, lower::UNRESOLVED_NAME, stricter::without_lines, testing};

#[test]
fn a_policy_is_written_in_the_usual_layout() {
    let text = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db, \"on\": \"yes\"}}
  ingress:
  - {}
  - from: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {namespaceSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b, \"5\"]}]}, podSelector: {matchLabels: {x: z}}}]
    ports: [{port: 80}, {protocol: UDP}, {port: http}, {port: 1, endPort: 9}]
";
    let manifests = testing::read(text);
    let policy = manifests.objects.policies().last().unwrap();
    expect![[r#"
        apiVersion: networking.k8s.io/v1
        kind: NetworkPolicy
        metadata:
          name: a
          namespace: shop
        spec:
          podSelector: {matchLabels: {app: db, "on": "yes"}}
          policyTypes: [Ingress]
          ingress:
          - {}
          - from:
            - podSelector: {}
            - ipBlock:
                cidr: 10.0.0.0/8
                except: [10.1.0.0/16]
            - namespaceSelector: {matchExpressions: [{key: a, operator: NotIn, values: ["5", b]}]}
              podSelector: {matchLabels: {x: z}}
            ports:
            - {protocol: TCP, port: 80}
            - {protocol: UDP}
            - {protocol: TCP, port: http}
            - {protocol: TCP, port: 1, endPort: 9}
    "#]]
    .assert_eq(&manifest(policy));
}

fn word() -> impl Strategy<Value = Name> {
    select(vec!["app", "web", "yes", "n", "5", "0x1", "1.5", "null", "a-b", "x.y", ""])
        .prop_map(Name::from)
}

fn key() -> impl Strategy<Value = Name> {
    select(vec!["app", "on", "y", "5", "kubernetes.io/metadata.name", "1.50"]).prop_map(Name::from)
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let values = || vec(word(), 1..3).prop_map(BTreeSet::from_iter);
    prop_oneof![
        (key(), values()).prop_map(|(key, values)| Requirement::In(key, values)),
        (key(), values()).prop_map(|(key, values)| Requirement::NotIn(key, values)),
        key().prop_map(Requirement::Exists),
        key().prop_map(Requirement::Absent),
    ]
}

fn selectors() -> impl Strategy<Value = Selector> {
    vec(requirement(), 0..3).prop_map(Selector::from_iter)
}

fn blocks(kind: ManifestKind) -> impl Strategy<Value = Block> {
    let all = if kind == ManifestKind::Network {
        vec![
            ("10.0.0.0/8", vec!["10.1.0.0/16", "10.2.3.4/32"]),
            ("fd00::/8", vec!["fd00::/64"]),
            ("0.0.0.0/0", vec![]),
        ]
    } else {
        vec![("10.0.0.0/8", vec![]), ("fd00::/8", vec![]), ("::/0", vec![])]
    };
    select(all).prop_map(|(net, except)| {
        Block::new(net.parse().unwrap(), except.into_iter().map(|net| net.parse().unwrap()))
    })
}

fn protocol() -> impl Strategy<Value = Protocol> {
    select(Protocol::ALL.to_vec())
}

/// One entry of `ports`. Only a NetworkPolicy can match every port of a protocol, and has protocols
/// for names.
fn port(kind: ManifestKind) -> impl Strategy<Value = PortSpec> {
    let is_network = kind == ManifestKind::Network;
    let range = (protocol(), 1..65000_u16, 0..500_u16).prop_map(|(protocol, first, more)| {
        PortMatch::Range(PortRange { protocol, first, last: first + more })
    });
    let whole = protocol().prop_map(|protocol| PortMatch::Range(PortRange::all(protocol)));
    let named =
        (select(vec!["http", "y", "no", "a-1"]), protocol()).prop_map(move |(name, protocol)| {
            PortMatch::Named { name: name.into(), protocol: is_network.then_some(protocol) }
        });
    let ports = if is_network {
        prop_oneof![range, named, whole].boxed()
    } else {
        prop_oneof![range, named].boxed()
    };
    ports.prop_map(|ports| PortSpec { line: 0, ports })
}

fn pods(kind: ManifestKind) -> impl Strategy<Value = Who> {
    let scope = if kind == ManifestKind::Network {
        prop_oneof![Just(Scope::Own), selectors().prop_map(Scope::Matching)].boxed()
    } else {
        selectors().prop_map(Scope::Matching).boxed()
    };
    (scope, selectors()).prop_map(|(scope, pods)| Who::Pods { scope, pods })
}

fn numbered(who: Vec<Vec<Who>>) -> Vec<Peer> {
    let peers = who.into_iter().enumerate().flat_map(|(index, group)| {
        group.into_iter().map(move |who| Peer { index: index as u32, line: 0, who })
    });
    peers.collect()
}

/// Removes equal neighbours.
fn each_once(mut who: Vec<Who>) -> Vec<Who> {
    who.dedup();
    who
}

fn network_rules() -> impl Strategy<Value = Vec<PolicyRule>> {
    let who = prop_oneof![
        pods(ManifestKind::Network),
        blocks(ManifestKind::Network).prop_map(Who::Block)
    ]
    .prop_map(|who| vec![who]);
    let rule = (option::of(vec(who, 1..4)), option::of(vec(port(ManifestKind::Network), 1..4)));
    vec(rule, 0..4).prop_map(|rules| {
        let rules = rules.into_iter().enumerate().map(|(index, (peers, ports))| PolicyRule {
            index: index as u32,
            name: None,
            line: 0,
            action: Action::Allow,
            peers: peers.map(numbered),
            ports,
        });
        rules.collect()
    })
}

fn admin_rules(
    direction: Direction,
    kind: PolicyKind,
) -> impl Strategy<Value = Option<Vec<PolicyRule>>> {
    let domain = select(vec!["example.com", "a.b.c"]).prop_flat_map(|name| {
        select(vec![DomainPattern::Exact(name.into()), DomainPattern::Under(name.into())])
    });
    let in_cluster = pods(ManifestKind::V1alpha1).prop_map(|who| vec![who]);
    let outside = prop_oneof![
        selectors().prop_map(|nodes| vec![Who::Nodes(nodes)]),
        vec(blocks(ManifestKind::V1alpha1).prop_map(Who::Block), 1..3).prop_map(each_once),
    ];
    let names = vec(domain.prop_map(Who::Domain), 1..3).prop_map(each_once);
    let (allow_names, baseline) = (
        kind != PolicyKind::BaselineAdminNetworkPolicy,
        kind == PolicyKind::BaselineAdminNetworkPolicy,
    );
    let group = match direction {
        Direction::Ingress => in_cluster.boxed(),
        Direction::Egress => prop_oneof![in_cluster, outside, names].boxed(),
    };
    let action = select(vec![Action::Allow, Action::Deny, Action::Pass]);
    let rule = (
        action,
        vec(group, 1..4),
        option::of(vec(port(ManifestKind::V1alpha1), 1..3)),
        option::of(select(vec!["yes", "a rule"])),
    );
    vec(rule, 0..4).prop_map(move |rules| {
        let rules = rules.into_iter().filter_map(|(action, who, ports, name)| {
            let may_name = action == Action::Allow && allow_names;
            let fits = |group: &Vec<Who>| may_name || !matches!(group[0], Who::Domain(_));
            let who: Vec<Vec<Who>> = who.into_iter().filter(fits).collect();
            let only_pods = who.iter().flatten().all(|who| matches!(who, Who::Pods { .. }));
            let ports = ports.filter(|ports| {
                only_pods || ports.iter().all(|port| matches!(port.ports, PortMatch::Range(_)))
            });
            let fits = !(who.is_empty() || baseline && action == Action::Pass);
            fits.then(|| PolicyRule {
                index: 0,
                name: name.map(Name::from),
                line: 0,
                action,
                peers: Some(numbered(who)),
                ports,
            })
        });
        let mut rules: Vec<PolicyRule> = rules.collect();
        rules.iter_mut().enumerate().for_each(|(index, rule)| rule.index = index as u32);
        (!rules.is_empty()).then_some(rules)
    })
}

fn admin(kind: PolicyKind) -> impl Strategy<Value = Policy> {
    let tier = (0..=1000_u32, any::<bool>()).prop_map(move |(priority, baseline)| match kind {
        PolicyKind::BaselineAdminNetworkPolicy => Tier::Baseline { priority: 1001 },
        PolicyKind::ClusterNetworkPolicy if baseline => Tier::Baseline { priority },
        _ => Tier::Admin { priority },
    });
    let subject = (selectors(), selectors())
        .prop_map(|(namespaces, pods)| Subject { scope: Scope::Matching(namespaces), pods });
    let rules = (admin_rules(Direction::Ingress, kind), admin_rules(Direction::Egress, kind));
    (tier, subject, rules, any::<bool>()).prop_map(
        move |(tier, subject, (ingress, egress), staged)| Policy {
            id: PolicyId { kind, namespace: "".into(), name: "default".into() },
            location: None,
            spec: Arc::new(Spec { tier, subject, ingress, egress }),
            staged,
        },
    )
}

fn network() -> impl Strategy<Value = Policy> {
    let directions = (option::of(network_rules()), option::of(network_rules()))
        .prop_filter("a policy speaks about something", |(a, b)| a.is_some() || b.is_some());
    (selectors(), directions, any::<bool>()).prop_map(|(pods, (ingress, egress), staged)| Policy {
        id: PolicyId { kind: PolicyKind::NetworkPolicy, namespace: "no".into(), name: "5".into() },
        location: None,
        spec: Arc::new(Spec {
            tier: Tier::Namespace,
            subject: Subject { scope: Scope::Own, pods },
            ingress,
            egress,
        }),
        staged,
    })
}

proptest! {
    #[test]
    fn a_written_policy_reads_back_equal(
        policy in prop_oneof![
            network(),
            admin(PolicyKind::AdminNetworkPolicy),
            admin(PolicyKind::BaselineAdminNetworkPolicy),
            admin(PolicyKind::ClusterNetworkPolicy),
        ],
    ) {
        let text = manifest(&policy);
        let (roots, ..) = document::documents(text.as_bytes());
        let json = manifest_json(&policy);
        prop_assert_eq!(roots.iter().map(Json::from).collect::<Vec<_>>(), [json]);
        let manifests = testing::read(&text);
        // Manifests have no addresses of domain names.
        let wrong: Vec<_> =
            manifests.findings.iter().filter(|found| ![UNRESOLVED_NAME, "staged-policy"].contains(&found.code)).collect();
        prop_assert!(wrong.is_empty(), "{:?} {}", wrong, text);
        let Some(back) = manifests.objects.policies().last() else { panic!("no policy in {text}") };
        prop_assert_eq!((&back.id, back.staged), (&policy.id, policy.staged));
        prop_assert_eq!(without_lines(&back.spec), without_lines(&policy.spec), "{}", text);
    }
}

/// The API reads an empty list as everything, so a rule that matches nothing must not be written.
#[test]
fn a_rule_that_matches_nothing_is_left_out() {
    let rule = |peers, ports| PolicyRule {
        index: 0,
        name: None,
        line: 0,
        action: Action::Allow,
        peers,
        ports,
    };
    let policy = Policy {
        id: PolicyId { kind: PolicyKind::NetworkPolicy, namespace: "a".into(), name: "b".into() },
        location: None,
        spec: Arc::new(Spec {
            tier: Tier::Namespace,
            subject: Subject { scope: Scope::Own, pods: Selector::everything() },
            ingress: Some(vec![rule(Some(Vec::new()), None), rule(None, Some(Vec::new()))]),
            egress: None,
        }),
        staged: false,
    };
    expect![[r#"
        apiVersion: networking.k8s.io/v1
        kind: NetworkPolicy
        metadata:
          name: b
          namespace: a
        spec:
          podSelector: {}
          policyTypes: [Ingress]
    "#]]
    .assert_eq(&manifest(&policy));
}

#[test]
fn networks_that_differ_only_after_the_prefix_are_written_once() {
    let text = "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: a}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  egress: [{action: Deny, to: [{networks: [10.0.0.1/8, fd00::/8, 10.0.0.2/8]}]}]
";
    let manifests = testing::read(text);
    let policy = manifests.objects.policies().last().unwrap();
    let written = manifest(policy);
    assert!(written.contains("networks: [10.0.0.0/8, \"fd00::/8\"]"), "{written}");
}
