//! Cases of the translation. Addresses are `10.cluster.namespace.pod`.

mod published;
mod traps;
mod trust;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{
    Action, Block, Claim, Direction, Labels, Name, NamedPort, Namespace, Peer, Pod, PodId, Policy,
    PolicyId, PolicyKind, PolicyRule, PortMatch, PortRange, PortSpec, Protocol, Requirement, Scope,
    Selector, Spec, Subject, Tier, Who,
};

use crate::{
    ClusterSet, ClusterSetOptions, Interest, Merging, Publication, Reach, RemoteCluster, RemoteId,
    RemotePod,
};

fn equals(pairs: &[(&str, &str)]) -> Selector {
    pairs.iter().map(|(key, value)| Requirement::equals(*key, *value)).collect()
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().copied().collect()
}

fn pods(scope: Scope, selector: Selector) -> Who {
    Who::Pods { scope, pods: selector }
}

fn rule(peers: Vec<Who>, ports: Option<Vec<PortMatch>>) -> PolicyRule {
    let peers = peers.into_iter().zip(0..).map(|(who, index)| Peer { index, line: 0, who });
    PolicyRule {
        index: 0,
        name: None,
        line: 0,
        action: Action::Allow,
        peers: Some(peers.collect()),
        ports: ports.map(|all| all.into_iter().map(|ports| PortSpec { line: 0, ports }).collect()),
    }
}

fn policy(ingress: Option<Vec<PolicyRule>>, egress: Option<Vec<PolicyRule>>) -> Policy {
    let subject = Subject { scope: Scope::Own, pods: equals(&[("app", "db")]) };
    let spec = Spec { tier: Tier::Namespace, subject, ingress, egress };
    Policy { id: id(), location: None, spec: Arc::new(spec), staged: false }
}

fn id() -> PolicyId {
    PolicyId { kind: PolicyKind::NetworkPolicy, namespace: "n1".into(), name: "p".into() }
}

fn remote(
    cluster: &str,
    namespace: &str,
    name: &str,
    address: &str,
    own: &[(&str, &str)],
) -> RemotePod {
    RemotePod {
        id: RemoteId { namespace: namespace.into(), cluster: cluster.into(), name: name.into() },
        labels: labels(own),
        addresses: vec![address.parse().unwrap()],
        ports: Vec::new(),
    }
}

fn set() -> ClusterSet {
    let options = ClusterSetOptions {
        cluster: "c1".into(),
        networks: vec!["10.1.0.0/16".parse().unwrap()],
        accepted: BTreeMap::new(),
        max_pods: usize::MAX,
        max_namespaces: usize::MAX,
        shard_size: 100,
        merging: Merging::None,
    };
    let mut set = ClusterSet::new(options);
    for (cluster, networks) in
        [("c2", ["10.2.0.0/16", "fd02::/16"]), ("c3", ["10.3.0.0/16", "10.2.3.0/24"])]
    {
        let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
        set.set_member(&cluster.into(), Some(RemoteCluster { networks }));
    }
    set
}

/// The remote rules of all shards, one line each.
fn shown(set: &ClusterSet) -> Vec<String> {
    let mut lines = Vec::new();
    for policy in set.translate(&id()).iter().skip(1) {
        for direction in Direction::BOTH {
            for rule in policy.rules(direction).unwrap_or_default() {
                let peers = rule.peers.as_ref().unwrap();
                assert!(!peers.is_empty(), "an empty list would match every peer");
                let peers: Vec<String> = peers
                    .iter()
                    .map(|peer| match &peer.who {
                        Who::Block(block) => block.to_string(),
                        other => panic!("{other:?}"),
                    })
                    .collect();
                let ports = rule.ports.as_ref().map_or("all".into(), |ports| {
                    let ports: Vec<String> =
                        ports.iter().map(|port| port.ports.to_string()).collect();
                    ports.join(",")
                });
                lines.push(format!("{direction} {} {ports}", peers.join(" ")));
            }
        }
    }
    lines
}

fn all_namespaces() -> Scope {
    Scope::Matching(Selector::everything())
}

