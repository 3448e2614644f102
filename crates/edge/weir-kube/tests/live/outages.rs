//! The API server becomes unreachable and returns.

use std::time::Duration;

use serde_json::json;
use weir_cluster::Cluster;
use weir_kube::RetryPolicy;

use crate::{
    namespace,
    observer::{Observer, policy},
    pod_key, pods_of, run_pod,
};

fn shop(cluster: &Cluster) {
    namespace(cluster, "shop", json!({}));
    for i in 0..5 {
        run_pod(cluster, "shop", &format!("p{i}"), &format!("10.0.0.{i}"));
    }
}

#[test]
fn an_outage_removes_nothing_and_differences_arrive_afterwards() {
    let mut cluster = Cluster::start().unwrap();
    shop(&cluster);
    let mut seen = Observer::start(cluster.admin());
    seen.until_in_sync();
    seen.forget();
    cluster.stop_server();
    seen.until("a problem", |seen| !seen.unread.is_empty());
    assert!(seen.unread[0].message.contains("cannot reach the API server"), "{:?}", seen.unread);
    seen.linger(Duration::from_secs(3));
    assert_eq!((&seen.removed[..], seen.in_sync), (&[][..], true));
    cluster.start_server().unwrap();
    cluster.delete(&format!("{}/p0", pods_of("shop"))).unwrap();
    run_pod(&cluster, "shop", "late", "10.0.0.9");
    let (gone, late) = (pod_key("shop", "p0"), pod_key("shop", "late"));
    seen.until("the changes", |seen| seen.removed.contains(&gone) && seen.put.contains(&late));
    seen.until("no problem", |seen| seen.unread.is_empty());
    seen.linger(Duration::from_millis(300));
    assert_eq!(seen.removed, [gone], "only the deleted pod");
}

#[test]
fn an_expired_watch_leads_to_a_list_and_only_differences_are_sent() {
    let mut cluster = Cluster::start().unwrap();
    shop(&cluster);
    let gate = cluster.gate().unwrap();
    let mut seen = Observer::start(&cluster.admin().through(gate.address()));
    seen.until_in_sync();
    gate.shut();
    seen.until("a problem", |seen| !seen.unread.is_empty());
    seen.forget();
    // One pod is deleted and one is created, and compaction removes the events.
    cluster.delete(&format!("{}/p0", pods_of("shop"))).unwrap();
    run_pod(&cluster, "shop", "late", "10.0.0.9");
    cluster.compact().unwrap();
    cluster.start_server().unwrap();
    seen.linger(Duration::from_millis(500));
    assert_eq!((&seen.put[..], &seen.removed[..]), (&[][..], &[][..]));
    gate.open();
    let (gone, late) = (pod_key("shop", "p0"), pod_key("shop", "late"));
    seen.until("the differences", |seen| {
        seen.removed.contains(&gone) && seen.put.contains(&late) && seen.unread.is_empty()
    });
    seen.linger(Duration::from_millis(300));
    assert_eq!(seen.removed, [gone]);
    assert!(!seen.put.contains(&pod_key("shop", "p1")), "unchanged objects are not sent again");
}

#[test]
fn a_network_that_drops_everything_is_reported() {
    let cluster = Cluster::start().unwrap();
    shop(&cluster);
    let gate = cluster.gate().unwrap();
    let policy = RetryPolicy { watch_silence: Duration::from_secs(8), ..policy() };
    let mut seen = Observer::with(&cluster.admin().through(gate.address()), policy);
    seen.until_in_sync();
    gate.silence();
    seen.until("a problem", |seen| !seen.unread.is_empty());
    run_pod(&cluster, "shop", "late", "10.0.0.9");
    gate.open();
    let late = pod_key("shop", "late");
    seen.until("the changes", |seen| seen.put.contains(&late) && seen.unread.is_empty());
    assert_eq!(seen.removed, []);
}
