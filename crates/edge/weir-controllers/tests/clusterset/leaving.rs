//! A cluster leaves the set.

use std::time::{Duration, Instant};

use serde_json::json;
use weir_controllers::clusterset::{Departure, Removed, leave};
use weir_kube::ObjectId;

use crate::{
    fake_member::{everyone, leases},
    fixture::{Credentials, SET, Site, at_broker, broker, site, start, unused},
    until,
};

/// The departure of a site with the permissions of its controller.
fn depart(credentials: &Credentials, id: &str) -> Result<Removed, String> {
    let departure = Departure {
        cluster: id.into(),
        access: weir_kube::Access::new(Some(&credentials.kubeconfig), None),
        broker: credentials.broker.clone(),
        namespace: SET.into(),
    };
    leave(&departure, &ObjectId::new("kube-system", "weir-controller"))
        .map_err(|error| format!("{error}; {}", error.hint()))
}

#[test]
fn a_cluster_that_leaves_removes_its_objects_and_others_stop_allowing_its_pods() {
    let broker = broker();
    let (north, south) = (site("north", 1), site("south", 2));
    let north_process = start(&north, &broker, broker.admin(), "north");
    let south_process = start(&south, &broker, broker.admin(), "south");
    let namespace = unused("leaving");
    let populate = |site: &Site, address: &str| {
        site.namespace(&namespace, json!({}));
        site.pod(&namespace, "web", "web", &[address]);
        site.policy(&namespace, "everyone", everyone());
    };
    populate(&north, "10.1.1.1");
    populate(&south, "10.2.1.1");
    for site in [&north, &south] {
        until("the pod of the other cluster is allowed", || site.allowed(&namespace).len() == 1);
    }
    let credentials = Credentials::new(&south, &broker, broker.admin(), "south", None);
    let error = depart(&credentials, "south").unwrap_err();
    assert!(error.contains("runs the controller clusterset"), "{error}");
    assert_eq!(north.allowed(&namespace).len(), 1, "nothing was removed");
    drop(south_process);

    // The id of another cluster.
    let error = depart(&credentials, "north").unwrap_err();
    assert!(error.contains("the id north belongs to another cluster"), "{error}");
    assert_eq!(south.allowed(&namespace).len(), 1, "nothing was removed");

    let start = Instant::now();
    let removed = depart(&credentials, "south").unwrap();
    assert_eq!((removed.pods, removed.network_policies), (1, 1), "{removed:?}");
    until("north no longer allows the pod", || north.allowed(&namespace).is_empty());
    // Far less than the expiry of 25 s.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    for path in [
        at_broker("remotepods"),
        at_broker("remotenamespaces"),
        at_broker("clustersetmembers"),
        leases(),
    ] {
        let left = broker.get(&path).unwrap()["items"].as_array().unwrap().clone();
        let of_south = |one: &serde_json::Value| {
            one["metadata"]["labels"]["submariner-io/clusterID"] == "south"
        };
        assert!(!left.iter().any(of_south), "{path}: {left:?}");
    }
    assert!(south.allowed(&namespace).is_empty());
    assert_eq!(south.network_policies(&namespace).len(), 1, "the pods stay isolated");
    until("north has nothing left to publish for", || {
        broker.get(&at_broker("remotepods")).unwrap()["items"].as_array().unwrap().is_empty()
    });
    assert_eq!(depart(&credentials, "south"), Ok(Removed::default()), "once more");
    // It can join again.
    let south_process = crate::fixture::start(&south, &broker, broker.admin(), "south");
    until("the pod is allowed again", || north.allowed(&namespace).len() == 1);
    drop((north_process, south_process));
}
