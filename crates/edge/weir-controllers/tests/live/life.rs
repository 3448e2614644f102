//! Starts, ends, and what happens in between: definitions that are not there, API servers that go away, leases that are lost.

use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_controllers::{OnDisable, Options, run_until};

use crate::{
    eventually,
    setting::{Place, Process, definition, enabled, install, user},
};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/weir-controller";

fn holder(cluster: &Cluster) -> Option<String> {
    let lease = cluster.get(LEASE).ok()?;
    lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
}

fn hold(cluster: &Cluster, identity: &str) {
    let lease = json!({"spec": {"holderIdentity": identity}});
    cluster.patch(LEASE, &lease).unwrap();
}

#[test]
fn a_definition_that_is_missing_is_told_and_waited_for_whichever_version_it_has() {
    let cluster = Cluster::start().unwrap();
    let process = Process::start(&user(&cluster), "one", OnDisable::Keep);
    let reason = eventually("it is told", || {
        let (code, body) = process.ask("/readyz");
        let is_told =
            body.contains("is not installed") && !body.contains("has not been listed yet");
        is_told.then_some((code, body))
    });
    assert_eq!(
        reason,
        (
            503,
            "memcached: memcacheds.memcached.c5c3.io is not installed; install it with `weir crds --only memcached | kubectl apply -f -`\n".into()
        )
    );
    assert_eq!(process.ask("/healthz"), (200, "ok\n".into()));
    // The one that the operator installs, as far as it matters here.
    let mut beta = definition();
    beta["spec"]["versions"][0]["name"] = json!("v1beta1");
    install(&cluster, &beta);
    eventually("ready", || (process.ask("/readyz") == (200, "ok\n".into())).then_some(()));
    let place = Place::new(&cluster).beta();
    place.create("cache", enabled());
    place.settled("cache");
    assert_eq!(place.ports("cache"), [11211]);
    let owner = place.policy("cache").unwrap()["metadata"]["ownerReferences"][0].clone();
    assert_eq!(owner["apiVersion"], "memcached.c5c3.io/v1beta1");
    let (_, metrics) = process.ask("/metrics");
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
fn it_survives_what_happens_to_api_servers() {
    let mut cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    let gate = cluster.gate().unwrap();
    let access = user(&cluster).through(gate.address());
    let process = Process::start(&access, "one", OnDisable::Keep);
    {
        let place = Place::new(&cluster);
        place.create("cache", enabled());
        place.settled("cache");
        // The way is cut, and what happens meanwhile is forgotten before we can ask for it.
        gate.shut();
        let path = format!("{}/cache", place.memcacheds());
        let monitored = json!({"spec": {"monitoring": {"enabled": true}}});
        place.cluster.patch(&path, &monitored).unwrap();
        place.create("another", enabled());
        place.cluster.compact().unwrap();
        eventually("it is told", || {
            process.ask("/readyz").1.contains("cannot be followed").then_some(())
        });
        gate.open();
        place.settled("cache");
        place.settled("another");
        assert_eq!(place.ports("cache"), [11211, 9150]);
        eventually("ready", || (process.ask("/readyz").0 == 200).then_some(()));
    }
    cluster.stop_server();
    cluster.start_server().unwrap();
    let place = Place::new(&cluster);
    place.create("after", enabled());
    place.settled("after");
    assert_eq!(place.ports("after"), [11211]);
    process.stop();
}

#[test]
fn one_process_is_in_charge_and_another_takes_over_when_it_ends() {
    let cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    let access = user(&cluster);
    let one = Process::start(&access, "one", OnDisable::Keep);
    eventually("one is in charge", || (holder(&cluster)? == "one").then_some(()));
    let two = Process::start(&access, "two", OnDisable::Keep);
    // Who waits is ready to.
    eventually("two waits", || (two.ask("/readyz").0 == 200).then_some(()));
    assert!(two.ask("/metrics").1.contains("weir_controller_leads 0"));
    let place = Place::new(&cluster);
    place.create("first", enabled());
    place.settled("first");
    let writes = |process: &Process| {
        let (_, metrics) = process.ask("/metrics");
        metrics.lines().filter(|line| line.starts_with("weir_controller_writes_total")).count()
    };
    assert_eq!((writes(&one), writes(&two)), (1, 0));
    let start = std::time::Instant::now();
    one.stop();
    place.create("second", enabled());
    place.settled("second");
    assert_eq!(holder(&cluster).as_deref(), Some("two"));
    assert_eq!(writes(&two), 1);
    // The lease was given up, and did not have to run out; but machines may be slow.
    assert!(start.elapsed() < crate::PATIENCE);
    two.stop();
    assert_eq!(holder(&cluster).as_deref(), Some(""));
}

#[test]
fn who_has_lost_the_lease_stops_at_once_and_acts_again_when_it_has_it_back() {
    let cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    let process = Process::start(&user(&cluster), "one", OnDisable::Keep);
    eventually("one is in charge", || (holder(&cluster)? == "one").then_some(()));
    let place = Place::new(&cluster);
    place.create("before", enabled());
    place.settled("before");
    eventually("the lease is another's", || {
        hold(&cluster, "other");
        let (_, metrics) = process.ask("/metrics");
        metrics.contains("weir_controller_leads 0").then_some(())
    });
    let memcached = place.create("meanwhile", enabled());
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(place.policy("meanwhile"), None);
    assert_eq!(memcached["status"], Value::Null);
    hold(&cluster, "");
    place.settled("meanwhile");
    assert_eq!(place.ports("meanwhile"), [11211]);
}

#[test]
fn who_can_do_nothing_is_not_ready_and_says_why() {
    let mut cluster = Cluster::start().unwrap();
    install(&cluster, &definition());
    let told = |process: &Process, what: &str| {
        let body = eventually(what, || {
            let (code, body) = process.ask("/readyz");
            body.contains(what).then_some((code, body))
        });
        assert_eq!(body.0, 503, "{}", body.1);
    };
    let nobody = cluster.user("nobody", &[]).unwrap();
    let process = Process::start(&nobody, "nobody", OnDisable::Keep);
    told(
        &process,
        "cannot acquire the lease: the API server forbids to get leases.coordination.k8s.io",
    );
    process.stop();
    let lost = Process::living_in("nowhere", cluster.admin(), "lost");
    told(
        &lost,
        "cannot acquire the lease: there is no namespace nowhere; create it with `kubectl create namespace nowhere`",
    );
    lost.stop();
    let access = user(&cluster);
    let one = Process::start(&access, "one", OnDisable::Keep);
    eventually("one is in charge", || (one.ask("/readyz").0 == 200).then_some(()));
    let two = Process::start(&access, "two", OnDisable::Keep);
    eventually("two waits", || (two.ask("/readyz").0 == 200).then_some(()));
    cluster.stop_server();
    told(&two, "cannot acquire the lease: cannot reach the API server");
    // Also when its time in charge is over.
    eventually("it is over", || {
        one.ask("/metrics").1.contains("weir_controller_leads 0").then_some(())
    });
    assert_eq!(one.ask("/readyz").0, 503);
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let (missing, broken) = (folder.path().join("missing"), folder.path().join("broken"));
    std::fs::write(&broken, "clusters: 7").unwrap();
    let good = folder.path().join("good");
    std::fs::write(&good, "{apiVersion: v1, kind: Config, clusters: [], contexts: [], users: []}")
        .unwrap();
    for (path, context) in [(missing, None), (broken, None), (good, Some("nowhere"))] {
        let options = Options {
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
