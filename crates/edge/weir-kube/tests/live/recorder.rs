//! Events about objects.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_cluster::{Cluster, Right};
use weir_kube::{Access, EventType, NewEvent, Recorder};

use crate::{cluster, namespace, policies_of, policy};

const RIGHT: Right = Right { group: "", resources: &["events"], verbs: &["create", "patch"] };

fn start(access: &weir_cluster::Access, instance: &str) -> Recorder {
    let folder = tempfile::tempdir().unwrap().keep();
    let kubeconfig = access.write_kubeconfig(&folder).unwrap();
    Recorder::start(Access::new(Some(&kubeconfig), None), "weir-test", instance).unwrap()
}

fn event(namespace: &str, name: &str, message: &str) -> NewEvent {
    let regarding = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "namespace": namespace,
        "name": name,
    });
    NewEvent {
        regarding: serde_json::from_value(regarding).unwrap(),
        kind: EventType::Warning,
        reason: "Invalid".into(),
        message: message.into(),
    }
}

fn events(cluster: &Cluster, namespace: &str) -> Vec<Value> {
    let list = cluster.get(&format!("/api/v1/namespaces/{namespace}/events")).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Waits until the Events of a namespace meet a condition, and returns them.
fn until(cluster: &Cluster, namespace: &str, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let events = events(cluster, namespace);
        if holds(&events) {
            return events;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{events:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn two_processes_share_one_event_and_count_it() {
    let cluster = cluster();
    namespace(cluster, "recorded", json!({}));
    cluster.create(&policies_of("recorded"), &policy("lock", "web")).unwrap();
    // Exactly the documented permissions.
    let user = cluster.user("reporter", &[RIGHT]).unwrap();
    let (first, second) = (start(&user, "n1"), start(&user, "n2"));
    first.publish(event("recorded", "lock", "nonsense"));
    let seen = until(cluster, "recorded", |events| events.len() == 1);
    assert_eq!(seen[0]["involvedObject"]["name"], "lock");
    assert_eq!((&seen[0]["type"], &seen[0]["reason"]), (&json!("Warning"), &json!("Invalid")));
    assert_eq!((&seen[0]["message"], &seen[0]["count"]), (&json!("nonsense"), &json!(1)));
    assert_eq!(seen[0]["source"], json!({"component": "weir-test", "host": "n1"}));
    first.publish(event("recorded", "lock", "nonsense"));
    second.publish(event("recorded", "lock", "nonsense"));
    second.publish(event("recorded", "lock", &"long ".repeat(1000)));
    let seen = until(cluster, "recorded", |events| {
        events.len() == 2 && events.iter().any(|event| event["count"] == 2)
    });
    let long = seen.iter().find(|event| event["count"] == 1).unwrap();
    assert_eq!(long["message"].as_str().unwrap().len(), 1024);

    // An Event that the API server has deleted is created again.
    let counted = seen.iter().find(|event| event["count"] == 2).unwrap();
    let name = counted["metadata"]["name"].as_str().unwrap();
    cluster.delete(&format!("/api/v1/namespaces/recorded/events/{name}")).unwrap();
    first.publish(event("recorded", "lock", "nonsense"));
    until(cluster, "recorded", |events| {
        events.iter().any(|event| event["message"] == "nonsense" && event["count"] == 1)
    });
}

#[test]
fn events_that_fail_delay_no_others() {
    let cluster = cluster();
    namespace(cluster, "delayed", json!({}));
    let user = cluster.user("forbidden", &[]).unwrap();
    let forbidden = start(&user, "n1");
    for i in 0..5000 {
        forbidden.publish(event("delayed", "lock", &i.to_string()));
    }
    let gate = cluster.gate().unwrap();
    gate.shut();
    let user = cluster.user("patient", &[RIGHT]).unwrap();
    let patient = start(&user.through(gate.address()), "n1");
    // The namespace does not exist, so that the API server rejects this Event.
    patient.publish(event("nowhere", "lock", "lost"));
    patient.publish(event("delayed", "lock", "late"));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(events(cluster, "delayed"), [] as [Value; 0]);
    gate.open();
    let seen = until(cluster, "delayed", |events| !events.is_empty());
    assert_eq!((seen.len(), &seen[0]["message"]), (1, &json!("late")));
}
