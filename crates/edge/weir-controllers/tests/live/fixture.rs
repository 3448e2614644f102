//! A cluster with a controller and Memcacheds.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};
use weir_cluster::{Access, Cluster, Collector, Right};
use weir_controllers::{Controller, OnDisable, crds, memcached, workload::Workload};

use crate::{
    common::{COMMON_RIGHTS, ControllerThread, eventually, quick},
    yaml::yaml,
};

/// The permissions that the controller needs, besides the common ones.
const RIGHTS: [Right; 2] = [
    Right { group: "memcached.c5c3.io", resources: &["memcacheds"], verbs: &["list", "watch"] },
    Right { group: "memcached.c5c3.io", resources: &["memcacheds/status"], verbs: &["patch"] },
];

/// The cluster that independent tests share, with a controller that keeps disabled policies.
pub(crate) fn shared() -> &'static Cluster {
    static SHARED: OnceLock<(Cluster, ControllerThread, Collector)> = OnceLock::new();
    let (cluster, ..) = SHARED.get_or_init(|| {
        let cluster = Cluster::start().unwrap();
        install(&cluster, &definition());
        let process = start(&user(&cluster), "one", OnDisable::Keep);
        let collector = cluster.collect_garbage().unwrap();
        (cluster, process, collector)
    });
    cluster
}

/// A user with exactly the permissions that the controller needs.
pub(crate) fn user(cluster: &Cluster) -> Access {
    cluster.user("weir-controller", &[&RIGHTS[..], &COMMON_RIGHTS].concat()).unwrap()
}

/// The CustomResourceDefinition that weir prints, without its CEL rules.
pub(crate) fn definition() -> Value {
    let crd = crds::ALL.iter().find(|crd| crd.controller == "memcached").unwrap();
    let mut definition = yaml(crd.yaml);
    remove_rules(&mut definition);
    definition
}

fn remove_rules(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-validations");
            fields.values_mut().for_each(remove_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_rules),
        _ => (),
    }
}

/// Installs a CustomResourceDefinition and waits until it is served.
pub(crate) fn install(cluster: &Cluster, definition: &Value) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    cluster.create(path, definition).unwrap();
    let version = definition["spec"]["versions"][0]["name"].as_str().unwrap();
    let (group, plural) = (&definition["spec"]["group"], &definition["spec"]["names"]["plural"]);
    let [group, plural] = [group, plural].map(|text| text.as_str().unwrap());
    let path = format!("/apis/{group}/{version}/{plural}");
    eventually("the definition is served", || cluster.get(&path).ok());
}

/// Starts a controller of Memcacheds with its lease in `kube-system`.
pub(crate) fn start(access: &Access, identity: &str, on_disable: OnDisable) -> ControllerThread {
    start_workload(access, identity, memcached::workload(on_disable), "kube-system")
}

/// Starts a controller of a workload with its lease in `namespace`.
pub(crate) fn start_workload(
    access: &Access,
    identity: &str,
    workload: Workload,
    namespace: &str,
) -> ControllerThread {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = access.write_kubeconfig(folder.path()).unwrap();
    let controller = Controller::Workload(workload);
    ControllerThread::spawn(controller, identity, namespace, &kubeconfig, vec![folder], quick())
}

/// A namespace for one test.
pub(crate) struct TestNamespace<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) namespace: String,
    version: &'static str,
}

impl<'c> TestNamespace<'c> {
    pub(crate) fn new(cluster: &'c Cluster) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("test-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let object = json!({"metadata": {"name": namespace}});
        cluster.create("/api/v1/namespaces", &object).unwrap();
        TestNamespace { cluster, namespace, version: "v1alpha1" }
    }

    /// The namespace `default`.
    pub(crate) fn default(cluster: &'c Cluster) -> Self {
        TestNamespace { cluster, namespace: "default".into(), version: "v1alpha1" }
    }

    /// The same namespace, with the other API version.
    pub(crate) fn beta(self) -> Self {
        TestNamespace { version: "v1beta1", ..self }
    }

    pub(crate) fn memcacheds(&self) -> String {
        let TestNamespace { namespace, version, .. } = self;
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

    /// Changes the spec of a Memcached, and waits until the controller has reconciled it.
    pub(crate) fn change(&self, name: &str, spec: Value) {
        let path = format!("{}/{name}", self.memcacheds());
        self.cluster.patch(&path, &json!({"spec": spec})).unwrap();
        self.reconciled(name);
    }

    /// The condition of a Memcached, once the controller has reconciled its current generation.
    #[track_caller]
    pub(crate) fn reconciled(&self, name: &str) -> Value {
        let path = format!("{}/{name}", self.memcacheds());
        eventually("the controller has reconciled it", || {
            let memcached = self.cluster.get(&path).unwrap();
            let conditions = memcached["status"]["conditions"].as_array()?;
            let condition = conditions.iter().find(|one| one["type"] == "NetworkPolicyReady")?;
            (condition["observedGeneration"] == memcached["metadata"]["generation"])
                .then(|| condition.clone())
        })
    }

    /// The policy of a name, if it exists.
    pub(crate) fn policy(&self, name: &str) -> Option<Value> {
        match self.cluster.get(&format!("{}/{name}", self.policies())) {
            Ok(policy) => Some(policy),
            Err(kube::Error::Api(status)) if status.is_not_found() => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The ports that a policy opens.
    pub(crate) fn ports(&self, name: &str) -> Vec<i64> {
        let policy = self.policy(name).expect("the policy exists");
        assert_eq!(policy["spec"]["ingress"].as_array().unwrap().len(), 1, "{policy}");
        let ports = policy["spec"]["ingress"][0]["ports"].as_array().unwrap().clone();
        ports.iter().map(|port| port["port"].as_i64().unwrap()).collect()
    }

    /// Waits for an Event about a Memcached.
    #[track_caller]
    pub(crate) fn event(&self, name: &str, reason: &str) -> Value {
        let path = format!("/api/v1/namespaces/{}/events", self.namespace);
        eventually(&format!("an Event with the reason {reason}"), || {
            let events = self.cluster.get(&path).unwrap()["items"].as_array().unwrap().clone();
            events
                .into_iter()
                .find(|event| event["involvedObject"]["name"] == name && event["reason"] == reason)
        })
    }
}

/// A spec that enables the policy.
pub(crate) fn enabled() -> Value {
    json!({"replicas": 3, "security": {"networkPolicy": {"enabled": true}}})
}
