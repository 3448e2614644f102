//! The API server goes away and comes back.

use std::time::Duration;

use serde_json::json;
use weir_cluster::Cluster;
use weir_kube::RetryPolicy;

use crate::{
    namespace,
    observer::{Observer, pace},
    pod_key, pods_of, run_pod,
};

fn shop(cluster: &Cluster) {
    namespace(cluster, "shop", json!({}));
    for i in 0..5 {
        run_pod(cluster, "shop", &format!("p{i}"), &format!("10.0.0.{i}"));
    }
}

#[test]
fn what_was_there_stays_while_the_api_server_is_down_and_news_come_when_it_is_back() {
    let mut cluster = Cluster::start().unwrap();
    shop(&cluster);
    let mut seen = Observer::start(cluster.admin());
    seen.until_in_sync();
    seen.forget();
    cluster.stop_server();
    seen.until("trouble", |seen| !seen.unread.is_empty());
    assert!(seen.unread[0].message.contains("cannot reach the API server"), "{:?}", seen.unread);
    seen.linger(Duration::from_secs(3));
    assert_eq!((&seen.removed[..], seen.in_sync), (&[][..], true));
    cluster.start_server().unwrap();
    cluster.delete(&format!("{}/p0", pods_of("shop"))).unwrap();
    run_pod(&cluster, "shop", "late", "10.0.0.9");
    let (gone, late) = (pod_key("shop", "p0"), pod_key("shop", "late"));
    seen.until("news", |seen| seen.removed.contains(&gone) && seen.put.contains(&late));
    seen.until("calm", |seen| seen.unread.is_empty());
    seen.linger(Duration::from_millis(300));
    assert_eq!(seen.removed, [gone], "and nothing else");
}

#[test]
fn a_watch_from_too_long_ago_begins_anew_and_only_differences_are_told() {
    let mut cluster = Cluster::start().unwrap();
    shop(&cluster);
    let gate = cluster.gate().unwrap();
    let mut seen = Observer::start(&cluster.admin().through(gate.address()));
    seen.until_in_sync();
    gate.shut();
    seen.until("trouble", |seen| !seen.unread.is_empty());
    seen.forget();
    // While nobody looks, one goes and one comes; then all memory of it is lost.
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
    assert!(!seen.put.contains(&pod_key("shop", "p1")), "what is as it was is not told again");
}

#[test]
fn a_network_that_swallows_everything_is_noticed() {
    let cluster = Cluster::start().unwrap();
    shop(&cluster);
    let gate = cluster.gate().unwrap();
    let pace = RetryPolicy { watch_silence: Duration::from_secs(8), ..pace() };
    let mut seen = Observer::with(&cluster.admin().through(gate.address()), pace);
    seen.until_in_sync();
    gate.silence();
    seen.until("trouble", |seen| !seen.unread.is_empty());
    run_pod(&cluster, "shop", "late", "10.0.0.9");
    gate.open();
    let late = pod_key("shop", "late");
    seen.until("news", |seen| seen.put.contains(&late) && seen.unread.is_empty());
    assert_eq!(seen.removed, []);
}
