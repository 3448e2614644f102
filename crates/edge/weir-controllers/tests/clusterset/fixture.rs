//! A broker and two clusters with their controllers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use ipnet::IpNet;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use weir_cluster::{Access, Cluster, Gate, Right};
use weir_controllers::{
    Controller, ControllerError, ControllerOptions, clusterset::ClusterSetSettings, crds, run_until,
};
use weir_kube::RetryPolicy;
use weir_model::Name;

use crate::{eventually, yaml::yaml};

/// The namespace of the set on the broker.
pub(crate) const SET: &str = "submariner-k8s-broker";

/// The permissions that a controller needs in its own cluster.
const RIGHTS: [Right; 6] = [
    Right { group: "", resources: &["pods", "namespaces"], verbs: &["list", "watch"] },
    Right {
        group: "submariner.io",
        resources: &["clustersetnetworkpolicies"],
        verbs: &["list", "watch"],
    },
    Right {
        group: "submariner.io",
        resources: &["clustersetnetworkpolicies/status", "clustersetnetworkpolicies/finalizers"],
        verbs: &["patch", "update"],
    },
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

/// The permissions that it needs on the broker.
const BROKER_RIGHTS: [Right; 2] = [
    Right {
        group: "submariner.io",
        resources: &["remotepods", "remotenamespaces", "clustersetmembers"],
        verbs: &["list", "watch", "create", "update", "delete"],
    },
    Right {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["list", "create", "update"],
    },
];

/// A cluster of the set.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) cluster: Cluster,
    pub(crate) network: u8,
}

/// The set that all tests share. Each test uses another namespace.
pub(crate) struct Set {
    pub(crate) broker: Cluster,
    pub(crate) east: Site,
    pub(crate) west: Site,
    east_process: Process,
    _west_process: Process,
}

impl Set {
    /// The controller of east.
    pub(crate) fn east_process(&self) -> &Process {
        &self.east_process
    }
}

/// The shared set.
pub(crate) fn set() -> &'static Set {
    static SET_OF: OnceLock<Set> = OnceLock::new();
    SET_OF.get_or_init(|| {
        let broker = broker();
        let (east, west) = (site("east", 1), site("west", 2));
        let east_process = Process::start(&east, &broker, broker.admin(), "east");
        let west_process = Process::start(&west, &broker, broker.admin(), "west");
        Set { broker, east, west, east_process, _west_process: west_process }
    })
}

/// A broker with the definitions and the namespace.
pub(crate) fn broker() -> Cluster {
    let broker = Cluster::start().unwrap();
    install(&broker);
    broker.create("/api/v1/namespaces", &json!({"metadata": {"name": SET}})).unwrap();
    broker
}

/// A cluster with the definitions.
pub(crate) fn site(name: &'static str, network: u8) -> Site {
    let cluster = Cluster::start().unwrap();
    install(&cluster);
    Site { name, cluster, network }
}

/// Installs what `weir crds --only clusterset` prints.
fn install(cluster: &Cluster) {
    for crd in crds::ALL.iter().filter(|crd| crd.controller == "clusterset") {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        cluster.create(path, &yaml(crd.yaml)).unwrap();
        let plural = crd.name.split('.').next().unwrap();
        let path = format!("/apis/submariner.io/v1alpha1/{plural}");
        eventually("the definition is served", || cluster.get(&path).ok());
    }
}

impl Site {
    /// The network of its pods.
    fn networks(&self) -> Vec<String> {
        vec![format!("10.{}.0.0/16", self.network), format!("fd0{}::/16", self.network)]
    }

    pub(crate) fn namespace(&self, name: &str, labels: Value) {
        let namespace = json!({"metadata": {"name": name, "labels": labels}});
        self.cluster.create("/api/v1/namespaces", &namespace).unwrap();
    }

    /// Creates a running pod.
    pub(crate) fn pod(&self, namespace: &str, name: &str, app: &str, addresses: &[&str]) {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let ports = json!([{"name": "http", "containerPort": 8080}]);
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": app}},
            "spec": {"containers": [{"name": "c", "image": "i", "ports": ports}]},
        });
        self.cluster.create(&path, &pod).unwrap();
        self.status(namespace, name, "Running", addresses);
    }

    pub(crate) fn status(&self, namespace: &str, name: &str, phase: &str, addresses: &[&str]) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
        let all: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
        let status = json!({"status": {"phase": phase, "podIP": addresses[0], "podIPs": all}});
        self.cluster.patch(&path, &status).unwrap();
    }

    pub(crate) fn relabel(&self, path: &str, labels: Value) {
        self.cluster.patch(path, &json!({"metadata": {"labels": labels}})).unwrap();
    }

    /// Creates a policy, and returns its uid.
    pub(crate) fn policy(&self, namespace: &str, name: &str, spec: Value) -> String {
        let path = policies(namespace);
        let policy = json!({
            "apiVersion": "submariner.io/v1alpha1", "kind": "ClusterSetNetworkPolicy",
            "metadata": {"name": name}, "spec": spec,
        });
        let made = self.cluster.create(&path, &policy).unwrap();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub(crate) fn get_policy(&self, namespace: &str, name: &str) -> Value {
        self.cluster.get(&format!("{}/{name}", policies(namespace))).unwrap()
    }

    /// The NetworkPolicies of a namespace.
    pub(crate) fn network_policies(&self, namespace: &str) -> Vec<Value> {
        let list = self.cluster.get(&network_policies(namespace)).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// All networks that NetworkPolicies of a namespace allow, with the direction.
    pub(crate) fn allowed(&self, namespace: &str) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for policy in self.network_policies(namespace) {
            for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
                for rule in policy["spec"][rules].as_array().into_iter().flatten() {
                    for peer in rule[peers].as_array().into_iter().flatten() {
                        if let Some(cidr) = peer["ipBlock"]["cidr"].as_str() {
                            all.insert(format!("{rules} {cidr}"));
                        }
                    }
                }
            }
        }
        all
    }
}

