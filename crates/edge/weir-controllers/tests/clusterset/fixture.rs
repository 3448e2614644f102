//! A broker and two clusters with their controllers.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use ipnet::IpNet;
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_cluster::{Access, Cluster, Gate, Right};
use weir_controllers::{Controller, clusterset::ClusterSetSettings, crds};
use weir_kube::RetryPolicy;
use weir_model::{NAMESPACE_NAME_LABEL, Name, Requirement, Selector};

use crate::{
    common::{COMMON_RIGHTS, ControllerThread, eventually, quick},
    yaml::yaml,
};

/// The namespace of the set on the broker.
pub(crate) const SET: &str = "submariner-k8s-broker";

/// The permissions that a controller needs in its own cluster, besides the common ones.
const RIGHTS: [Right; 3] = [
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
        verbs: &["list", "create", "update", "delete"],
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
    east_process: ControllerThread,
    _west_process: ControllerThread,
}

impl Set {
    /// The controller of east.
    pub(crate) fn east_process(&self) -> &ControllerThread {
        &self.east_process
    }
}

/// The shared set.
pub(crate) fn set() -> &'static Set {
    static SET_OF: OnceLock<Set> = OnceLock::new();
    SET_OF.get_or_init(|| {
        let broker = broker();
        let (east, west) = (site("east", 1), site("west", 2));
        let east_process = start(&east, &broker, broker.admin(), "east");
        let west_process = start(&west, &broker, broker.admin(), "west");
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
pub(crate) struct StartOptions {
    /// The namespace of its lease.
    pub(crate) namespace: &'static str,
    /// The trusted networks of other clusters.
    pub(crate) accepted: BTreeMap<Name, Vec<IpNet>>,
    /// The maximum number of pods per cluster.
    pub(crate) pods: usize,
    /// The maximum number of namespaces per cluster.
    pub(crate) namespaces: usize,
    /// The namespaces whose pods may be published.
    pub(crate) publishable: Selector,
    /// The URL of a proxy to the API server.
    pub(crate) proxy: Option<String>,
    /// The waits of its followers.
    pub(crate) policy: RetryPolicy,
}

impl Default for StartOptions {
    fn default() -> Self {
        StartOptions {
            namespace: "kube-system",
            accepted: BTreeMap::new(),
            pods: 1_000,
            namespaces: 1_000,
            publishable: [Requirement::NotIn(
                NAMESPACE_NAME_LABEL.into(),
                ["kube-system".into()].into(),
            )]
            .into_iter()
            .collect(),
            proxy: None,
            policy: quick(),
        }
    }
}

/// Starts the controller of a cluster with an id and exactly the permissions that it needs.
pub(crate) fn start(site: &Site, broker: &Cluster, access: &Access, id: &str) -> ControllerThread {
    start_with(site, broker, access, id, StartOptions::default())
}

/// Starts the controller with other options.
pub(crate) fn start_with(
    site: &Site,
    broker: &Cluster,
    access: &Access,
    id: &str,
    options: StartOptions,
) -> ControllerThread {
    let Credentials { kubeconfig, broker, folders } =
        Credentials::new(site, broker, access, id, options.proxy);
    let settings = ClusterSetSettings {
        cluster: id.into(),
        networks: site.networks().iter().map(|network| network.parse().unwrap()).collect(),
        broker,
        namespace: SET.into(),
        renewal: Duration::from_secs(1),
        expiry: Duration::from_secs(25),
        accepted: options.accepted,
        network_limits: weir_clusterset::NetworkLimits::default(),
        publishable: options.publishable,
        pods: options.pods,
        namespaces: options.namespaces,
        shard: 10,
        merging: weir_clusterset::Merging::None,
    };
    let controller = Controller::ClusterSet(Box::new(settings));
    let identity = format!("{}-{id}", site.name);
    ControllerThread::spawn(
        controller,
        &identity,
        options.namespace,
        &kubeconfig,
        folders,
        options.policy,
    )
}

/// The credentials of a controller, with exactly the permissions that it needs.
pub(crate) struct Credentials {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) broker: weir_kube::Access,
    pub(crate) folders: Vec<TempDir>,
}

impl Credentials {
    pub(crate) fn new(
        site: &Site,
        broker: &Cluster,
        access: &Access,
        id: &str,
        proxy: Option<String>,
    ) -> Self {
        let rights = [&RIGHTS[..], &COMMON_RIGHTS].concat();
        let mut user = site.cluster.user(&format!("weir-{id}"), &rights).unwrap();
        if let Some(url) = proxy {
            user.url = url;
        }
        let member =
            broker.user(&format!("cluster-{id}-of-{}", site.name), &BROKER_RIGHTS).unwrap();
        let member = Access { url: access.url.clone(), ..member };
        let folders = vec![tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let kubeconfig = user.write_kubeconfig(folders[0].path()).unwrap();
        member.write_kubeconfig(folders[1].path()).unwrap();
        let [token, ca] = ["token", "ca.pem"].map(|name| folders[1].path().join(name));
        let broker = weir_kube::Access::direct(&member.url, &token, Some(&ca));
        Credentials { kubeconfig, broker, folders }
    }
}

/// Starts the controller with a broker behind a gate.
pub(crate) fn start_through(
    site: &Site,
    broker: &Cluster,
    gate: &Gate,
    id: &str,
) -> ControllerThread {
    start(site, broker, &broker.admin().through(gate.address()), id)
}
