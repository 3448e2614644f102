//! A cluster with a controller, and Memcacheds in it.

use std::{
    net::SocketAddr,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use weir_cluster::{Access, Cluster, Collector, Right};
use weir_controllers::{
    Controller, ControllerError, OnDisable, Options, crds, memcached, run_until, workload::Workload,
};
use weir_kube::RetryPolicy;

use crate::{eventually, yaml::yaml};

/// All that the controller needs to be allowed.
const RIGHTS: [Right; 5] = [
    Right { group: "memcached.c5c3.io", resources: &["memcacheds"], verbs: &["list", "watch"] },
    Right { group: "memcached.c5c3.io", resources: &["memcacheds/status"], verbs: &["patch"] },
    Right {
        group: "networking.k8s.io",
        resources: &["networkpolicies"],
        verbs: &["list", "watch", "create", "update", "delete"],
    },
    Right {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "create", "update"],
    },
    Right { group: "", resources: &["events"], verbs: &["create", "patch"] },
];

/// The cluster of all tests that leave others alone, with a controller that keeps policies which are no longer asked for.
pub(crate) fn shared() -> &'static Cluster {
    static SHARED: OnceLock<(Cluster, Process, Collector)> = OnceLock::new();
    let (cluster, ..) = SHARED.get_or_init(|| {
        let cluster = Cluster::start().unwrap();
        install(&cluster, &definition());
        let process = Process::start(&user(&cluster), "one", OnDisable::Keep);
        let collector = cluster.collect_garbage().unwrap();
        (cluster, process, collector)
    });
    cluster
}

/// One who may do what the controller needs, and nothing else.
pub(crate) fn user(cluster: &Cluster) -> Access {
    cluster.user("weir-controller", &RIGHTS).unwrap()
}

/// The definition that weir prints.
pub(crate) fn definition() -> Value {
    let crd = crds::ALL.iter().find(|crd| crd.controller == "memcached").unwrap();
    yaml(crd.yaml)
}

/// Installs a definition and waits until it is served.
pub(crate) fn install(cluster: &Cluster, definition: &Value) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    cluster.create(path, definition).unwrap();
    let version = definition["spec"]["versions"][0]["name"].as_str().unwrap();
    let (group, plural) = (&definition["spec"]["group"], &definition["spec"]["names"]["plural"]);
    let [group, plural] = [group, plural].map(|text| text.as_str().unwrap());
    let path = format!("/apis/{group}/{version}/{plural}");
    eventually("the definition is served", || cluster.get(&path).ok());
}

/// A process that runs the controller, but for being one.
pub(crate) struct Process {
    pub(crate) http: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ControllerError>>>,
    _kubeconfig: TempDir,
}

impl Process {
    pub(crate) fn start(access: &Access, identity: &str, on_disable: OnDisable) -> Self {
        Process::of(access, identity, memcached::workload(on_disable))
    }

    pub(crate) fn of(access: &Access, identity: &str, workload: Workload) -> Self {
        Process::with(access, identity, workload, "kube-system")
    }

    /// One whose lease is elsewhere.
    pub(crate) fn living_in(namespace: &str, access: &Access, identity: &str) -> Self {
        Process::with(access, identity, memcached::workload(OnDisable::Keep), namespace)
    }

    fn with(access: &Access, identity: &str, workload: Workload, namespace: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = access.write_kubeconfig(folder.path()).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let http = free.local_addr().unwrap();
        drop(free);
        let options = Options {
            access: weir_kube::Access::new(Some(&kubeconfig), None),
            namespace: namespace.into(),
            lease: "weir-controller".into(),
            controllers: vec![Controller::Workload(workload)],
            http: Some(http),
            identity: identity.into(),
            retry_policy: RetryPolicy {
                page_size: 3,
                first_retry: Duration::from_millis(50),
                longest_retry: Duration::from_millis(500),
                absence_poll: Duration::from_millis(200),
                ..RetryPolicy::default()
            },
        };
        let (stop, end) = oneshot::channel::<()>();
        let end = || {
            Ok(async {
                _ = end.await;
            })
        };
        let thread = std::thread::spawn(move || run_until(&options, end));
        Process { http, stop: Some(stop), thread: Some(thread), _kubeconfig: folder }
    }

