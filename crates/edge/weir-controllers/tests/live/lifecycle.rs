//! Start, stop, missing definitions, unreachable API servers and lost leases.

use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_controllers::{ControllerOptions, OnDisable, run_until};

use crate::{
    common::{ControllerThread, eventually},
    fixture::{TestNamespace, definition, enabled, install, start, start_workload, user},
};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/weir-controller";

fn holder(cluster: &Cluster) -> Option<String> {
    let lease = cluster.get(LEASE).ok()?;
    lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
}

fn set_holder(cluster: &Cluster, identity: &str) {
    let lease = json!({"spec": {"holderIdentity": identity}});
    cluster.patch(LEASE, &lease).unwrap();
}

#[test]
fn the_controller_reports_a_missing_definition_and_starts_once_any_version_is_installed() {
    let cluster = Cluster::start().unwrap();
    let process = start(&user(&cluster), "one", OnDisable::Keep);
    let reason = eventually("the definition is reported", || {
        let (code, body) = process.get("/readyz");
        let is_reported =
            body.contains("is not installed") && !body.contains("has not been listed yet");
        is_reported.then_some((code, body))
    });
    assert_eq!(
        reason,
        (
            503,
            "memcached: memcacheds.memcached.c5c3.io is not installed; install it with `weir crds --only memcached | kubectl apply -f -`\n".into()
        )
    );
    assert_eq!(process.get("/healthz"), (200, "ok\n".into()));
    // The version that the operator installs.
    let mut beta = definition();
    beta["spec"]["versions"][0]["name"] = json!("v1beta1");
    install(&cluster, &beta);
    eventually("ready", || (process.get("/readyz") == (200, "ok\n".into())).then_some(()));
    let ns = TestNamespace::new(&cluster).beta();
    ns.create("cache", enabled());
    ns.reconciled("cache");
    assert_eq!(ns.ports("cache"), [11211]);
    let owner = ns.policy("cache").unwrap()["metadata"]["ownerReferences"][0].clone();
    assert_eq!(owner["apiVersion"], "memcached.c5c3.io/v1beta1");
    let (_, metrics) = process.get("/metrics");
    for line in [
        "weir_controller_leads 1",
        "weir_controller_ready{controller=\"memcached\"} 1",
        "weir_controller_failing{controller=\"memcached\"} 0",
        "weir_controller_writes_total{controller=\"memcached\",kind=\"NetworkPolicy\",verb=\"create\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn the_controller_recovers_from_outages_compaction_and_restarts() {
    let mut cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    let gate = cluster.gate().unwrap();
    let access = user(&cluster).through(gate.address());
    let process = start(&access, "one", OnDisable::Keep);
    {
        let ns = TestNamespace::new(&cluster);
        ns.create("cache", enabled());
        ns.reconciled("cache");
        // The connection is cut, and etcd compacts the changes before the controller can watch
        // them.
        gate.shut();
        let path = format!("{}/cache", ns.memcacheds());
        let monitored = json!({"spec": {"monitoring": {"enabled": true}}});
        ns.cluster.patch(&path, &monitored).unwrap();
        ns.create("another", enabled());
        ns.cluster.compact().unwrap();
        eventually("the outage is reported", || {
            process.get("/readyz").1.contains("cannot watch").then_some(())
        });
        gate.open();
        ns.reconciled("cache");
        ns.reconciled("another");
        assert_eq!(ns.ports("cache"), [11211, 9150]);
        eventually("ready", || (process.get("/readyz").0 == 200).then_some(()));
    }
    cluster.stop_server();
    cluster.start_server().unwrap();
    let ns = TestNamespace::new(&cluster);
    ns.create("after", enabled());
    ns.reconciled("after");
    assert_eq!(ns.ports("after"), [11211]);
    drop(process);
}

#[test]
fn one_process_leads_and_another_takes_over_when_it_stops() {
    let cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    let access = user(&cluster);
    let one = start(&access, "one", OnDisable::Keep);
    eventually("one is the leader", || (holder(&cluster)? == "one").then_some(()));
    let two = start(&access, "two", OnDisable::Keep);
    // A standby process is ready.
    eventually("two is on standby", || (two.get("/readyz").0 == 200).then_some(()));
    assert!(two.get("/metrics").1.contains("weir_controller_leads 0"));
    let ns = TestNamespace::new(&cluster);
    ns.create("first", enabled());
    ns.reconciled("first");
    let writes = |process: &ControllerThread| {
        let (_, metrics) = process.get("/metrics");
        metrics.lines().filter(|line| line.starts_with("weir_controller_writes_total")).count()
    };
    assert_eq!((writes(&one), writes(&two)), (1, 0));
    let start = std::time::Instant::now();
    drop(one);
    ns.create("second", enabled());
    ns.reconciled("second");
    assert_eq!(holder(&cluster).as_deref(), Some("two"));
    assert_eq!(writes(&two), 1);
    // The first process released the lease. The limit allows for slow machines.
    assert!(start.elapsed() < crate::common::TIMEOUT);
    drop(two);
    assert_eq!(holder(&cluster).as_deref(), Some(""));
}

#[test]
fn a_process_stops_when_it_loses_the_lease_and_resumes_when_it_has_it_again() {
    let cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    let process = start(&user(&cluster), "one", OnDisable::Keep);
    eventually("one is the leader", || (holder(&cluster)? == "one").then_some(()));
    let ns = TestNamespace::new(&cluster);
    ns.create("before", enabled());
    ns.reconciled("before");
    eventually("another process holds the lease", || {
        set_holder(&cluster, "other");
        let (_, metrics) = process.get("/metrics");
        metrics.contains("weir_controller_leads 0").then_some(())
    });
    let memcached = ns.create("meanwhile", enabled());
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(ns.policy("meanwhile"), None);
    assert_eq!(memcached["status"], Value::Null);
    set_holder(&cluster, "");
    ns.reconciled("meanwhile");
    assert_eq!(ns.ports("meanwhile"), [11211]);
}

#[test]
fn a_process_without_permissions_or_namespace_reports_why_it_is_not_ready() {
    let mut cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    let reports = |process: &ControllerThread, what: &str| {
        let body = eventually(what, || {
            let (code, body) = process.get("/readyz");
            body.contains(what).then_some((code, body))
        });
        assert_eq!(body.0, 503, "{}", body.1);
    };
    let unprivileged = cluster.user("unprivileged", &[]).unwrap();
    let process = start(&unprivileged, "unprivileged", OnDisable::Keep);
    reports(
        &process,
        "cannot acquire the lease kube-system/weir-controller: not allowed to get it; grant that with a Role in namespace kube-system",
    );
    drop(process);
    let workload = weir_controllers::memcached::workload(OnDisable::Keep);
    let lost = start_workload(cluster.admin(), "lost", workload, "nowhere");
    reports(
        &lost,
        "cannot acquire the lease nowhere/weir-controller: there is no namespace nowhere; create it with `kubectl create namespace nowhere`",
    );
    drop(lost);
    let access = user(&cluster);
    let one = start(&access, "one", OnDisable::Keep);
    eventually("one is the leader", || (one.get("/readyz").0 == 200).then_some(()));
    let two = start(&access, "two", OnDisable::Keep);
    eventually("two is on standby", || (two.get("/readyz").0 == 200).then_some(()));
    cluster.stop_server();
    reports(
        &two,
        "cannot acquire the lease kube-system/weir-controller: cannot reach the API server",
    );
    // The leader is unready as well once its leadership has expired.
    eventually("the leadership expires", || {
        one.get("/metrics").1.contains("weir_controller_leads 0").then_some(())
    });
    assert_eq!(one.get("/readyz").0, 503);
}

#[test]
fn an_unusable_kubeconfig_is_an_error_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let (missing, broken) = (folder.path().join("missing"), folder.path().join("broken"));
    std::fs::write(&broken, "clusters: 7").unwrap();
    let good = folder.path().join("good");
    std::fs::write(&good, "{apiVersion: v1, kind: Config, clusters: [], contexts: [], users: []}")
        .unwrap();
    for (path, context) in [(missing, None), (broken, None), (good, Some("nowhere"))] {
        let options = ControllerOptions {
            access: weir_kube::Access::new(Some(&path), context),
            namespace: "kube-system".into(),
            lease: "weir-controller".into(),
            controllers: Vec::new(),
            http: None,
            identity: "one".into(),
            retry_policy: weir_kube::RetryPolicy::default(),
        };
        let error = run_until(&options, || Ok(std::future::pending())).unwrap_err();
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(error.hint().contains("--kubeconfig and --context"), "{error}");
    }
}
