//! Broken responses of the API server and of the broker.

use serde_json::json;

use crate::{
    common::survives_broken_lists,
    fake_member::everyone,
    fixture::{StartOptions, broker, site, start, start_with, unused},
    until,
};

#[test]
fn a_response_that_is_not_a_list_deletes_no_policy_and_no_address() {
    let broker = broker();
    let (north, south) = (site("north", 1), site("south", 2));
    let (own, remote) = (north.cluster.fault_proxy().unwrap(), broker.fault_proxy().unwrap());
    let options =
        StartOptions { proxy: Some(own.access(broker.admin()).url), ..StartOptions::default() };
    // The broker behind a proxy has another URL, so that its faults are separate.
    let access = remote.access(broker.admin());
    let process = start_with(&north, &broker, &access, "north", options);
    let _source = start(&south, &broker, broker.admin(), "south");
    let namespace = unused("faults");
    for site in [&north, &south] {
        site.namespace(&namespace, json!({}));
    }
    north.policy(&namespace, "everyone", everyone());
    south.pod(&namespace, "a", "web", &["10.2.1.1"]);
    until("the pod is allowed", || north.allowed(&namespace).len() == 1);
    let uids = || -> Vec<String> {
        let all = north.network_policies(&namespace);
        all.iter().map(|one| one["metadata"]["uid"].to_string()).collect()
    };
    let before = uids();
    let is_unchanged = || uids() == before && north.allowed(&namespace).len() == 1;
    for proxy in [&own, &remote] {
        survives_broken_lists(proxy, &process, is_unchanged);
    }
}
