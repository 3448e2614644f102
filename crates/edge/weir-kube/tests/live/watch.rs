use std::{net::Ipv4Addr, time::Duration};

use serde_json::json;
use weir_cluster::Cluster;
use weir_kube::RetryPolicy;
use weir_model::{Key, PolicyKind};

use crate::{
    cluster, namespace,
    observer::{self, Observer},
    pod, pod_key, pods_of, policies_of, policy, policy_id, run_pod, running_at,
    snapshot::snapshot,
};

#[test]
fn large_objects_are_parsed_while_they_arrive_or_read_in_small_pages() {
    const COUNT: usize = 26;
    let cluster = Cluster::start().unwrap();
    namespace(&cluster, "large", json!({}));
    let peer = |block: u32| json!({"ipBlock": {"cidr": format!("{}/32", Ipv4Addr::from(block))}});
    let peers: Vec<_> = (0..39_000).map(|number| peer(0x0a00_0000 + number)).collect();
    let policies = (0..COUNT).map(|number| {
        let mut large = policy(&format!("large-{number}"), "p1");
        large["spec"]["ingress"] = json!([{"from": peers}]);
        (policies_of("large"), large)
    });
    cluster.create_all(policies).unwrap();
    let proxy = cluster.fault_proxy().unwrap();
    let large_pages = RetryPolicy { page_size: 500, ..observer::policy() };
    let mut seen = Observer::with(&proxy.access(cluster.admin()), large_pages);
    seen.until_in_sync();
    assert_eq!(seen.world.policies.len(), COUNT);
    let limits = || -> Vec<String> {
        let lists = proxy.requests(|request| request.is_list() && request.is_of("networkpolicies"));
        lists.iter().map(|list| list.query["limit"].clone()).collect()
    };
    assert_eq!(limits(), ["500"]);
    drop(seen);
    // A reader of manifests needs the text of whole pages.
    let manifests = snapshot(&proxy.access(cluster.admin())).unwrap();
    assert_eq!(manifests.objects.policies().count(), COUNT);
    assert_eq!(limits()[1..], ["500", "125", "31", "7", "7", "7", "7"]);
}

#[test]
fn all_objects_are_listed_in_pages() {
    let cluster = cluster();
    namespace(cluster, "pages", json!({"team": "a"}));
    for i in 0..10 {
        run_pod(cluster, "pages", &format!("p{i}"), &format!("10.1.0.{i}"));
    }
    cluster.create(&policies_of("pages"), &policy("lock", "p1")).unwrap();
    let node = json!({
        "metadata": {"name": "pages-node"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    });
    cluster.create("/api/v1/nodes", &node).unwrap();
    cluster.patch("/api/v1/nodes/pages-node/status", &json!({"status": node["status"]})).unwrap();

    let mut seen = Observer::start(cluster.admin());
    seen.until_in_sync();
    let world = &seen.world;
    let pods: Vec<_> = world.pods.values().filter(|pod| &*pod.id.namespace == "pages").collect();
    assert_eq!(pods.len(), 10);
    assert_eq!(pods[3].addresses, ["10.1.0.3".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(pods[3].node.as_deref(), Some("n1"));
    assert_eq!(&pods[3].location, &None);
    let labels = &world.namespaces["pages"].labels;
    assert_eq!(labels.value("team").map(|text| &**text), Some("a"));
    assert_eq!(labels.value("kubernetes.io/metadata.name").map(|text| &**text), Some("pages"));
    let lock = &world.policies[&policy_id(PolicyKind::NetworkPolicy, "pages", "lock")];
    assert_eq!(lock.location, None);
    assert_eq!(world.nodes["pages-node"].addresses.len(), 1);
    assert_eq!((seen.unread, seen.removed), (vec![], vec![]));
}

#[test]
fn changes_arrive_as_events() {
    let cluster = cluster();
    let mut seen = Observer::start(cluster.admin());
    seen.until_in_sync();
    namespace(cluster, "events", json!({"team": "a"}));
    seen.until("the namespace", |seen| seen.world.namespaces.contains_key("events"));
    let team = |seen: &Observer| {
        let namespace = seen.world.namespaces.get("events")?;
        namespace.labels.value("team").map(ToString::to_string)
    };
    assert_eq!(team(&seen).as_deref(), Some("a"));
    let relabel = json!({"metadata": {"labels": {"team": "b"}}});
    cluster.patch("/api/v1/namespaces/events", &relabel).unwrap();
    seen.until("another label", |seen| team(seen).as_deref() == Some("b"));

    let Key::Pod(id) = pod_key("events", "web") else { unreachable!() };
    cluster.create(&pods_of("events"), &pod("web")).unwrap();
    seen.until("the pod", |seen| seen.world.pods.contains_key(&id));
    assert_eq!(seen.world.pods[&id].addresses, [] as [std::net::IpAddr; 0]);
    let path = format!("{}/web", pods_of("events"));
    cluster.patch(&format!("{path}/status"), &running_at("10.2.0.1")).unwrap();
    seen.until("its address", |seen| seen.world.pods[&id].addresses.len() == 1);
    let finished = json!({"status": {"phase": "Succeeded"}});
    cluster.patch(&format!("{path}/status"), &finished).unwrap();
    seen.until("its end", |seen| seen.world.pods[&id].finished);
    cluster.delete(&path).unwrap();
    seen.until("its removal", |seen| !seen.world.pods.contains_key(&id));

    let lock = policy_id(PolicyKind::NetworkPolicy, "events", "lock");
    cluster.create(&policies_of("events"), &policy("lock", "web")).unwrap();
    seen.until("the policy", |seen| seen.world.policies.contains_key(&lock));
    let spec = seen.world.policies[&lock].spec.clone();
    let path = format!("{}/lock", policies_of("events"));
    cluster.patch(&path, &json!({"spec": {"ingress": []}})).unwrap();
    seen.until("another rule", |seen| seen.world.policies[&lock].spec != spec);
    cluster.delete(&path).unwrap();
    seen.until("its removal", |seen| !seen.world.policies.contains_key(&lock));
}

#[test]
fn a_reload_sends_every_object_again_and_removes_nothing() {
    let cluster = cluster();
    namespace(cluster, "again", json!({}));
    run_pod(cluster, "again", "web", "10.3.0.1");
    let mut seen = Observer::start(cluster.admin());
    seen.until_in_sync();
    seen.forget();
    seen.watch.reload();
    let web = pod_key("again", "web");
    seen.until("the pod, again", |seen| seen.put.contains(&web));
    seen.linger(Duration::from_millis(300));
    assert!(!seen.removed.contains(&web));
}
