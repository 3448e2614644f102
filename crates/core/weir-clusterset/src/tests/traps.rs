//! Mistakes of earlier implementations, one test each.

use super::*;

/// Allows the pods that a peer selects.
fn allow(peers: Vec<Who>) -> PolicyRule {
    rule(peers, None)
}

fn web() -> Selector {
    equals(&[("app", "web")])
}

/// Three clusters with three namespaces of three kinds of pods: `10.cluster.namespace.kind`. Our
/// own is the first.
fn populate(set: &mut ClusterSet) {
    for cluster in 1..=3 {
        for namespace in 1..=3 {
            for (app, kind) in [("web", 1), ("noise", 2), ("other", 3)] {
                let address = format!("10.{cluster}.{namespace}.{kind}");
                let (cluster, namespace) = (format!("c{cluster}"), format!("n{namespace}"));
                set.put_pod(remote(&cluster, &namespace, app, &address, &[("app", app)]));
            }
        }
    }
    // No other cluster declares the networks of c2.
    let networks = vec!["10.3.0.0/16".parse().unwrap()];
    set.set_member(&"c3".into(), Some(RemoteCluster { networks }));
}

#[test]
fn remote_pods_are_selected_in_three_clusters_with_three_namespaces() {
    let port = |port| Some(vec![PortMatch::Range(PortRange::one(Protocol::Tcp, port))]);
    let of = |app: &str| pods(Scope::Own, equals(&[("app", app)]));
    let block = || Who::Block(Block { net: "8.8.8.8/32".parse().unwrap(), except: Vec::new() });
    for (rules, expected) in [
        (vec![rule(vec![of("web")], port(80))], vec!["ingress 10.2.1.1/32 10.3.1.1/32 80/TCP"]),
        (
            vec![rule(vec![of("web")], port(80)), rule(vec![of("other")], port(443))],
            vec![
                "ingress 10.2.1.1/32 10.3.1.1/32 80/TCP",
                "ingress 10.2.1.3/32 10.3.1.3/32 443/TCP",
            ],
        ),
        (
            vec![rule(vec![of("web")], port(80)), rule(vec![block()], port(80))],
            vec!["ingress 10.2.1.1/32 10.3.1.1/32 80/TCP"],
        ),
        (vec![allow(vec![of("none")])], vec![]),
        (vec![allow(vec![of("none")]), allow(vec![block()])], vec![]),
    ] {
        let mut set = set();
        set.put_policy(policy(Some(rules), None), "u");
        populate(&mut set);
        assert_eq!(shown(&set), expected);
    }
    let mut set = set();
    let all = pods(all_namespaces(), Selector::everything());
    set.put_policy(policy(Some(vec![allow(vec![all])]), None), "u");
    populate(&mut set);
    let summary = set.summary(&id()).unwrap().addresses;
    assert_eq!(summary.values().copied().collect::<Vec<_>>(), [9, 9], "none of our own pods");
}

#[test]
fn pod_events_may_repeat() {
    let mut set = set();
    set.put_policy(policy(Some(vec![allow(vec![pods(Scope::Own, web())])]), None), "u");
    let labelled = |app: &str| remote("c2", "n1", "a", "10.2.1.1", &[("app", app)]);
    let mut follow = |pod: Option<RemotePod>, count: usize| {
        match pod {
            Some(pod) => set.put_pod(pod),
            None => set.remove_pod(&labelled("web").id),
        }
        assert_eq!(shown(&set).len(), count);
    };
    follow(None, 0);
    follow(Some(labelled("other")), 0);
    follow(Some(labelled("web")), 1);
    follow(Some(labelled("web")), 1);
    follow(Some(labelled("other")), 0);
    follow(Some(labelled("web")), 1);
    follow(None, 0);
    follow(None, 0);
}

#[test]
fn a_later_policy_matches_current_pods_and_namespaces() {
    let mut set = set();
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[("app", "web")]));
    set.set_namespace(&"c2".into(), &"n1".into(), Some(labels(&[("team", "a")])));
    set.put_pod(remote("c2", "n1", "a", "10.2.1.2", &[("app", "other")]));
    set.set_namespace(&"c2".into(), &"n1".into(), Some(labels(&[("team", "b")])));
    for (team, app, expected) in
        [("a", "web", 0), ("a", "other", 0), ("b", "web", 0), ("b", "other", 1)]
    {
        let who = pods(Scope::Matching(equals(&[("team", team)])), equals(&[("app", app)]));
        set.put_policy(policy(Some(vec![allow(vec![who])]), None), "u");
        assert_eq!(shown(&set).len(), expected, "{team} {app}");
    }
    assert_eq!(shown(&set), ["ingress 10.2.1.2/32 all"]);
}

