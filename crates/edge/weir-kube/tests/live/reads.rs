//! What the start of an agent costs the API server and etcd.

use std::time::{Duration, Instant};

use serde_json::json;
use weir_cluster::{Cluster, Options, Programs, ProxyRequest};
use weir_kube::RetryPolicy;

use crate::{namespace, observer::Observer, pod, pods_of};

/// More than a page of a list.
const PODS: usize = 600;
/// The first minor version of Kubernetes with lists as events in its API server's default build.
const WITH_STREAMS: u32 = 32;
/// The first minor version that needs no feature gate for them: in 1.33 they are off by default.
const WITHOUT_GATE: u32 = 34;
/// A range of each of namespaces, nodes, pods and the four kinds of policies, and the definitions of three
/// of these.
const READS: f64 = 10.0;
/// The API server reads etcd for itself at times, so the start with the fewest reads counts.
const STARTS: usize = 5;
/// The longest wait for the watch that follows a list.
const WATCH_TIMEOUT: Duration = Duration::from_secs(30);
/// The most reads of an API server for itself during that start, if it is newer than 1.20.
const MAX_OWN_READS: f64 = 2.0;

/// The reads of etcd since its start.
fn reads(cluster: &Cluster) -> f64 {
    let metrics = cluster.store_metrics().unwrap();
    let value = metrics.lines().find_map(|line| line.strip_prefix("etcd_mvcc_range_total "));
    value.and_then(|value| value.parse().ok()).unwrap()
}

#[test]
fn a_start_reads_one_range_of_etcd_for_each_kind() {
    let minor = Programs::find().unwrap().minor_version().unwrap();
    let has_streams = minor >= WITH_STREAMS;
    let needs_gate = has_streams && minor < WITHOUT_GATE;
    let gate = needs_gate.then(|| "--feature-gates=WatchList=true".to_owned());
    let cluster = Cluster::with(Options { flags: gate.into_iter().collect() }).unwrap();
    namespace(&cluster, "shop", json!({}));
    let create = |number| (pods_of("shop"), pod(&format!("web-{number}")));
    cluster.create_all((0..PODS).map(create)).unwrap();
    let mut fewest = (f64::INFINITY, Vec::new());
    for _ in 0..STARTS {
        let proxy = cluster.fault_proxy().unwrap();
        let before = reads(&cluster);
        let mut agent = Observer::with(&proxy.access(cluster.admin()), RetryPolicy::default());
        agent.until_in_sync();
        assert_eq!(agent.world.pods.len(), PODS);
        let reads = reads(&cluster) - before;
        if reads < fewest.0 {
            fewest = (reads, proxy.requests(|_| true));
        }
        let expected: &[&str] = match has_streams {
            true => &["first page", "list as events"],
            false => &["first page", "whole list from the cache", "watch"],
        };
        // The first refusal counts for all kinds, and can be that of namespaces.
        let counts = |request: &ProxyRequest| has_streams || way(request) != "list as events";
        let of_pods = || proxy.requests(|request| request.is_of("pods") && counts(request));
        let start = Instant::now();
        while of_pods().len() < expected.len() && start.elapsed() < WATCH_TIMEOUT {
            agent.linger(Duration::from_millis(20));
        }
        // Further requests would be too many.
        agent.linger(Duration::from_millis(300));
        let requests = of_pods();
        let sent: Vec<&str> = requests.iter().map(way).collect();
        assert_eq!(sent, expected, "{requests:#?}");
        assert!(!proxy.requests(|request| way(request) == "list as events").is_empty());
    }
    // A newer API server may also answer some requests from its cache.
    let expected = if minor > 20 { 1.0..=READS + MAX_OWN_READS } else { READS..=READS };
    let (reads, requests) = fewest;
    assert!(expected.contains(&reads), "{reads} reads of etcd for {requests:#?}");
}

/// The way in which a request reads a list.
fn way(request: &ProxyRequest) -> &'static str {
    let value = |key: &str| request.query.get(key).map(String::as_str);
    match (value("limit"), value("resourceVersion")) {
        _ if value("continue").is_some() => "next page",
        _ if value("sendInitialEvents").is_some() => "list as events",
        _ if request.is_watch() => "watch",
        (Some("1"), None) => "first page",
        (None, Some("0")) => "whole list from the cache",
        _ => "another list",
    }
}
