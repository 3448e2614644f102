//! Faults of the API server: nothing is deleted, the reason is reported, and every change arrives.

use std::{sync::OnceLock, thread};

use serde_json::{Value, json};
use weir_cluster::{Access, Cluster};
use weir_controllers::{Controller, OnDisable, crds, hpp::HppSettings, memcached};
use weir_kube::RetryPolicy;

use crate::{
    common::{ControllerThread, Maintained, eventually, quick, survives_faults},
    fixture::{TestNamespace, definition, enabled, install, user},
    yaml::yaml,
};

/// The policies for Cisco ACI.
const HOST_POLICIES: &str = "/apis/aci.hpp/v1/namespaces/default/hostprotpols";

#[test]
fn faults_of_the_api_server_delete_nothing_and_lose_nothing() {
    let mut cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    for crd in crds::ALL.iter().filter(|crd| crd.controller == "hpp") {
        install(&cluster, &yaml(crd.yaml));
    }
    thread::scope(|scope| {
        let running =
            [scope.spawn(|| memcached_survives(&cluster)), scope.spawn(|| hpp_survives(&cluster))];
        running.into_iter().for_each(|thread| thread.join().unwrap());
    });
    controllers_follow_a_restored_etcd(&mut cluster);
}

fn start_memcached(access: &Access, namespace: &str, policy: RetryPolicy) -> ControllerThread {
    let controller = Controller::Workload(memcached::workload(OnDisable::Delete));
    spawn(controller, access, namespace, policy)
}

fn start_hpp(
    cluster: &Cluster,
    access: &Access,
    namespace: &str,
    policy: RetryPolicy,
) -> ControllerThread {
    // The lease of another controller has the same name.
    let namespace = format!("hpp-{namespace}");
    _ = cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}));
    let settings = HppSettings { prefix: "kube".into(), namespace: "default".into(), http: None };
    spawn(Controller::Hpp(settings), access, &namespace, policy)
}

fn spawn(
    controller: Controller,
    access: &Access,
    namespace: &str,
    policy: RetryPolicy,
) -> ControllerThread {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = access.write_kubeconfig(folder.path()).unwrap();
    ControllerThread::spawn(controller, "one", namespace, &kubeconfig, vec![folder], policy)
}

fn memcached_survives(cluster: &Cluster) {
    let proxy = cluster.fault_proxy().unwrap();
    let access = proxy.access(&user(cluster));
    let test = TestNamespace::new(cluster);
    test.create("cache", enabled());
    let uid = || test.policy("cache").map(|policy| policy["metadata"]["uid"].clone());
    let first = OnceLock::new();
    survives_faults(&[&proxy], |policy, namespace| {
        let process = start_memcached(&access, namespace, policy);
        test.reconciled("cache");
        let first = first.get_or_init(uid);
        assert!(first.is_some());
        Maintained {
            process,
            state: || uid() == *first,
            change: |number| _ = test.create(&format!("late-{number}"), enabled()),
            has_arrived: |number| test.policy(&format!("late-{number}")).is_some(),
        }
    });
}

fn hpp_survives(cluster: &Cluster) {
    let proxy = cluster.fault_proxy().unwrap();
    let access = proxy.access(cluster.admin());
    let test = TestNamespace::new(cluster);
    let create = |name: &str, port: usize| {
        let ports = json!([{"port": port}]);
        let spec = json!({"podSelector": {}, "ingress": [{"ports": ports}]});
        cluster
            .create(&test.policies(), &json!({"metadata": {"name": name}, "spec": spec}))
            .unwrap();
    };
    create("lock", 1);
    let uid = || host_policy(cluster, "lock").map(|policy| policy["metadata"]["uid"].clone());
    let first = OnceLock::new();
    survives_faults(&[&proxy], |policy, namespace| {
        let process = start_hpp(cluster, &access, namespace, policy);
        let first = first.get_or_init(|| eventually("the policy is published", uid));
        Maintained {
            process,
            state: || uid().as_ref() == Some(first),
            change: |number| create(&format!("late-{number}"), 1000 + number),
            has_arrived: |number| host_policy(cluster, &format!("late-{number}")).is_some(),
        }
    });
}

/// The published policy that mentions a NetworkPolicy.
fn host_policy(cluster: &Cluster, name: &str) -> Option<Value> {
    let all = cluster.get(HOST_POLICIES).unwrap()["items"].take();
    let is_it = |policy: &&Value| policy["spec"].to_string().contains(&format!("{name}\""));
    all.as_array().unwrap().iter().find(is_it).cloned()
}

/// Resource versions go back, and every controller follows the restored state.
fn controllers_follow_a_restored_etcd(cluster: &mut Cluster) {
    let access = user(cluster);
    let memcached = start_memcached(&access, "kube-node-lease", quick());
    let admin = cluster.admin().clone();
    let hpp = start_hpp(cluster, &admin, "kube-node-lease", quick());
    let are_ready = || [&memcached, &hpp].iter().all(|process| process.get("/readyz").0 == 200);
    eventually("both are ready", || are_ready().then_some(()));
    let backup = cluster.back_up().unwrap();
    // So many versions that the API server does not reach them again during the test.
    let path = "/api/v1/namespaces/default/configmaps";
    let fill = |index: usize| (path.into(), json!({"metadata": {"name": format!("fill-{index}")}}));
    cluster.create_all((0..1000).map(fill)).unwrap();
    let test = TestNamespace::new(cluster);
    test.create("undone", enabled());
    eventually("both controllers follow", || {
        test.policy("undone").and(host_policy(cluster, "undone"))
    });
    cluster.restore(&backup).unwrap();
    let test = TestNamespace::new(cluster);
    test.create("restored", enabled());
    eventually("both controllers follow again", || {
        test.policy("restored").and(host_policy(cluster, "restored"))
    });
    eventually("both are ready again", || are_ready().then_some(()));
}
