//! Packets while a part of the ClusterSet is unreachable.

use std::time::Instant;

use serde_json::{Value, json};

use crate::set::{EXPIRED, Set};

fn from_api() -> Value {
    json!({
        "podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "api"}}}]}],
    })
}

pub(crate) fn broker(set: &mut Set) {
    set.west.run_late();
    set.east.policy("db", &from_api());
    set.closes("west/job", "east/db", 80);
    set.opens("west/api", "east/db", 80);
    set.opens("west/late", "east/db", 80);
    set.broker.stop_server();
    // Changes that cannot reach the other cluster.
    set.west.kubectl("delete pod late --wait=false");
    set.west.kubectl("label pod job app=api --overwrite");
    let start_time = Instant::now();
    while start_time.elapsed() < EXPIRED {
        set.is_open("west/api", "east/db", 80);
        set.is_open("west/late", "east/db", 80);
        set.is_closed("west/job", "east/db", 80);
    }
    // Local policies still take effect.
    set.east.policy("web", &json!({"podSelector": {"matchLabels": {"app": "api"}}}));
    set.closes("west/job", "east/web", 80);
    set.east.kubectl("delete csnp web");
    set.opens("west/job", "east/web", 80);
    set.broker.start_server().unwrap();
    set.closes("west/late", "east/db", 80);
    set.opens("west/job", "east/db", 80);
    set.is_open("west/api", "east/db", 80);
    set.west.kubectl("label pod job app=job --overwrite");
    set.closes("west/job", "east/db", 80);
    set.east.kubectl("delete csnp db");
    set.opens("west/job", "east/db", 80);
}

pub(crate) fn member(set: &mut Set) {
    set.east.policy("db", &from_api());
    set.closes("west/job", "east/db", 80);
    set.opens("west/api", "east/db", 80);
    set.west.kill_controller();
    // Its published pods stay until they expire.
    set.is_open("west/api", "east/db", 80);
    set.closes("west/api", "east/db", 80);
    set.is_open("east/web", "east/db", 80);
    let shown = set.east.kubectl("get csnp db -o json");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["spec"], from_api(), "the policy itself is unchanged");
    set.west.start_controller();
    set.opens("west/api", "east/db", 80);
    set.is_closed("west/job", "east/db", 80);
    set.east.kubectl("delete csnp db");
    set.opens("west/job", "east/db", 80);
}