#[test]
fn the_base_always_exists_with_its_directions_and_local_selectors() {
    let local = rule(vec![pods(Scope::Own, equals(&[("app", "web")]))], None);
    let mut set = set();
    set.put_policy(policy(Some(vec![local.clone()]), Some(Vec::new())), "u");
    let written = set.translate(&id());
    assert_eq!(written.len(), 1, "there are no remote pods, and the base still isolates");
    assert_eq!(&*written[0].id.name, "csnp-u");
    assert_eq!(written[0].spec.ingress, Some(vec![local]));
    assert_eq!(written[0].spec.egress, Some(Vec::new()), "isolates egress, and allows nothing");
}

#[test]
fn blocks_and_rules_for_every_peer_stay_in_the_base() {
    let block =
        Who::Block(Block::new("192.0.2.0/24".parse().unwrap(), ["192.0.2.7/32".parse().unwrap()]));
    let everyone = PolicyRule { peers: None, index: 1, ..rule(Vec::new(), None) };
    let no_peers = PolicyRule { index: 2, ..rule(Vec::new(), None) };
    let mut set = set();
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[]));
    set.put_policy(
        policy(Some(vec![rule(vec![block.clone()], None), everyone, no_peers]), None),
        "u",
    );
    let written = set.translate(&id());
    assert_eq!(written.len(), 1, "no rule selects remote pods");
    let rules = written[0].spec.ingress.as_ref().unwrap();
    assert_eq!(rules.len(), 2, "a rule without peers is not written: it would match every peer");
    assert_eq!(rules[0].peers.as_ref().unwrap()[0].who, block);
    assert_eq!(rules[1].peers, None);
}

#[test]
fn a_pod_selector_alone_selects_the_namespace_of_the_same_name() {
    let mut set = set();
    set.put_policy(
        policy(Some(vec![rule(vec![pods(Scope::Own, equals(&[("app", "web")]))], None)]), None),
        "u",
    );
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[("app", "web")]));
    set.put_pod(remote("c2", "n2", "a", "10.2.2.1", &[("app", "web")]));
    set.put_pod(remote("c3", "n1", "b", "10.3.1.1", &[("app", "other")]));
    assert_eq!(shown(&set), ["ingress 10.2.1.1/32 all"]);
}

#[test]
fn every_peer_is_translated_and_each_rule_keeps_its_ports() {
    let port = |port| PortMatch::Range(PortRange::one(Protocol::Tcp, port));
    let web = || pods(Scope::Own, equals(&[("app", "web")]));
    let other = || pods(Scope::Own, equals(&[("app", "other")]));
    let rules = vec![
        rule(vec![web(), other()], Some(vec![port(80)])),
        rule(vec![other()], Some(vec![port(443)])),
    ];
    let mut set = set();
    set.put_policy(policy(Some(rules), None), "u");
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[("app", "web")]));
    set.put_pod(remote("c3", "n1", "b", "10.3.1.1", &[("app", "other")]));
    assert_eq!(
        shown(&set),
        ["ingress 10.2.1.1/32 10.3.1.1/32 80/TCP", "ingress 10.3.1.1/32 443/TCP"]
    );
}

#[test]
fn only_the_empty_namespace_selector_matches_before_the_labels_are_received() {
    let by_team = pods(Scope::Matching(equals(&[("team", "a")])), Selector::everything());
    let not_b: Selector = [Requirement::Absent("team".into())].into_iter().collect();
    let without = pods(Scope::Matching(not_b), Selector::everything());
    for (who, expected) in
        [(by_team, 0), (without, 0), (pods(all_namespaces(), Selector::everything()), 1)]
    {
        let mut set = set();
        set.put_policy(policy(Some(vec![rule(vec![who], None)]), None), "u");
        set.put_pod(remote("c2", "n9", "a", "10.2.9.1", &[]));
        assert_eq!(shown(&set).len(), expected);
        set.set_namespace(&"c2".into(), &"n9".into(), Some(labels(&[("team", "a")])));
        let before = shown(&set);
        set.set_namespace(&"c2".into(), &"n9".into(), Some(labels(&[])));
        assert!(
            before != shown(&set) || expected == 1,
            "a relabelled namespace is evaluated again"
        );
        set.set_namespace(&"c2".into(), &"n9".into(), None);
        assert_eq!(shown(&set).len(), expected);
    }
}

