//! The rules of semantics about pods and hosts, with objects from an API server.

use std::{fs, path::Path};

use serde_json::{Value, json};
use weir_api::{Case, document};
use weir_cluster::{Cluster, Options};
use weir_model::World;

use crate::{namespace, observer::Observer, pods_of, policies_of};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../cases/semantics");
/// A finalizer that keeps deleted pods in the terminating state.
const HOLD: &str = "weir.test/hold";

#[test]
fn hosts_and_pod_phases_have_the_specified_verdicts() {
    let cluster = Cluster::with(Options::dual_stack().unwrap()).unwrap();
    let mut seen = Observer::start(cluster.admin());
    seen.until_in_sync();
    let mut namespaces = Vec::new();
    let mut probes = 0;
    for (text, case) in ["h.yaml", "y.yaml"].iter().flat_map(|name| read_cases(name)) {
        if case.name.starts_with("Y9") {
            // An API server rejects pods in a namespace that does not exist.
            continue;
        }
        create_objects(&cluster, &text, &mut namespaces);
        seen.until(&case.name, |seen| has_expected_verdicts(&seen.world, &case));
        probes += case.probes.len();
        clear(&cluster, &namespaces);
        seen.until("an empty cluster", |seen| {
            seen.world.pods.is_empty()
                && seen.world.policies.is_empty()
                && seen.world.nodes.is_empty()
        });
    }
    assert!(probes > 40, "only {probes} probes");
}

fn has_expected_verdicts(world: &World, case: &Case) -> bool {
    case.probes.iter().all(|probe| {
        probe.flow(world).is_ok_and(|flow| weir_oracle::verdict(world, &flow) == probe.expect)
    })
}

/// Creates the objects of a case.
fn create_objects(cluster: &Cluster, text: &Value, namespaces: &mut Vec<String>) {
    let items = |key: &str| text[key].as_array().cloned().unwrap_or_default();
    let mut pods = items("pods");
    for file in items("manifests") {
        let of_kind = |kind: &'static str| move |object: &&Value| object["kind"] == kind;
        let all = values(&Path::new(CASES).join(file.as_str().unwrap()));
        pods.extend(all.iter().filter(of_kind("Pod")).map(described));
    }
    let declared = items("namespaces");
    let names = declared.iter().map(|one| &one["name"]);
    for name in names.chain(pods.iter().map(|pod| &pod["namespace"])) {
        let name = name.as_str().unwrap().to_owned();
        if !namespaces.contains(&name) {
            namespace(cluster, &name, json!({}));
            namespaces.push(name);
        }
    }
    for one in &declared {
        let labels = json!({"metadata": {"labels": one["labels"]}});
        cluster.patch(&format!("/api/v1/namespaces/{}", name(one)), &labels).unwrap();
    }
    for node in items("nodes") {
        cluster.create("/api/v1/nodes", &json!({"metadata": {"name": node["name"]}})).unwrap();
        let addresses = node["ips"].as_array().unwrap().iter();
        let addresses: Vec<Value> =
            addresses.map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        let status = json!({"status": {"addresses": addresses}});
        cluster.patch(&format!("/api/v1/nodes/{}/status", name(&node)), &status).unwrap();
    }
    pods.iter().for_each(|pod| create(cluster, pod));
    for policy in items("policies") {
        let path = policies_of(policy["metadata"]["namespace"].as_str().unwrap());
        cluster.create(&path, &policy).unwrap();
    }
}

/// Creates a pod from its description in a case.
fn create(cluster: &Cluster, pod: &Value) {
    let path = pods_of(pod["namespace"].as_str().unwrap());
    let object = json!({
        "metadata": {"name": pod["name"], "labels": pod["labels"], "finalizers": [HOLD]},
        "spec": {
            "nodeName": pod["node"],
            "hostNetwork": pod["hostNetwork"],
            "containers": [{"name": "c", "image": "i", "ports": pod["ports"]}],
        },
    });
    cluster.create(&path, &object).unwrap();
    let path = format!("{path}/{}", name(pod));
    let addresses = pod["ips"].as_array().unwrap();
    let all: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let phase = pod["phase"].as_str().unwrap_or("Running");
    let status = json!({"phase": phase, "podIP": addresses.first(), "podIPs": all});
    cluster.patch(&format!("{path}/status"), &json!({ "status": status })).unwrap();
    if pod["terminating"] == true {
        cluster.delete(&path).unwrap();
    }
}

/// The description of a pod of a manifest, as in a case.
fn described(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    json!({
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "labels": metadata["labels"],
        "terminating": !metadata["deletionTimestamp"].is_null(),
        "ips": [pod["status"]["podIP"]],
    })
}

fn clear(cluster: &Cluster, namespaces: &[String]) {
    for namespace in namespaces {
        let pods = cluster.get(&pods_of(namespace)).unwrap();
        for pod in pods["items"].as_array().unwrap() {
            let path = format!("{}/{}", pods_of(namespace), name(&pod["metadata"]));
            cluster.delete(&path).unwrap();
            cluster.patch(&path, &json!({"metadata": {"finalizers": null}})).unwrap();
        }
        cluster.delete(&policies_of(namespace)).unwrap();
    }
    cluster.delete("/api/v1/nodes").unwrap();
}

fn name(object: &Value) -> &str {
    object["name"].as_str().unwrap()
}

/// The cases of a file, as values and parsed.
fn read_cases(file: &str) -> Vec<(Value, Case)> {
    let path = Path::new(CASES).join(file);
    let cases = weir_api::cases(file.into(), &fs::read(&path).unwrap());
    let texts = values(&path);
    assert!(texts.len() == cases.len() && !texts.is_empty());
    texts.into_iter().zip(cases).collect()
}

fn values(path: &Path) -> Vec<Value> {
    let (roots, _, error) = document::documents(&fs::read(path).unwrap());
    assert_eq!(error, None);
    roots.iter().map(Value::from).collect()
}
