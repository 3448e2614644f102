//! Faults between the agent's source and a real API server.

use std::time::Duration;

use serde_json::{Value, json};
use weir_cluster::{Cluster, Fault};
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

#[test]
fn broken_responses_remove_nothing_and_lose_nothing() {
    let cluster = Cluster::start().unwrap();
    namespace(&cluster, "shop", json!({}));
    for index in 0..5 {
        run_pod(&cluster, "shop", &format!("p{index}"), &format!("10.0.0.{index}"));
    }
    let proxy = cluster.fault_proxy().unwrap();
    let mut seen = Observer::start(&proxy.access(cluster.admin()));
    seen.until_in_sync();
    seen.forget();
    let without_version: fn(&mut Value) = |list| {
        list["items"] = json!([]);
        list["metadata"] = json!({});
    };
    let without_items: fn(&mut Value) = |list| {
        list.as_object_mut().and_then(|fields| fields.remove("items"));
    };
    for (index, fault) in [
        Fault::Edit(without_version),
        Fault::Edit(without_items),
        Fault::Cut,
        Fault::Answer(200, "<html></html>".into()),
        Fault::Answer(404, "404 page not found".into()),
        Fault::Answer(503, r#"{"kind":"Status","code":503,"message":"overloaded"}"#.into()),
    ]
    .into_iter()
    .enumerate()
    {
        let chosen = fault.clone();
        proxy.inject(move |request| (!request.is_watch()).then(|| chosen.clone()));
        proxy.cut();
        seen.until("a report", |seen| !seen.unread.is_empty());
        let name = format!("while-{index}");
        cluster.create(&policies_of("shop"), &network_policy(&name, "p1")).unwrap();
        seen.linger(Duration::from_millis(500));
        assert_eq!(seen.removed, [], "{fault:?}");
        proxy.heal();
        seen.until("the new policy", |seen| {
            seen.world.policies.keys().any(|id| *id.name == *name) && seen.unread.is_empty()
        });
        assert_eq!(seen.removed, [], "{fault:?}");
    }
}

#[test]
fn watches_that_deliver_nothing_are_noticed() {
    let cluster = Cluster::start().unwrap();
    namespace(&cluster, "shop", json!({}));
    let proxy = cluster.fault_proxy().unwrap();
    let access = proxy.access(cluster.admin());
    for (index, fault) in
        [Fault::Silence, Fault::Trickle(Duration::from_millis(50))].into_iter().enumerate()
    {
        let chosen = fault.clone();
        proxy.inject(move |request| request.is_watch().then(|| chosen.clone()));
        let quick = RetryPolicy { watch_silence: Duration::from_secs(4), ..policy() };
        let mut seen = Observer::with(&access, quick);
        seen.until_in_sync();
        let name = format!("late-{index}");
        run_pod(&cluster, "shop", &name, "10.0.0.9");
        seen.until("a report", |seen| {
            let is_it = |message: &str| message.contains("delivered nothing for 4 s");
            seen.unread.iter().any(|finding| is_it(&finding.message))
        });
        let late = pod_key("shop", &name);
        seen.until("a list", |seen| seen.put.contains(&late));
        proxy.heal();
        seen.until("a working watch", |seen| seen.unread.is_empty());
    }
    // The watch seems to work, and events are missing.
    proxy.inject(|request| request.is_watch().then_some(Fault::DropEvents));
    let comparing = RetryPolicy { comparison_interval: Duration::from_secs(3), ..policy() };
    let mut seen = Observer::with(&access, comparing);
    seen.until_in_sync();
    run_pod(&cluster, "shop", "lost", "10.0.0.8");
    let lost = pod_key("shop", "lost");
    seen.until("the comparison", |seen| seen.put.contains(&lost));
    assert_eq!(seen.unread, []);
}
