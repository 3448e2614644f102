//! Limits on what other clusters can publish.

use super::*;
use crate::NetworkLimits;

fn networks(all: &[&str]) -> RemoteCluster {
    RemoteCluster { networks: all.iter().map(|network| network.parse().unwrap()).collect() }
}

/// A set that trusts networks of two other clusters, and few pods of each.
fn limited_set() -> ClusterSet {
    let options = ClusterSetOptions {
        cluster: "c1".into(),
        networks: vec!["10.1.0.0/16".parse().unwrap()],
        accepted: [
            ("c2".into(), networks(&["10.2.0.0/16"]).networks),
            ("c3".into(), networks(&["10.3.0.0/16", "fd03::/64"]).networks),
        ]
        .into(),
        max_pods: 2,
        max_namespaces: 2,
        shard_size: 100,
        merging: Merging::None,
    };
    let mut set = ClusterSet::new(options);
    let everyone = rule(vec![pods(all_namespaces(), Selector::everything())], None);
    set.put_policy(policy(Some(vec![everyone]), None), "u");
    set
}

#[test]
fn a_cluster_is_trusted_only_in_its_accepted_networks() {
    let mut set = limited_set();
    set.set_member(&"c2".into(), Some(networks(&["10.0.0.0/8"])));
    set.set_member(&"c3".into(), Some(networks(&["10.3.7.0/24", "fd03::/32"])));
    set.set_member(&"c4".into(), Some(networks(&["10.4.0.0/16"])));
    assert_eq!(set.members().keys().map(|name| &**name).collect::<Vec<_>>(), ["c2", "c3"]);
    assert_eq!(set.members()["c2"], networks(&["10.2.0.0/16"]));
    assert_eq!(set.members()["c3"], networks(&["10.3.7.0/24", "fd03::/64"]));
    set.put_pod(remote("c2", "n1", "own", "10.2.1.1", &[]));
    set.put_pod(remote("c2", "n1", "machine", "10.77.1.1", &[]));
    set.put_pod(remote("c4", "n1", "unknown", "10.4.1.1", &[]));
    assert_eq!(shown(&set), ["ingress 10.2.1.1/32 all"]);
}

#[test]
fn a_false_claim_outside_the_accepted_networks_has_no_effect() {
    let mut set = limited_set();
    set.set_member(&"c2".into(), Some(networks(&["10.2.0.0/16"])));
    set.put_pod(remote("c2", "n1", "web", "10.2.1.1", &[]));
    set.set_member(&"c3".into(), Some(networks(&["10.3.0.0/16", "10.2.0.0/16"])));
    set.put_pod(remote("c3", "n1", "thief", "10.2.1.1", &[]));
    set.put_pod(remote("c3", "n1", "web", "10.3.1.1", &[]));
    assert_eq!(shown(&set), ["ingress 10.2.1.1/32 10.3.1.1/32 all"]);
    assert!(set.summary(&id()).unwrap().overlaps.is_empty());
    assert_eq!(set.rejected().map(|(cluster, _)| &**cluster).collect::<Vec<_>>(), ["c3"]);
}

#[test]
fn clusters_with_overlapping_networks_are_reported() {
    let mut set = set();
    set.put_policy(
        policy(Some(vec![rule(vec![pods(all_namespaces(), Selector::everything())], None)]), None),
        "u",
    );
    set.put_pod(remote("c2", "n1", "web", "10.2.3.1", &[]));
    let overlapping_clusters = set.summary(&id()).unwrap().overlapping_clusters;
    assert_eq!(overlapping_clusters.iter().map(|name| &**name).collect::<Vec<_>>(), ["c2", "c3"]);
}

