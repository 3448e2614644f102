//! The traps of translation, one by one. The numbers of addresses are `10.cluster.namespace.pod`.

mod told;
mod traps;
mod trust;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{
    Action, Block, Direction, Labels, Name, NamedPort, Namespace, Peer, Pod, PodId, Policy,
    PolicyId, PolicyKind, PolicyRule, PortMatch, PortRange, PortSpec, Protocol, Requirement, Scope,
    Selector, Spec, Subject, Tier, Who,
};

use crate::{
    ClusterSet, Interest, Member, Merging, Options, Publication, Reach, RemoteId, RemotePod,
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
    Policy { id: id(), location: None, spec: Arc::new(spec) }
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
    let options = Options {
        cluster: "c1".into(),
        networks: vec!["10.1.0.0/16".parse().unwrap()],
        accepted: BTreeMap::new(),
        pods: usize::MAX,
        namespaces: usize::MAX,
        shard: 100,
        merging: Merging::None,
    };
    let mut set = ClusterSet::new(options);
    for (cluster, networks) in
        [("c2", ["10.2.0.0/16", "fd02::/16"]), ("c3", ["10.3.0.0/16", "10.2.3.0/24"])]
    {
        let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
        set.member(&cluster.into(), Some(Member { networks }));
    }
    set
}

