//! Broken responses of the API server.

use serde_json::json;
use weir_cluster::Cluster;
use weir_controllers::{Controller, OnDisable, crds, hpp::HppSettings};

use crate::{
    common::{ControllerThread, eventually, survives_broken_lists},
    fixture::{TestNamespace, definition, enabled, install, start, user},
    yaml::yaml,
};

#[test]
fn a_response_that_is_not_a_list_deletes_no_policy_of_a_memcached() {
    let cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    let proxy = cluster.fault_proxy().unwrap();
    let process = start(&proxy.access(&user(&cluster)), "one", OnDisable::Delete);
    let test = TestNamespace::new(&cluster);
    test.create("cache", enabled());
    test.reconciled("cache");
    let uid = || test.policy("cache").map(|policy| policy["metadata"]["uid"].clone());
    let before = uid();
    assert!(before.is_some());
    survives_broken_lists(&proxy, &process, || uid() == before);
}

#[test]
fn a_response_that_is_not_a_list_deletes_no_host_protection_policy() {
    let cluster = Cluster::start().unwrap();
    for crd in crds::ALL.iter().filter(|crd| crd.controller == "hpp") {
        install(&cluster, &yaml(crd.yaml));
    }
    let proxy = cluster.fault_proxy().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = proxy.access(cluster.admin()).write_kubeconfig(folder.path()).unwrap();
    let settings = HppSettings { prefix: "kube".into(), namespace: "default".into(), http: None };
    let process = ControllerThread::spawn(
        Controller::Hpp(settings),
        "one",
        "kube-system",
        &kubeconfig,
        vec![folder],
    );
    let test = TestNamespace::new(&cluster);
    let policy = json!({"metadata": {"name": "lock"}, "spec": {"podSelector": {}}});
    cluster.create(&test.policies(), &policy).unwrap();
    let uids = || -> Vec<String> {
        let all = cluster.get("/apis/aci.hpp/v1/namespaces/default/hostprotpols").unwrap();
        let all = all["items"].as_array().unwrap();
        all.iter().map(|one| one["metadata"]["uid"].to_string()).collect()
    };
    let is_ready = || process.get("/readyz").0 == 200 && !uids().is_empty();
    eventually("the policy is published", || is_ready().then_some(()));
    std::thread::sleep(std::time::Duration::from_secs(1));
    let before = uids();
    survives_broken_lists(&proxy, &process, || uids() == before);
}