#[test]
fn selected_pods_that_are_not_accepted_are_reported_and_not_listed() {
    let mut set = set();
    set.put_policy(
        policy(
            Some(vec![rule(vec![pods(all_namespaces(), equals(&[("app", "web")]))], None)]),
            None,
        ),
        "u",
    );
    let other = Policy { id: PolicyId { name: "other".into(), ..id() }, ..policy(None, None) };
    set.put_policy(other, "o");
    set.take_changed();
    let ids = |set: &ClusterSet| -> Vec<String> {
        set.accepted_pods().map(|pod| format!("{}/{}", pod.id.cluster, pod.id.name)).collect()
    };
    let web = &[("app", "web")];
    let changed = |set: &mut ClusterSet| set.take_changed().into_keys().collect::<Vec<_>>();
    // Outside of the cluster's networks.
    let outside = remote("c2", "n1", "outside", "192.0.2.1", web);
    set.put_pod(outside.clone());
    assert_eq!(changed(&mut set), [id()], "its status must be written");
    set.put_pod(remote("c2", "n1", "good", "10.2.1.1", web));
    set.put_pod(remote("c2", "n1", "job", "192.0.2.2", &[("app", "job")]));
    // A cluster that is not alive.
    set.take_changed();
    let gone = remote("c9", "n1", "gone", "10.9.1.1", web);
    set.put_pod(gone.clone());
    assert_eq!(changed(&mut set), [id()]);
    set.put_pod(remote("c8", "n1", "gone", "10.8.1.1", &[("app", "job")]));
    assert_eq!(ids(&set), ["c2/good"]);
    let summary = set.summary(&id()).unwrap();
    assert_eq!(summary.rejected, [outside.id.clone()].into());
    assert_eq!(summary.absent, [Name::from("c9")].into());
    // A change of labels can end or begin the selection.
    let relabelled = remote("c2", "n1", "outside", "192.0.2.1", &[("app", "job")]);
    set.take_changed();
    set.put_pod(relabelled);
    assert_eq!(changed(&mut set), [id()]);
    assert!(set.summary(&id()).unwrap().rejected.is_empty());
    set.put_pod(outside.clone());
    assert_eq!(changed(&mut set), [id()]);
    set.set_namespace(&"c2".into(), &"n1".into(), Some(labels(&[("team", "shop")])));
    assert_eq!(changed(&mut set), [id()], "selectors of namespaces may select other pods");
    set.remove_pod(&outside.id);
    assert_eq!(changed(&mut set), [id()]);
    set.set_member(&"c9".into(), Some(networks(&["10.9.0.0/16"])));
    let summary = set.summary(&id()).unwrap();
    assert!(summary.rejected.is_empty() && summary.absent.is_empty(), "{summary:?}");
    assert_eq!(ids(&set), ["c2/good", "c9/gone"]);
    set.set_member(&"c9".into(), None);
    assert_eq!(set.summary(&id()).unwrap().absent, [Name::from("c9")].into());
}

#[test]
fn pods_over_the_limit_are_dropped_and_the_cluster_is_reported() {
    let mut set = limited_set();
    set.set_member(&"c2".into(), Some(networks(&["10.2.0.0/16"])));
    set.set_member(&"c3".into(), Some(networks(&["10.3.0.0/16"])));
    let pod = |name: &str, last: &str| remote("c2", "n1", name, &format!("10.2.1.{last}"), &[]);
    for (name, last) in [("a", "1"), ("b", "2"), ("c", "3")] {
        set.put_pod(pod(name, last));
    }
    set.put_pod(remote("c3", "n1", "a", "10.3.1.1", &[]));
    assert_eq!(shown(&set), ["ingress 10.2.1.1/32 10.2.1.2/32 10.3.1.1/32 all"]);
    assert_eq!(set.over_pod_limit().iter().map(|name| &**name).collect::<Vec<_>>(), ["c2"]);
    set.put_pod(pod("b", "9"));
    assert_eq!(
        shown(&set),
        ["ingress 10.2.1.1/32 10.2.1.9/32 10.3.1.1/32 all"],
        "a known pod can change"
    );
    set.remove_pod(&pod("a", "1").id);
    set.reset_over_pod_limit();
    set.put_pod(pod("c", "3"));
    assert_eq!(
        shown(&set),
        ["ingress 10.2.1.3/32 10.2.1.9/32 10.3.1.1/32 all"],
        "there is capacity"
    );
    assert!(set.over_pod_limit().is_empty());
}