/// The name of an unused namespace.
pub(crate) fn unused(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}", COUNT.fetch_add(1, Ordering::SeqCst))
}

pub(crate) fn policies(namespace: &str) -> String {
    format!("/apis/submariner.io/v1alpha1/namespaces/{namespace}/clustersetnetworkpolicies")
}

pub(crate) fn network_policies(namespace: &str) -> String {
    format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")
}

/// The path of objects on the broker.
pub(crate) fn at_broker(plural: &str) -> String {
    format!("/apis/submariner.io/v1alpha1/namespaces/{SET}/{plural}")
}

/// Deviations from the usual options of a controller.
pub(crate) struct ProcessOptions {
    /// The namespace of its lease.
    pub(crate) namespace: &'static str,
    /// The trusted networks of other clusters.
    pub(crate) accepted: BTreeMap<Name, Vec<IpNet>>,
    /// The maximum number of pods per cluster.
    pub(crate) pods: usize,
    /// The maximum number of namespaces per cluster.
    pub(crate) namespaces: usize,
}

impl Default for ProcessOptions {
    fn default() -> Self {
        ProcessOptions {
            namespace: "kube-system",
            accepted: BTreeMap::new(),
            pods: 1_000,
            namespaces: 1_000,
        }
    }
}

/// A thread that runs the controller as a process would.
pub(crate) struct Process {
    pub(crate) http: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ControllerError>>>,
    _folders: [TempDir; 2],
}

impl Process {
    /// Starts the controller of a cluster with an id and exactly the permissions that it needs.
    pub(crate) fn start(site: &Site, broker: &Cluster, access: &Access, id: &str) -> Self {
        Process::with(site, broker, access, id, ProcessOptions::default())
    }

    /// The same with other options.
    pub(crate) fn with(
        site: &Site,
        broker: &Cluster,
        access: &Access,
        id: &str,
        options: ProcessOptions,
    ) -> Self {
        let user = site.cluster.user(&format!("weir-{id}"), &RIGHTS).unwrap();
        let member =
            broker.user(&format!("cluster-{id}-of-{}", site.name), &BROKER_RIGHTS).unwrap();
        let member = Access { url: access.url.clone(), ..member };
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let kubeconfig = user.write_kubeconfig(folders[0].path()).unwrap();
        member.write_kubeconfig(folders[1].path()).unwrap();
        let [token, ca] = ["token", "ca.pem"].map(|name| folders[1].path().join(name));
        let settings = ClusterSetSettings {
            cluster: id.into(),
            networks: site.networks().iter().map(|network| network.parse().unwrap()).collect(),
            broker: weir_kube::Access::direct(&member.url, &token, Some(&ca)),
            namespace: SET.into(),
            renewal: Duration::from_secs(1),
            expiry: Duration::from_secs(25),
            accepted: options.accepted,
            pods: options.pods,
            namespaces: options.namespaces,
            shard: 10,
            merging: weir_clusterset::Merging::None,
        };
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let http = free.local_addr().unwrap();
        drop(free);
        let controllers = ControllerOptions {
            access: weir_kube::Access::new(Some(&kubeconfig), None),
            namespace: options.namespace.into(),
            lease: "weir-controller".into(),
            controllers: vec![Controller::ClusterSet(Box::new(settings))],
            http: Some(http),
            identity: format!("{}-{id}", site.name),
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
        let thread = std::thread::spawn(move || run_until(&controllers, end));
        Process { http, stop: Some(stop), thread: Some(thread), _folders: folders }
    }

    /// The same through a gate.
    pub(crate) fn through(site: &Site, broker: &Cluster, gate: &Gate, id: &str) -> Self {
        Process::start(site, broker, &broker.admin().through(gate.address()), id)
    }

    /// The response of `/readyz`.
    pub(crate) fn readyz(&self) -> String {
        use std::io::{Read, Write};
        let request = || {
            let mut stream = std::net::TcpStream::connect(self.http)?;
            write!(stream, "GET /readyz HTTP/1.0\r\nHost: weir\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        eventually("HTTP answers", || request().ok())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}
