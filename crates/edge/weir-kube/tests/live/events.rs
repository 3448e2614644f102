//! What is said about objects.

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

fn note(namespace: &str, name: &str, message: &str) -> NewEvent {
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

/// The Events of a namespace once they are as they should be.
fn until(cluster: &Cluster, namespace: &str, what: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let events = events(cluster, namespace);
        if what(&events) {
            return events;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{events:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_same_is_one_event_whoever_says_it_and_is_counted() {
    let cluster = cluster();
    namespace(cluster, "noted", json!({}));
    cluster.create(&policies_of("noted"), &policy("lock", "web")).unwrap();
    // Exactly the rights that the documentation asks for.
    let user = cluster.user("reporter", &[RIGHT]).unwrap();
    let (first, second) = (start(&user, "n1"), start(&user, "n2"));
    first.publish(note("noted", "lock", "nonsense"));
    let seen = until(cluster, "noted", |events| events.len() == 1);
    assert_eq!(seen[0]["involvedObject"]["name"], "lock");
    assert_eq!((&seen[0]["type"], &seen[0]["reason"]), (&json!("Warning"), &json!("Invalid")));
    assert_eq!((&seen[0]["message"], &seen[0]["count"]), (&json!("nonsense"), &json!(1)));
    assert_eq!(seen[0]["source"], json!({"component": "weir-test", "host": "n1"}));
    first.publish(note("noted", "lock", "nonsense"));
    second.publish(note("noted", "lock", "nonsense"));
    second.publish(note("noted", "lock", &"long ".repeat(1000)));
    let seen = until(cluster, "noted", |events| {
        events.len() == 2 && events.iter().any(|event| event["count"] == 2)
    });
    let long = seen.iter().find(|event| event["count"] == 1).unwrap();
    assert_eq!(long["message"].as_str().unwrap().len(), 1024);

    // What the API server has forgotten is said again.
    let counted = seen.iter().find(|event| event["count"] == 2).unwrap();
    let name = counted["metadata"]["name"].as_str().unwrap();
    cluster.delete(&format!("/api/v1/namespaces/noted/events/{name}")).unwrap();
    first.publish(note("noted", "lock", "nonsense"));
    until(cluster, "noted", |events| {
        events.iter().any(|event| event["message"] == "nonsense" && event["count"] == 1)
    });
}

#[test]
fn what_cannot_be_said_stops_nobody() {
    let cluster = cluster();
    namespace(cluster, "heard", json!({}));
    let mute = cluster.user("mute", &[]).unwrap();
    let mute = start(&mute, "n1");
    for i in 0..5000 {
        mute.publish(note("heard", "lock", &i.to_string()));
    }
    let gate = cluster.gate().unwrap();
    gate.shut();
    let user = cluster.user("patient", &[RIGHT]).unwrap();
    let patient = start(&user.through(gate.address()), "n1");
    // There is no such namespace, which is nobody's fault but the note's.
    patient.publish(note("nowhere", "lock", "lost"));
    patient.publish(note("heard", "lock", "late"));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(events(cluster, "heard"), [] as [Value; 0]);
    gate.open();
    let seen = until(cluster, "heard", |events| !events.is_empty());
    assert_eq!((seen.len(), &seen[0]["message"]), (1, &json!("late")));
}