/// What remote peers became, a line for each rule of each shard.
fn shown(set: &ClusterSet) -> Vec<String> {
    let mut lines = Vec::new();
    for policy in set.translate(&id()).iter().skip(1) {
        for direction in Direction::BOTH {
            for rule in policy.rules(direction).unwrap_or_default() {
                let peers = rule.peers.as_ref().unwrap();
                assert!(!peers.is_empty(), "an empty list would mean everyone");
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
fn the_base_is_always_there_with_its_directions_and_local_selectors() {
    let local = rule(vec![pods(Scope::Own, equals(&[("app", "web")]))], None);
    let mut set = set();
    set.put_policy(policy(Some(vec![local.clone()]), Some(Vec::new())), "u");
    let written = set.translate(&id());
    assert_eq!(written.len(), 1, "nobody is there, and the base still isolates");
    assert_eq!(&*written[0].id.name, "csnp-u");
    assert_eq!(written[0].spec.ingress, Some(vec![local]));
    assert_eq!(written[0].spec.egress, Some(Vec::new()), "isolates egress, and allows nothing");
}

#[test]
fn blocks_and_everyone_stay_in_the_base_as_they_were_written() {
    let block =
        Who::Block(Block::new("192.0.2.0/24".parse().unwrap(), ["192.0.2.7/32".parse().unwrap()]));
    let everyone = PolicyRule { peers: None, index: 1, ..rule(Vec::new(), None) };
    let nobody = PolicyRule { index: 2, ..rule(Vec::new(), None) };
    let mut set = set();
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[]));
    set.put_policy(
        policy(Some(vec![rule(vec![block.clone()], None), everyone, nobody]), None),
        "u",
    );
    let written = set.translate(&id());
    assert_eq!(written.len(), 1, "nothing is about remote pods");
    let rules = written[0].spec.ingress.as_ref().unwrap();
    assert_eq!(
        rules.len(),
        2,
        "the rule that allows no one is not written: it would allow everyone"
    );
    assert_eq!(rules[0].peers.as_ref().unwrap()[0].who, block);
    assert_eq!(rules[1].peers, None);
}

#[test]
fn a_pod_selector_alone_means_the_namespace_of_the_same_name() {
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
fn every_peer_of_a_rule_counts_and_each_rule_keeps_its_ports() {
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
fn a_namespace_selector_waits_for_the_labels_of_the_namespace_and_the_empty_one_does_not() {
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
        set.namespace(&"c2".into(), &"n9".into(), Some(labels(&[("team", "a")])));
        let before = shown(&set);
        set.namespace(&"c2".into(), &"n9".into(), Some(labels(&[])));
        assert!(
            before != shown(&set) || expected == 1,
            "a namespace that is relabelled is asked again"
        );
        set.namespace(&"c2".into(), &"n9".into(), None);
        assert_eq!(shown(&set).len(), expected);
    }
}

#[test]
fn addresses_are_single_whatever_their_family() {
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
        assert_eq!(policy.spec.egress, None, "a shard isolates for no direction but its own");
    }
}

#[test]
fn names_of_ports_are_the_local_pods_on_ingress_and_the_remote_pods_on_egress() {
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
fn an_address_in_the_networks_of_two_clusters_is_allowed_to_neither() {
    let mut set = set();
    set.put_policy(
        policy(Some(vec![rule(vec![pods(Scope::Own, equals(&[("app", "web")]))], None)]), None),
        "u",
    );
    let networks = |all: &[&str]| Member {
        networks: all.iter().map(|network| network.parse().unwrap()).collect(),
    };
    let own = set.members()["c3"].clone();
    for pods in [&["c2"][..], &["c2", "c3"]] {
        for cluster in pods {
            set.put_pod(remote(cluster, "n1", "a", "10.2.3.1", &[("app", "web")]));
        }
        assert_eq!(shown(&set), Vec::<String>::new(), "c3 says that it is its network, too");
        assert_eq!(set.summary(&id()).unwrap().overlaps.len(), 1);
    }
    set.member(&"c3".into(), Some(networks(&["10.3.0.0/16"])));
    assert_eq!(shown(&set), ["ingress 10.2.3.1/32 all"], "it says so no longer");
    assert!(set.summary(&id()).unwrap().overlaps.is_empty());
    set.member(&"c3".into(), Some(own));
    assert_eq!(shown(&set), Vec::<String>::new());
    set.member(&"c3".into(), None);
    assert_eq!(shown(&set), ["ingress 10.2.3.1/32 all"], "who is gone says nothing");
}

#[test]
fn of_what_is_written_only_that_may_stay_which_the_policy_still_says() {
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
    for (there, said, expected) in [
        (two.clone(), Some(web(two.clone())), "80/TCP,443/TCP"),
        (two.clone(), Some(web(None)), "80/TCP,443/TCP"),
        (two.clone(), Some(web(one.clone())), "80/TCP"),
        (None, Some(web(None)), "all"),
        (None, Some(web(one.clone())), "80/TCP"),
        (one.clone(), Some(web(Some(vec![port(443)]))), "nothing"),
        // A block is in the base, and no remote rule at all allows no remote pod.
        (one.clone(), Some(block(one.clone())), "nothing"),
        (one.clone(), None, "nothing"),
    ] {
        let there = policy(Some(vec![block(there)]), None);
        let said = policy(Some(said.into_iter().collect()), None);
        assert_eq!(ports(crate::kept(&said, &there), Direction::Ingress), expected);
        let elsewhere = policy(None, said.spec.ingress.clone());
        assert_eq!(crate::kept(&elsewhere, &there), None, "of the other direction");
        let mut other = (*said.spec).clone();
        other.subject.pods = equals(&[("app", "other")]);
        let other = Policy { spec: Arc::new(other), ..said };
        assert_eq!(crate::kept(&other, &there), None, "of other pods");
    }
    // A name is a number of a remote pod on egress, and on ingress nothing but a name.
    let there = |direction| match direction {
        Direction::Egress => policy(None, Some(vec![block(one.clone())])),
        Direction::Ingress => policy(Some(vec![block(one.clone())]), None),
    };
    let named = policy(Some(vec![web(Some(vec![http()]))]), Some(vec![web(Some(vec![http()]))]));
    let kept = |direction| ports(crate::kept(&named, &there(direction)), direction);
    assert_eq!(kept(Direction::Egress), "80/TCP");
    assert_eq!(kept(Direction::Ingress), "nothing");
    // What somebody opened is not what the policy says.
    let open = policy(Some(vec![PolicyRule { peers: None, ..web(None) }]), None);
    assert_eq!(crate::kept(&policy(Some(vec![web(None)]), None), &open), None);
}

#[test]
fn addresses_outside_of_what_a_cluster_declared_and_inside_of_our_own_are_refused() {
    let mut set = set();
    set.member(&"c2".into(), Some(Member { networks: vec!["10.0.0.0/8".parse().unwrap()] }));
    set.put_policy(
        policy(Some(vec![rule(vec![pods(all_namespaces(), Selector::everything())], None)]), None),
        "u",
    );
    set.put_pod(remote("c2", "n1", "ours", "10.1.1.1", &[]));
    set.put_pod(remote("c3", "n1", "outside", "10.2.9.1", &[]));
    set.put_pod(remote("c4", "n1", "stranger", "10.4.1.1", &[]));
    set.put_pod(remote("c1", "n1", "ourselves", "10.9.1.1", &[]));
    assert_eq!(shown(&set), Vec::<String>::new());
    let refused: Vec<String> =
        set.refused().map(|(cluster, pods)| format!("{cluster} {}", pods.len())).collect();
    assert_eq!(refused, ["c2 1", "c3 1"]);
    set.remove_pod(&remote("c2", "n1", "ours", "10.1.1.1", &[]).id);
    assert_eq!(set.refused().count(), 1);
}

#[test]
fn a_cluster_that_is_gone_takes_its_addresses_along_and_brings_them_back() {
    let mut set = set();
    set.put_policy(
        policy(Some(vec![rule(vec![pods(Scope::Own, Selector::everything())], None)]), None),
        "u",
    );
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[]));
    let member = set.members()["c2"].clone();
    set.member(&"c2".into(), None);
    assert_eq!(shown(&set), Vec::<String>::new());
    set.member(&"c2".into(), Some(member));
    assert_eq!(shown(&set), ["ingress 10.2.1.1/32 all"]);
}

#[test]
fn labels_that_never_travel_select_nobody_even_by_their_absence() {
    let absent: Selector =
        [Requirement::Absent("submariner-io/clusterID".into())].into_iter().collect();
    let mut set = set();
    set.put_policy(policy(Some(vec![rule(vec![pods(Scope::Own, absent)], None)]), None), "u");
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[]));
    assert_eq!(shown(&set), Vec::<String>::new());
    assert!(set.summary(&id()).unwrap().unanswerable);
    assert_eq!(set.interests().count(), 0);
}

