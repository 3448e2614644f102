//! Faults of the API server and of the broker: nothing is deleted, the reason is reported, and every
//! change arrives.

use std::sync::OnceLock;

use serde_json::json;

use crate::{
    common::{Maintained, survives_faults},
    fake_member::everyone,
    fixture::{StartOptions, broker, site, start, start_with, unused},
    until,
};

#[test]
fn faults_of_the_api_server_and_the_broker_delete_nothing_and_lose_nothing() {
    let broker = broker();
    let (north, south) = (site("north", 1), site("south", 2));
    let (own, remote) = (north.cluster.fault_proxy().unwrap(), broker.fault_proxy().unwrap());
    let _source = start(&south, &broker, broker.admin(), "south");
    let namespace = unused("faults");
    for site in [&north, &south] {
        site.namespace(&namespace, json!({}));
    }
    north.policy(&namespace, "everyone", everyone());
    south.pod(&namespace, "a", "web", &["10.2.1.1"]);
    let allows = |address: &str| {
        north.allowed(&namespace).iter().any(|one| one.ends_with(&format!(" {address}/32")))
    };
    // The base isolates the pods, and has no remote addresses.
    let base_uid = || {
        let mut all = north.network_policies(&namespace).into_iter();
        let base = all.find(|policy| !policy["spec"].to_string().contains("ipBlock"))?;
        Some(base["metadata"]["uid"].clone())
    };
    let first = OnceLock::new();
    // The broker behind a proxy has another URL, so that the faults of both are separate.
    let access = remote.access(broker.admin());
    survives_faults(&[&own, &remote], |policy, lease| {
        let proxy = Some(own.access(broker.admin()).url);
        let options = StartOptions { proxy, namespace: lease, policy, ..StartOptions::default() };
        let process = start_with(&north, &broker, &access, "north", options);
        until("the pod is allowed", || allows("10.2.1.1"));
        let first = first.get_or_init(base_uid);
        assert!(first.is_some());
        Maintained {
            process,
            state: || allows("10.2.1.1") && base_uid() == *first,
            change: |number| {
                south.pod(
                    &namespace,
                    &format!("late-{number}"),
                    "web",
                    &[&format!("10.2.3.{number}")],
                );
            },
            has_arrived: |number| allows(&format!("10.2.3.{number}")),
        }
    });
}
