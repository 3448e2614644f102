//! The pods that a cluster publishes.

use super::*;

fn local(name: &str, address: &str) -> Pod {
    Pod {
        id: PodId::new("n1", name),
        labels: labels(&[("app", "web"), ("submariner-io/clusterID", "forged")]),
        addresses: address.parse().into_iter().collect(),
        node: None,
        ports: Vec::new(),
        host_network: false,
        finished: false,
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    }
}

#[test]
fn only_pods_with_an_address_that_another_cluster_selects_are_published() {
    let mut own = Publication::new("c1".into(), Selector::everything());
    own.put_namespace(&Namespace {
        name: "n1".into(),
        labels: labels(&[("team", "a")]),
        location: None,
    });
    own.put_pod(&local("web", "10.1.1.1"));
    own.put_pod(&local("no-address", ""));
    own.put_pod(&Pod { host_network: true, ..local("host", "192.168.0.1") });
    own.put_pod(&Pod { finished: true, ..local("finished", "10.1.1.3") });
    assert_eq!(own.take_changed().0.len(), 0, "no cluster is interested");
    let interest = Interest { reach: Reach::Named("n1".into()), pods: equals(&[("app", "web")]) };
    own.set_interests(&"c2".into(), BTreeSet::from([interest.clone()]));
    own.set_interests(&"c3".into(), BTreeSet::from([interest]));
    let (pods, namespaces) = own.take_changed();
    assert_eq!(pods, BTreeSet::from([PodId::new("n1", "web")]));
    assert_eq!(namespaces, BTreeSet::from([Name::from("n1")]));
    let published = own.pod(&PodId::new("n1", "web")).unwrap();
    assert_eq!(published.labels.to_string(), "app=web", "reserved labels are not published");
    assert!(own.namespace(&"n1".into()).is_some());
    own.set_interests(&"c2".into(), BTreeSet::new());
    assert_eq!(own.take_changed().0.len(), 0, "the other cluster is still interested");
    own.set_interests(&"c3".into(), BTreeSet::new());
    assert_eq!(own.take_changed().0.len(), 1);
    assert!(own.pod(&PodId::new("n1", "web")).is_none());
    assert!(own.namespace(&"n1".into()).is_none());
}

#[test]
fn a_finished_pod_is_no_longer_published() {
    let mut own = Publication::new("c1".into(), Selector::everything());
    let everything =
        Interest { reach: Reach::Matching(Selector::everything()), pods: Selector::everything() };
    own.set_interests(&"c2".into(), BTreeSet::from([everything]));
    own.put_pod(&local("web", "10.1.1.1"));
    assert!(own.pod(&PodId::new("n1", "web")).is_some());
    own.put_pod(&Pod { finished: true, ..local("web", "10.1.1.1") });
    assert!(own.pod(&PodId::new("n1", "web")).is_none());
}

#[test]
fn an_address_is_published_for_the_pod_with_the_strongest_claim() {
    let mut own = Publication::new("c1".into(), Selector::everything());
    let everything =
        Interest { reach: Reach::Matching(Selector::everything()), pods: Selector::everything() };
    own.set_interests(&"c2".into(), BTreeSet::from([everything]));
    let published = |own: &Publication, name: &str| -> Vec<String> {
        let pod = own.pod(&PodId::new("n1", name));
        pod.iter().flat_map(|pod| &pod.addresses).map(ToString::to_string).collect()
    };
    let old = Pod {
        addresses: vec!["10.1.1.1".parse().unwrap(), "fd01::1".parse().unwrap()],
        claim: Claim::Terminating,
        ..local("old", "")
    };
    let new = local("new", "10.1.1.1");
    // In either order.
    for order in [[&old, &new], [&new, &old]] {
        order.into_iter().for_each(|pod| own.put_pod(pod));
        assert_eq!(published(&own, "new"), ["10.1.1.1"]);
        assert_eq!(
            published(&own, "old"),
            ["fd01::1"],
            "it keeps the address that no other pod claims"
        );
        own.remove_pod(&new.id);
        assert_eq!(published(&own, "old"), ["10.1.1.1", "fd01::1"]);
        own.remove_pod(&old.id);
        assert_eq!(published(&own, "old"), [""; 0]);
    }
    own.put_pod(&old);
    own.put_pod(&new);
    own.take_changed();
    own.put_pod(&Pod { finished: true, ..new });
    assert_eq!(own.take_changed().0.len(), 2, "both are published again");
    assert_eq!(published(&own, "old"), ["10.1.1.1", "fd01::1"]);
}

#[test]
fn a_contested_address_is_not_published() {
    let mut own = Publication::new("c1".into(), Selector::everything());
    let everything =
        Interest { reach: Reach::Matching(Selector::everything()), pods: Selector::everything() };
    own.set_interests(&"c2".into(), BTreeSet::from([everything]));
    own.put_pod(&local("web", "10.1.1.1"));
    own.put_pod(&local("thief", "10.1.1.1"));
    assert!(own.pod(&PodId::new("n1", "web")).is_none());
    assert!(own.pod(&PodId::new("n1", "thief")).is_none());
    own.remove_pod(&PodId::new("n1", "thief"));
    assert!(own.pod(&PodId::new("n1", "web")).is_some());
}

#[test]
fn only_pods_of_namespaces_that_the_owner_selects_are_published() {
    let selector = Selector::from_iter([
        Requirement::equals("publish", "yes"),
        Requirement::NotIn("private".into(), BTreeSet::from(["true".into()])),
    ]);
    let mut own = Publication::new("c1".into(), selector);
    let everything =
        Interest { reach: Reach::Matching(Selector::everything()), pods: Selector::everything() };
    let by_name = Interest { reach: Reach::Named("n1".into()), pods: Selector::everything() };
    own.set_interests(&"c2".into(), BTreeSet::from([everything, by_name]));
    let web = PodId::new("n1", "web");
    let put = |own: &mut Publication, pairs: &[(&str, &str)]| {
        own.put_namespace(&Namespace { name: "n1".into(), labels: labels(pairs), location: None });
        let changed = own.take_changed();
        let is_published = own.pod(&web).is_some();
        assert_eq!(own.namespace(&"n1".into()).is_some(), is_published);
        assert_eq!(own.pods_of(&"n1".into()).count(), usize::from(is_published));
        (is_published, changed.0.len())
    };
    own.put_pod(&local("web", "10.1.1.1"));
    assert!(own.pod(&web).is_none(), "the labels of the namespace are unknown");
    assert_eq!(put(&mut own, &[]), (false, 0));
    assert_eq!(put(&mut own, &[("publish", "yes")]), (true, 1));
    assert_eq!(put(&mut own, &[("publish", "yes"), ("team", "a")]), (true, 0));
    assert_eq!(put(&mut own, &[("publish", "yes"), ("private", "true")]), (false, 1));
    own.put_pod(&local("web", "10.1.1.2"));
    assert_eq!(own.take_changed().0.len(), 0, "changes of other pods are not published");
    assert_eq!(put(&mut own, &[("publish", "yes")]), (true, 1));
    own.remove_namespace(&"n1".into());
    assert_eq!((own.take_changed().0.len(), own.pod(&web)), (1, None));
}