    /// What it answers over HTTP: the status and the body.
    pub(crate) fn ask(&self, path: &str) -> (u16, String) {
        use std::io::{Read, Write};
        let ask = || {
            let mut stream = std::net::TcpStream::connect(self.http)?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: weir\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        let answer = eventually("HTTP answers", || ask().ok());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, body.to_owned())
    }

    /// Ends it as SIGTERM does.
    pub(crate) fn stop(mut self) {
        self.end().unwrap().unwrap();
    }

    fn end(&mut self) -> Option<Result<(), ControllerError>> {
        _ = self.stop.take()?.send(());
        Some(self.thread.take()?.join().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.end();
    }
}

/// A namespace of its own with Memcacheds and policies.
pub(crate) struct Place<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) namespace: String,
    version: &'static str,
}

impl<'c> Place<'c> {
    pub(crate) fn new(cluster: &'c Cluster) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("place-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let object = json!({"metadata": {"name": namespace}});
        cluster.create("/api/v1/namespaces", &object).unwrap();
        Place { cluster, namespace, version: "v1alpha1" }
    }

    /// The namespace `default`, which is nobody's own.
    pub(crate) fn default(cluster: &'c Cluster) -> Self {
        Place { cluster, namespace: "default".into(), version: "v1alpha1" }
    }

    /// The same with the other version of the kind.
    pub(crate) fn beta(self) -> Self {
        Place { version: "v1beta1", ..self }
    }

    pub(crate) fn memcacheds(&self) -> String {
        let Place { namespace, version, .. } = self;
        format!("/apis/memcached.c5c3.io/{version}/namespaces/{namespace}/memcacheds")
    }

    pub(crate) fn policies(&self) -> String {
        format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", self.namespace)
    }

    /// Creates a Memcached.
    pub(crate) fn create(&self, name: &str, spec: Value) -> Value {
        let object = json!({
            "apiVersion": format!("memcached.c5c3.io/{}", self.version),
            "kind": "Memcached",
            "metadata": {"name": name},
            "spec": spec,
        });
        self.cluster.create(&self.memcacheds(), &object).unwrap()
    }

    /// Changes the spec of a Memcached, and waits until the controller has looked at it.
    pub(crate) fn change(&self, name: &str, spec: Value) {
        let path = format!("{}/{name}", self.memcacheds());
        self.cluster.patch(&path, &json!({"spec": spec})).unwrap();
        self.settled(name);
    }

    /// The condition of a Memcached, once the controller has looked at it as it is.
    #[track_caller]
    pub(crate) fn settled(&self, name: &str) -> Value {
        let path = format!("{}/{name}", self.memcacheds());
        eventually("the controller looks at it", || {
            let memcached = self.cluster.get(&path).unwrap();
            let conditions = memcached["status"]["conditions"].as_array()?;
            let condition = conditions.iter().find(|one| one["type"] == "NetworkPolicyReady")?;
            (condition["observedGeneration"] == memcached["metadata"]["generation"])
                .then(|| condition.clone())
        })
    }

    /// A policy, if there is one.
    pub(crate) fn policy(&self, name: &str) -> Option<Value> {
        match self.cluster.get(&format!("{}/{name}", self.policies())) {
            Ok(policy) => Some(policy),
            Err(kube::Error::Api(status)) if status.is_not_found() => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The ports that a policy opens.
    pub(crate) fn ports(&self, name: &str) -> Vec<i64> {
        let policy = self.policy(name).expect("there is a policy");
        assert_eq!(policy["spec"]["ingress"].as_array().unwrap().len(), 1, "{policy}");
        let ports = policy["spec"]["ingress"][0]["ports"].as_array().unwrap().clone();
        ports.iter().map(|port| port["port"].as_i64().unwrap()).collect()
    }

    /// Waits for an event about a Memcached.
    #[track_caller]
    pub(crate) fn event(&self, name: &str, reason: &str) -> Value {
        let path = format!("/api/v1/namespaces/{}/events", self.namespace);
        eventually(&format!("an event {reason}"), || {
            let events = self.cluster.get(&path).unwrap()["items"].as_array().unwrap().clone();
            events
                .into_iter()
                .find(|event| event["involvedObject"]["name"] == name && event["reason"] == reason)
        })
    }
}

/// A spec that asks for a policy.
pub(crate) fn enabled() -> Value {
    json!({"replicas": 3, "security": {"networkPolicy": {"enabled": true}}})
}