#[test]
fn addresses_of_both_families_become_host_networks() {
    let mut set = set();
    set.put_policy(
        policy(Some(vec![rule(vec![pods(Scope::Own, Selector::everything())], None)]), None),
        "u",
    );
    let mut pod = remote("c2", "n1", "a", "10.2.1.1", &[]);
    pod.addresses.push("fd02::1".parse().unwrap());
    set.put_pod(pod);
    assert_eq!(shown(&set), ["ingress 10.2.1.1/32 all", "ingress fd02::1/128 all"]);
    for policy in set.translate(&id()).iter().skip(1) {
        assert_eq!(policy.spec.egress, None, "a shard isolates only in its own direction");
    }
}

#[test]
fn port_names_refer_to_local_pods_on_ingress_and_to_remote_pods_on_egress() {
    let http = || PortMatch::Named { name: "http".into(), protocol: Some(Protocol::Tcp) };
    let rules = || vec![rule(vec![pods(Scope::Own, Selector::everything())], Some(vec![http()]))];
    let mut set = set();
    set.put_policy(policy(Some(rules()), Some(rules())), "u");
    for (name, address, port) in
        [("a", "10.2.1.1", Some(80)), ("b", "10.2.1.2", Some(8080)), ("c", "10.2.1.3", None)]
    {
        let mut pod = remote("c2", "n1", name, address, &[]);
        pod.ports.extend(port.map(|port| NamedPort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port,
        }));
        set.put_pod(pod);
    }
    assert_eq!(
        shown(&set),
        [
            "ingress 10.2.1.1/32 10.2.1.2/32 10.2.1.3/32 \"http\"/TCP",
            "egress 10.2.1.1/32 80/TCP",
            "egress 10.2.1.2/32 8080/TCP",
        ]
    );
}

#[test]
fn an_address_in_the_networks_of_two_clusters_is_not_allowed() {
    let mut set = set();
    set.put_policy(
        policy(Some(vec![rule(vec![pods(Scope::Own, equals(&[("app", "web")]))], None)]), None),
        "u",
    );
    let networks = |all: &[&str]| RemoteCluster {
        networks: all.iter().map(|network| network.parse().unwrap()).collect(),
    };
    let own = set.members()["c3"].clone();
    for pods in [&["c2"][..], &["c2", "c3"]] {
        for cluster in pods {
            set.put_pod(remote(cluster, "n1", "a", "10.2.3.1", &[("app", "web")]));
        }
        assert_eq!(shown(&set), Vec::<String>::new(), "c3 declares the network as well");
        assert_eq!(set.summary(&id()).unwrap().overlaps.len(), 1);
    }
    set.set_member(&"c3".into(), Some(networks(&["10.3.0.0/16"])));
    assert_eq!(shown(&set), ["ingress 10.2.3.1/32 all"], "c3 no longer declares it");
    assert!(set.summary(&id()).unwrap().overlaps.is_empty());
    set.set_member(&"c3".into(), Some(own));
    assert_eq!(shown(&set), Vec::<String>::new());
    set.set_member(&"c3".into(), None);
    assert_eq!(
        shown(&set),
        ["ingress 10.2.3.1/32 all"],
        "the networks of an expired cluster do not count"
    );
}

