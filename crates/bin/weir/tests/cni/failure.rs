//! An agent that is unreachable, slow, or does not know the pod.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    node::{Node, WAIT_TIMEOUT},
    runtime::{Refusal, Sandbox},
};

#[track_caller]
fn refused(result: Result<Value, Refusal>, reason: &str) {
    let refusal = result.unwrap_err();
    assert_eq!(refusal["code"], 11, "{refusal}");
    let details = refusal["details"].as_str().unwrap();
    assert!(details.contains(reason), "{details}");
}

pub(crate) fn no_agent() {
    let node = Node::new();
    let sandbox = Sandbox::new("db", "u1");
    let runtime = node.ptp(5, 5, &[("timeout", 0.5.into())]);
    let start_time = Instant::now();
    refused(runtime.add(&node.lab, &sandbox), "No such file or directory");
    assert!(start_time.elapsed() > Duration::from_millis(400), "it may come back");
    let allowing = node.ptp(5, 5, &[("timeout", 0.5.into()), ("onFailure", "allow".into())]);
    allowing.add(&node.lab, &sandbox).unwrap();
    allowing.del(&node.lab, &sandbox).unwrap();
}

pub(crate) fn stopped() {
    let node = Node::new();
    node.database("db", "u1", None);
    let runtime = node.ptp(5, 5, &[("timeout", 1.into())]);
    let agent = node.agent(&runtime);
    agent.signal("STOP");
    let sandbox = Sandbox::new("db", "u1");
    let start_time = Instant::now();
    let refusal = runtime.add(&node.lab, &sandbox).unwrap_err();
    assert_eq!(refusal["code"], 11, "{refusal}");
    assert!(start_time.elapsed() < WAIT_TIMEOUT, "{:?}", start_time.elapsed());
    agent.signal("CONT");
    runtime.add(&node.lab, &sandbox).unwrap();
    runtime.del(&node.lab, &sandbox).unwrap();
}

pub(crate) fn restarted() {
    let node = Node::new();
    node.database("db", "u1", None);
    let runtime = node.ptp(5, 5, &[("timeout", 20.into())]);
    drop(node.agent(&runtime));
    let sandbox = Sandbox::new("db", "u1");
    thread::scope(|scope| {
        let adding = scope.spawn(|| runtime.add(&node.lab, &sandbox));
        thread::sleep(Duration::from_millis(500));
        let _agent = node.agent(&runtime);
        adding.join().unwrap().unwrap();
    });
}

pub(crate) fn late() {
    let node = Node::new();
    let brief = node.ptp(5, 5, &[("timeout", 4.into())]);
    let _agent = node.agent(&brief);
    let sandbox = Sandbox::new("db", "u1");
    refused(brief.add(&node.lab, &sandbox), "the source does not have it on this node");
    let patient = node.ptp(5, 5, &[("timeout", 20.into())]);
    thread::scope(|scope| {
        let adding = scope.spawn(|| patient.add(&node.lab, &sandbox));
        thread::sleep(Duration::from_millis(500));
        assert!(!adding.is_finished());
        node.database("db", "u1", None);
        adding.join().unwrap().unwrap();
    });
}

pub(crate) fn recreated() {
    let node = Node::new();
    let runtime = node.ptp(5, 9, &[("timeout", 4.into())]);
    node.database("db", "old", Some([10, 23, 0, 99].into()));
    let _agent = node.agent(&runtime);
    let new = Sandbox::new("db", "new");
    refused(runtime.add(&node.lab, &new), "the source still has an older pod of this name");
    let patient = node.ptp(5, 9, &[("timeout", 20.into())]);
    node.database("db", "new", None);
    patient.add(&node.lab, &new).unwrap();
}
