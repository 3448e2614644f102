//! Faults between the agent's source and a real API server.

use std::{thread, time::Duration};

use serde_json::json;
use weir_cluster::{Cluster, FaultCase, FaultSubject};
use weir_kube::RetryPolicy;

use crate::{
    namespace,
    observer::{Observer, policy},
    pod_key, policies_of, policy as network_policy, run_pod,
};

#[test]
fn a_restored_etcd_is_followed_when_the_api_server_is_back() {
    let mut cluster = Cluster::start().unwrap();
    namespace(&cluster, "shop", json!({}));
    run_pod(&cluster, "shop", "kept", "10.0.0.1");
    let backup = cluster.back_up().unwrap();
    run_pod(&cluster, "shop", "undone", "10.0.0.2");
    // So many versions that the API server does not reach them again during the test.
    let path = "/api/v1/namespaces/shop/configmaps";
    let fill = |index: usize| (path.into(), json!({"metadata": {"name": format!("fill-{index}")}}));
    cluster.create_all((0..1000).map(fill)).unwrap();
    run_pod(&cluster, "shop", "also-undone", "10.0.0.3");
    // Not by the silence of the watch.
    let patient = RetryPolicy { watch_silence: Duration::from_secs(600), ..policy() };
    let mut seen = Observer::with(cluster.admin(), patient);
    seen.until_in_sync();
    seen.forget();
    cluster.restore(&backup).unwrap();
    run_pod(&cluster, "shop", "late", "10.0.0.4");
    let undone = [pod_key("shop", "undone"), pod_key("shop", "also-undone")];
    let late = pod_key("shop", "late");
    seen.until("the restored state", |seen| {
        undone.iter().all(|pod| seen.removed.contains(pod)) && seen.put.contains(&late)
    });
    assert!(!seen.removed.contains(&pod_key("shop", "kept")));
    seen.until("no problem", |seen| seen.unread.is_empty());
    run_pod(&cluster, "shop", "later", "10.0.0.5");
    let later = pod_key("shop", "later");
    seen.until("an event", |seen| seen.put.contains(&later));
}

/// The agent's source behind a proxy.
struct Source<'c> {
    seen: Observer,
    cluster: &'c Cluster,
    namespace: &'static str,
}

impl FaultSubject for Source<'_> {
    fn unready_reasons(&mut self) -> String {
        self.seen.linger(Duration::ZERO);
        let messages = self.seen.unread.iter().map(|finding| &*finding.message);
        messages.collect::<Vec<_>>().join("\n")
    }

    fn is_intact(&mut self) -> bool {
        self.seen.linger(Duration::ZERO);
        self.seen.removed.is_empty()
    }

    fn change(&mut self, number: usize) {
        let policy = network_policy(&format!("late-{number}"), "p1");
        self.cluster.create(&policies_of(self.namespace), &policy).unwrap();
    }

    fn has_arrived(&mut self, number: usize) -> bool {
        self.seen.linger(Duration::ZERO);
        let name = format!("late-{number}");
        let mut ids = self.seen.world.policies.keys();
        ids.any(|id| *id.namespace == *self.namespace && *id.name == *name)
    }
}

/// Follows a cluster through faults, in a namespace of its own.
fn survives(cluster: &Cluster, namespace: &'static str, cases: &[FaultCase], policy: RetryPolicy) {
    self::namespace(cluster, namespace, json!({}));
    for index in 0..5 {
        run_pod(cluster, namespace, &format!("p{index}"), &format!("10.0.0.{index}"));
    }
    let proxy = cluster.fault_proxy().unwrap();
    let mut seen = Observer::with(&proxy.access(cluster.admin()), policy);
    seen.until_in_sync();
    seen.forget();
    let mut source = Source { seen, cluster, namespace };
    for (number, case) in cases.iter().enumerate() {
        case.check(number, &[&proxy], &mut source);
    }
}

#[test]
fn faults_of_the_api_server_remove_nothing_and_lose_nothing() {
    let cluster = Cluster::start().unwrap();
    let impatient = RetryPolicy { watch_silence: Duration::from_secs(4), ..policy() };
    let comparing = RetryPolicy { comparison_interval: Duration::from_secs(2), ..policy() };
    thread::scope(|scope| {
        let cluster = &cluster;
        let running = [
            scope.spawn(|| survives(cluster, "answers", FaultCase::BROKEN_ANSWERS, policy())),
            scope.spawn(|| survives(cluster, "silence", &[FaultCase::SILENT_WATCHES], impatient)),
            scope.spawn(|| survives(cluster, "losses", &[FaultCase::LOST_EVENTS], comparing)),
        ];
        running.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
