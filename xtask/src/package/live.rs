//! Tests of the manifests and the chart with a real API server.

use std::{fs, process::Command, sync::OnceLock};

use serde_json::{Value, json};
use weir_cluster::Cluster;

use super::{CHART, CONTROLLER_NAMESPACE, MANIFESTS, NAMESPACE, chart::documents};
use crate::tools::HELM;

/// Fields that the tests' API server, version 1.20, does not know and removes.
const NEWER_FIELDS: [&str; 2] = ["hostProcess", "x-kubernetes-validations"];

/// The first minor version of Kubernetes with `policy/v1`.
const WITH_BUDGETS: u32 = 21;

/// The namespace of Cisco ACI's objects.
pub(super) const ACI: &str = "aci-containers-system";

pub(super) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::start().expect("`cargo xtask cluster build` builds the programs");
        for name in [NAMESPACE, CONTROLLER_NAMESPACE, ACI] {
            let namespace = json!({"metadata": {"name": name}});
            cluster.create("/api/v1/namespaces", &namespace).expect("a namespace");
        }
        cluster
    })
}

/// The API path to create an object.
pub(super) fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]).to_lowercase());
    let root = if version.contains('/') { "apis" } else { "api" };
    let kinds = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{kinds}"),
        None => format!("/{root}/{version}/{kinds}"),
    }
}

/// The first field of `sent` that `answer` lacks. An API server removes fields that it does not know.
fn lost(sent: &Value, answer: &Value, path: &str) -> Option<String> {
    match (sent, answer) {
        (Value::Object(sent), Value::Object(answer)) => sent.iter().find_map(|(key, sent)| {
            let path = format!("{path}.{key}");
            lost(sent, answer.get(key).unwrap_or(&Value::Null), &path)
                .filter(|_| !NEWER_FIELDS.contains(&key.as_str()))
        }),
        (Value::Array(sent), Value::Array(answer)) if sent.len() == answer.len() => {
            let mut pairs = sent.iter().zip(answer).enumerate();
            pairs.find_map(|(n, (sent, answer))| lost(sent, answer, &format!("{path}[{n}]")))
        }
        (sent, answer) => (sent != answer).then(|| format!("{path}: {sent} became {answer}")),
    }
}

#[test]
fn the_api_server_accepts_every_manifest_unchanged() {
    let cluster = cluster();
    for manifest in MANIFESTS {
        let text = fs::read_to_string(manifest.path()).expect("a file");
        for sent in documents(&text) {
            let is_unknown =
                sent["apiVersion"] == "policy/v1" && !cluster.is_at_least(WITH_BUDGETS);
            if sent["kind"] == "Namespace" || is_unknown {
                continue;
            }
            let name = format!("{}: {} {}", manifest.file, sent["kind"], sent["metadata"]["name"]);
            let answer = match cluster.try_create(&collection(&sent), &sent) {
                Ok(answer) => answer,
                Err(error) => panic!("{name}: {error}"),
            };
            assert_eq!(lost(&sent, &answer, ""), None, "{name}");
        }
    }
}

#[test]
fn a_field_that_the_api_server_removes_is_detected() {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
        "name": "typo", "namespace": NAMESPACE, "labls": {}}});
    let answer = cluster().try_create(&collection(&account), &account).expect("an answer");
    assert_eq!(lost(&account, &answer, ""), Some(".metadata.labls: {} became null".into()));
}

#[test]
fn helm_installs_upgrades_cleans_up_and_uninstalls() {
    let cluster = cluster();
    let disk = tempfile::tempdir().expect("a folder");
    let kubeconfig = cluster.admin().write_kubeconfig(disk.path()).expect("a kubeconfig");
    let namespace = json!({"metadata": {"name": "by-helm"}});
    cluster.create("/api/v1/namespaces", &namespace).expect("a namespace");
    let helm = |arguments: &[&str]| {
        let mut helm: Command = HELM.command().expect("helm");
        helm.args(arguments).args(["--namespace", "by-helm", "--kubeconfig"]).arg(&kubeconfig);
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            helm.env(folder, disk.path());
        }
        let output = helm.output().expect("helm runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let sets = || {
        let list = cluster.get("/apis/apps/v1/namespaces/by-helm/daemonsets").expect("a list");
        let names = list["items"].as_array().expect("items").iter();
        names.map(|set| set["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let none: [String; 0] = [];
    let notes = helm(&["install", "shield", CHART, "--set", "agent.cni.enabled=true"]);
    assert!(notes.contains("rollout status daemonset/shield-weir-agent"), "{notes}");
    assert!(notes.contains("Never uninstall without the step above"), "{notes}");
    let current: Vec<String> = sets();
    assert_eq!(current, ["shield-weir-agent"]);
    helm(&["upgrade", "shield", CHART, "--reset-then-reuse-values", "--set", "agent.audit=true"]);
    let notes = helm(&[
        "upgrade",
        "shield",
        CHART,
        "--reset-then-reuse-values",
        "--set",
        "cleanup.enabled=true",
    ]);
    assert!(notes.contains("rollout status daemonset/shield-weir-cleanup"), "{notes}");
    let current: Vec<String> = sets();
    assert_eq!(current, ["shield-weir-cleanup"], "agents and cleanup never run side by side");
    // Helm validates against the OpenAPI of the server, and 1.20 has no CEL rules in definitions.
    const OWN: &str = "controllers-by-helm";
    let own = format!("controller.namespace={OWN}");
    let controller =
        ["--set", "controller.enable={memcached}", "--set", &own, "--disable-openapi-validation"];
    helm(&[&["upgrade", "shield", CHART, "--reset-then-reuse-values"][..], &controller].concat());
    helm(&["uninstall", "shield"]);
    let current: Vec<String> = sets();
    assert_eq!(current, none);
    let definition =
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/memcacheds.memcached.c5c3.io";
    let kept = cluster.get(definition).expect("uninstalling keeps the definitions");
    let namespace = cluster.get(&format!("/api/v1/namespaces/{OWN}")).expect("a namespace");
    let level = &namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
    assert_eq!(level, "restricted", "uninstalling keeps the namespace of the controllers");
    // The definition exists, so the second release does not touch it.
    helm(&[&["install", "other", CHART][..], &controller].concat());
    let current = cluster.get(definition).expect("a definition");
    assert_eq!(current["metadata"]["resourceVersion"], kept["metadata"]["resourceVersion"]);
    helm(&["uninstall", "other"]);
    let roles = cluster.get("/apis/rbac.authorization.k8s.io/v1/clusterroles").expect("a list");
    let roles = roles.to_string();
    assert!(
        !roles.contains("shield-weir") && !roles.contains("other-weir"),
        "uninstalling removes the roles"
    );
}