#[test]
fn namespaces_over_the_limit_are_dropped_and_the_cluster_is_reported() {
    let mut set = limited_set();
    // One policy selects by a label, the other by its absence.
    for (name, scope) in [
        ("shops", equals(&[("team", "shop")])),
        ("strange", [Requirement::Absent("team".into())].into_iter().collect()),
    ] {
        let rule = rule(vec![pods(Scope::Matching(scope), Selector::everything())], None);
        let id = PolicyId { name: name.into(), ..id() };
        set.put_policy(Policy { id, ..policy(Some(vec![rule]), None) }, name);
    }
    let allowed = |set: &ClusterSet, name: &str| {
        let policies = set.translate(&PolicyId { name: name.into(), ..id() });
        let rules = policies.iter().skip(1).flat_map(|policy| {
            policy.rules(Direction::Ingress).unwrap_or_default().iter().map(|rule| {
                rule.peers
                    .iter()
                    .flatten()
                    .map(|peer| format!("{:?}", peer.who))
                    .collect::<String>()
            })
        });
        let text: String = rules.collect();
        ["10.2.1.1", "10.3.1.1"].map(|address| text.contains(address))
    };
    set.set_member(&"c2".into(), Some(networks(&["10.2.0.0/16"])));
    set.set_member(&"c3".into(), Some(networks(&["10.3.0.0/16"])));
    set.put_pod(remote("c2", "n3", "a", "10.2.1.1", &[]));
    set.put_pod(remote("c3", "n3", "a", "10.3.1.1", &[]));
    let shop = || Some(labels(&[("team", "shop")]));
    let put = |set: &mut ClusterSet, cluster: &str, name: &str, labels| {
        set.set_namespace(&cluster.into(), &name.into(), labels);
    };
    for name in ["n1", "n2", "n2", "n3"] {
        put(&mut set, "c2", name, shop());
    }
    put(&mut set, "c3", "n3", shop());
    assert_eq!(allowed(&set, "shops"), [false, true]);
    assert_eq!(set.over_namespace_limit().iter().map(|name| &**name).collect::<Vec<_>>(), ["c2"]);
    assert!(!set.knows_namespace(&"c2".into(), &"n3".into()));
    // The labels of a dropped namespace are unknown; not even the absence of a label matches.
    put(&mut set, "c2", "n3", Some(labels(&[])));
    assert_eq!(allowed(&set, "strange"), [false, false]);
    put(&mut set, "c2", "n1", Some(labels(&[("team", "bank")])));
    assert_eq!(allowed(&set, "shops"), [false, true], "a known pod can change");
    // Removing a namespace several times frees capacity for only one.
    set.reset_over_namespace_limit();
    for _ in 0..2 {
        put(&mut set, "c2", "n1", None);
    }
    put(&mut set, "c2", "n3", shop());
    assert_eq!(allowed(&set, "shops"), [true, true], "there is capacity");
    assert!(set.over_namespace_limit().is_empty());
    put(&mut set, "c2", "n1", shop());
    assert_eq!(set.over_namespace_limit().len(), 1);
}

#[test]
fn the_networks_of_a_cluster_are_small_in_total() {
    let check = |limits: NetworkLimits, networks: &[String]| {
        let networks: Vec<_> = networks.iter().map(|one| one.parse().unwrap()).collect();
        limits.check(&networks)
    };
    let by_default = |networks: &[&str]| {
        check(
            NetworkLimits::default(),
            &networks.iter().map(ToString::to_string).collect::<Vec<_>>(),
        )
    };
    assert_eq!(by_default(&["10.0.0.0/8", "fd01::/16"]), Ok(()));
    assert_eq!(by_default(&["10.1.0.0/16", "10.2.0.0/16", "10.0.0.0/9", "fd01::/48"]), Ok(()));
    assert_eq!(by_default(&["10.0.0.0/8", "10.7.0.0/16", "10.0.0.0/8"]), Ok(()), "overlaps");
    let four = Err("its networks have more IPv4 addresses than a /8".to_owned());
    let six = Err("its networks have more IPv6 addresses than a /16".to_owned());
    for networks in [
        &["0.0.0.0/0"][..],
        &["10.0.0.0/7"],
        &["0.0.0.0/1", "128.0.0.0/1"],
        &["10.0.0.0/8", "192.168.0.0/32"],
    ] {
        assert_eq!(by_default(networks), four, "{networks:?}");
    }
    for networks in
        [&["::/0"][..], &["fd00::/15"], &["::/1", "8000::/1"], &["fd01::/16", "::1/128"]]
    {
        assert_eq!(by_default(networks), six, "{networks:?}");
    }
    // In pieces, adjacent or not.
    let pieces = |step: usize| (0..256).step_by(step).map(|one| format!("{one}.0.0.0/8"));
    assert_eq!(check(NetworkLimits::default(), &pieces(1).collect::<Vec<_>>()), four);
    assert_eq!(check(NetworkLimits::default(), &pieces(2).collect::<Vec<_>>()), four);
    let all = NetworkLimits { ipv4_prefix: 0, ipv6_prefix: 0 };
    assert_eq!(check(all, &["0.0.0.0/0".into(), "::/0".into()]), Ok(()));
}