#[test]
fn only_rules_that_the_policy_still_has_are_retained() {
    let port = |port| PortMatch::Range(PortRange::one(Protocol::Tcp, port));
    let http = || PortMatch::Named { name: "http".into(), protocol: Some(Protocol::Tcp) };
    let web =
        |ports: Option<Vec<PortMatch>>| rule(vec![pods(Scope::Own, Selector::everything())], ports);
    let block = |ports: Option<Vec<PortMatch>>| {
        rule(vec![Who::Block(Block::host("10.2.1.1".parse().unwrap()))], ports)
    };
    let ports = |kept: Option<Policy>, direction| -> String {
        let Some(kept) = kept else { return "nothing".into() };
        let rules = kept.rules(direction).unwrap_or_default().iter();
        let all = rules.map(|rule| match &rule.ports {
            None => "all".to_owned(),
            Some(ports) => {
                ports.iter().map(|port| port.ports.to_string()).collect::<Vec<_>>().join(",")
            }
        });
        all.collect::<Vec<_>>().join(" ")
    };
    let (two, one) = (Some(vec![port(80), port(443)]), Some(vec![port(80)]));
    for (installed, remote, expected) in [
        (two.clone(), Some(web(two.clone())), "80/TCP,443/TCP"),
        (two.clone(), Some(web(None)), "80/TCP,443/TCP"),
        (two.clone(), Some(web(one.clone())), "80/TCP"),
        (None, Some(web(None)), "all"),
        (None, Some(web(one.clone())), "80/TCP"),
        (one.clone(), Some(web(Some(vec![port(443)]))), "nothing"),
        // A block is part of the base; without a rule for remote pods, no remote pod is allowed.
        (one.clone(), Some(block(one.clone())), "nothing"),
        (one.clone(), None, "nothing"),
    ] {
        let installed = policy(Some(vec![block(installed)]), None);
        let remote = policy(Some(remote.into_iter().collect()), None);
        assert_eq!(ports(crate::retained(&remote, &installed), Direction::Ingress), expected);
        let elsewhere = policy(None, remote.spec.ingress.clone());
        assert_eq!(crate::retained(&elsewhere, &installed), None, "the other direction");
        let mut other = (*remote.spec).clone();
        other.subject.pods = equals(&[("app", "other")]);
        let other = Policy { spec: Arc::new(other), ..remote };
        assert_eq!(crate::retained(&other, &installed), None, "other pods");
    }
    // On egress a port name stands for a number of the remote pod; on ingress it stays a name.
    let installed = |direction| match direction {
        Direction::Egress => policy(None, Some(vec![block(one.clone())])),
        Direction::Ingress => policy(Some(vec![block(one.clone())]), None),
    };
    let named = policy(Some(vec![web(Some(vec![http()]))]), Some(vec![web(Some(vec![http()]))]));
    let kept = |direction| ports(crate::retained(&named, &installed(direction)), direction);
    assert_eq!(kept(Direction::Egress), "80/TCP");
    assert_eq!(kept(Direction::Ingress), "nothing");
    // A rule for every peer was not written by the translation.
    let open = policy(Some(vec![PolicyRule { peers: None, ..web(None) }]), None);
    assert_eq!(crate::retained(&policy(Some(vec![web(None)]), None), &open), None);
}

#[test]
fn addresses_outside_the_declared_networks_or_inside_ours_are_rejected() {
    let mut set = set();
    set.set_member(
        &"c2".into(),
        Some(RemoteCluster { networks: vec!["10.0.0.0/8".parse().unwrap()] }),
    );
    set.put_policy(
        policy(Some(vec![rule(vec![pods(all_namespaces(), Selector::everything())], None)]), None),
        "u",
    );
    set.put_pod(remote("c2", "n1", "ours", "10.1.1.1", &[]));
    set.put_pod(remote("c3", "n1", "outside", "10.2.9.1", &[]));
    set.put_pod(remote("c4", "n1", "unknown", "10.4.1.1", &[]));
    set.put_pod(remote("c1", "n1", "ourselves", "10.9.1.1", &[]));
    assert_eq!(shown(&set), Vec::<String>::new());
    let rejected: Vec<String> =
        set.rejected().map(|(cluster, pods)| format!("{cluster} {}", pods.len())).collect();
    assert_eq!(rejected, ["c2 1", "c3 1"]);
    set.remove_pod(&remote("c2", "n1", "ours", "10.1.1.1", &[]).id);
    assert_eq!(set.rejected().count(), 1);
}