#[test]
fn a_pod_changes_only_the_policies_that_select_it() {
    let mut set = set();
    for number in 0..50 {
        let who = pods(all_namespaces(), equals(&[("app", &format!("app-{number}"))]));
        let mut one = policy(Some(vec![allow(vec![who])]), None);
        one.id.name = format!("policy-{number}").into();
        set.put_policy(one, &format!("u{number}"));
    }
    set.take_changed();
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[("app", "app-7")]));
    let touched = set.take_changed();
    assert_eq!(touched.keys().map(|id| &*id.name).collect::<Vec<_>>(), ["policy-7"]);
    assert_eq!(touched.values().map(BTreeSet::len).sum::<usize>(), 1);
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[("app", "app-7"), ("noise", "x")]));
    assert!(
        set.take_changed().values().all(BTreeSet::is_empty),
        "the allowed addresses are the same"
    );
}

#[test]
fn all_operators_of_match_expressions_work() {
    let values = |all: &[&str]| all.iter().map(|value| Name::from(*value)).collect();
    let key = || Name::from("app");
    for (requirement, expected) in [
        (Requirement::In(key(), values(&["web", "api"])), "10.2.1.1/32"),
        (Requirement::NotIn(key(), values(&["web", "api"])), "10.2.1.2/32 10.2.1.3/32"),
        (Requirement::Exists(key()), "10.2.1.1/32 10.2.1.2/32"),
        (Requirement::Absent(key()), "10.2.1.3/32"),
    ] {
        let mut set = set();
        let selector: Selector = [requirement.clone()].into_iter().collect();
        let by_pod = allow(vec![pods(Scope::Own, selector)]);
        set.put_policy(policy(Some(vec![by_pod]), None), "u");
        set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[("app", "web")]));
        set.put_pod(remote("c2", "n1", "b", "10.2.1.2", &[("app", "other")]));
        set.put_pod(remote("c2", "n1", "c", "10.2.1.3", &[]));
        assert_eq!(shown(&set), [format!("ingress {expected} all")], "{requirement:?}");
    }
}

#[test]
fn addresses_are_sorted_and_unique_in_any_order_of_events() {
    let addresses = ["10.2.1.10", "10.2.1.9", "fd02::10", "10.2.1.100", "fd02::9", "10.2.1.9"];
    let mut turned = addresses;
    turned.reverse();
    let texts = [addresses, turned].map(|addresses| {
        let mut set = set();
        let twice = vec![pods(Scope::Own, Selector::everything()), pods(all_namespaces(), web())];
        set.put_policy(policy(Some(vec![allow(twice)]), None), "u");
        for (number, address) in addresses.iter().enumerate() {
            let name = format!("pod-{number}");
            set.put_pod(remote("c2", "n1", &name, address, &[("app", "web")]));
        }
        shown(&set)
    });
    assert_eq!(texts[0], texts[1]);
    assert_eq!(
        texts[0],
        [
            "ingress 10.2.1.9/32 10.2.1.10/32 10.2.1.100/32 all",
            "ingress fd02::9/128 fd02::10/128 all"
        ]
    );
}

#[test]
fn an_empty_pod_selector_selects_the_namespace_of_the_same_name_in_every_cluster() {
    let mut set = set();
    let all = pods(Scope::Own, Selector::everything());
    set.put_policy(policy(Some(vec![allow(vec![all])]), None), "u");
    populate(&mut set);
    let networks = ["10.2.1.1", "10.2.1.2", "10.2.1.3", "10.3.1.1", "10.3.1.2", "10.3.1.3"];
    let networks = networks.map(|address| format!("{address}/32")).join(" ");
    assert_eq!(shown(&set), [format!("ingress {networks} all")]);
}

#[test]
fn a_policy_for_one_direction_does_not_isolate_in_the_other() {
    let mut set = set();
    let to = allow(vec![pods(Scope::Own, Selector::everything())]);
    set.put_policy(policy(None, Some(vec![to])), "u");
    set.put_pod(remote("c2", "n1", "a", "10.2.1.1", &[]));
    let all = set.translate(&id());
    assert_eq!(all.len(), 2);
    for one in all {
        assert!(one.rules(Direction::Ingress).is_none(), "{one:?}");
        assert!(one.rules(Direction::Egress).is_some());
    }
}