/// Two policies and any update of a pod ended the proof of concept that came before.
#[test]
fn pods_come_go_and_change_under_several_policies() {
    let web = || vec![rule(vec![pods(Scope::Own, equals(&[("app", "web")]))], None)];
    let other = PolicyId { name: "q".into(), ..id() };
    let mut set = set();
    set.put_policy(policy(Some(web()), None), "u");
    set.put_policy(Policy { id: other.clone(), ..policy(Some(web()), None) }, "v");
    // Unknown and told to be gone, told twice, relabelled in and out.
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
    assert_eq!(shown(&set), ["ingress 10.2.1.2/32 all"], "the new address, and not the old one");
    // A policy that comes later sees what is true now.
    set.put_policy(policy(Some(web()), None), "w");
    assert_eq!(shown(&set), ["ingress 10.2.1.2/32 all"]);
    assert_eq!(&*set.translate(&id())[0].id.name, "csnp-w", "another uid is another policy");
    set.remove_policy(&id());
    set.remove_policy(&id());
    assert!(set.translate(&id()).is_empty());
}

#[test]
fn one_pod_of_many_touches_one_shard() {
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
    set.touched();
    set.remove_pod(&remote("c2", "n1", "p77", "10.2.0.77", &[]).id);
    let touched = set.touched();
    assert_eq!(touched.len(), 1);
    assert!(touched[&id()].len() <= 3, "{touched:?}");
    assert!(set.shards(&id()).count() > 20);
    for key in set.shards(&id()) {
        let policy = set.shard(&id(), &key).unwrap();
        assert!(policy.spec.ingress.as_ref().unwrap()[0].peers.as_ref().unwrap().len() <= 100);
    }
    set.put_pod(remote("c2", "n1", "p78", "10.2.0.78", &[("app", "new")]));
    assert!(
        set.touched().get(&id()).is_none_or(BTreeSet::is_empty),
        "a label that nothing asks for"
    );
}