#[test]
fn addresses_of_a_cluster_are_removed_when_it_expires_and_return_with_it() {
    let mut set = set();
    set.put_policy(
        policy(Some(vec![rule(vec![pods(Scope::Own, Selector::everything())], None)]), None),
        "u",
    );
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[]));
    let member = set.members()["c2"].clone();
    set.set_member(&"c2".into(), None);
    assert_eq!(shown(&set), Vec::<String>::new());
    set.set_member(&"c2".into(), Some(member));
    assert_eq!(shown(&set), ["ingress 10.2.1.1/32 all"]);
}

#[test]
fn reserved_labels_select_no_pod_even_by_their_absence() {
    let absent: Selector =
        [Requirement::Absent("submariner-io/clusterID".into())].into_iter().collect();
    let mut set = set();
    set.put_policy(policy(Some(vec![rule(vec![pods(Scope::Own, absent)], None)]), None), "u");
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[]));
    assert_eq!(shown(&set), Vec::<String>::new());
    assert!(set.summary(&id()).unwrap().reserved_labels);
    assert_eq!(set.interests().count(), 0);
}

/// An earlier prototype failed on two policies and any pod update.
#[test]
fn several_policies_follow_pods_that_are_added_changed_and_removed() {
    let web = || vec![rule(vec![pods(Scope::Own, equals(&[("app", "web")]))], None)];
    let other = PolicyId { name: "q".into(), ..id() };
    let mut set = set();
    set.put_policy(policy(Some(web()), None), "u");
    set.put_policy(Policy { id: other.clone(), ..policy(Some(web()), None) }, "v");
    // Removed before it exists, put twice, relabelled in and out.
    set.remove_pod(&remote("c2", "n1", "a", "10.2.1.1", &[]).id);
    for (own, selected) in
        [(&[("app", "x")], 1), (&[("app", "web")], 2), (&[("app", "web")], 2), (&[("app", "x")], 1)]
    {
        set.put_pod(remote("c2", "n1", "a", "10.2.1.1", own));
        for id in [&id(), &other] {
            assert_eq!(set.translate(id).len(), selected);
        }
    }
    set.put_pod(remote("c2", "n1", "a", "10.2.1.2", &[("app", "web")]));
    assert_eq!(shown(&set), ["ingress 10.2.1.2/32 all"], "only the new address");
    // A later policy matches the current state.
    set.put_policy(policy(Some(web()), None), "w");
    assert_eq!(shown(&set), ["ingress 10.2.1.2/32 all"]);
    assert_eq!(
        &*set.translate(&id())[0].id.name,
        "csnp-w",
        "a policy with another uid is a new policy"
    );
    set.remove_policy(&id());
    set.remove_policy(&id());
    assert!(set.translate(&id()).is_empty());
}

#[test]
fn a_pod_changes_only_its_own_shard() {
    let mut set = set();
    set.put_policy(
        policy(Some(vec![rule(vec![pods(Scope::Own, Selector::everything())], None)]), None),
        "u",
    );
    for at in 0..3_000 {
        set.put_pod(remote(
            "c2",
            "n1",
            &format!("p{at}"),
            &format!("10.2.{}.{}", at / 250, at % 250),
            &[],
        ));
    }
    set.take_changed();
    set.remove_pod(&remote("c2", "n1", "p77", "10.2.0.77", &[]).id);
    let touched = set.take_changed();
    assert_eq!(touched.len(), 1);
    assert!(touched[&id()].len() <= 3, "{touched:?}");
    assert!(set.shards(&id()).count() > 20);
    for key in set.shards(&id()) {
        let policy = set.shard(&id(), &key).unwrap();
        assert!(policy.spec.ingress.as_ref().unwrap()[0].peers.as_ref().unwrap().len() <= 100);
    }
    set.put_pod(remote("c2", "n1", "p78", "10.2.0.78", &[("app", "new")]));
    assert!(
        set.take_changed().get(&id()).is_none_or(BTreeSet::is_empty),
        "no policy uses the label"
    );
}
