//! Live clusters of a ClusterSet. `cargo xtask cluster build` provides the API servers.

use std::{fs, path::Path, process::Output, thread, time::Duration};

use serde_json::{Value, json};
use weir_cluster::Cluster;

use crate::{command, stderr, stdout, text_of};

const POLICIES: &str = "/apis/submariner.io/v1alpha1/namespaces/shop/clustersetnetworkpolicies";
const NETWORK_POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";

/// Starts a cluster with pods, each with its app and its address.
fn start(pods: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::start().unwrap();
    cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).unwrap();
    for (name, address) in pods {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        cluster.create("/api/v1/namespaces/shop/pods", &pod).unwrap();
        let status =
            json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
        cluster.patch(&format!("/api/v1/namespaces/shop/pods/{name}/status"), &status).unwrap();
    }
    cluster
}

/// Installs the kind ClusterSetNetworkPolicy.
fn install(cluster: &Cluster) {
    let crd = weir_controllers::crds::ALL
        .iter()
        .find(|crd| crd.name.starts_with("clustersetnetworkpolicies."))
        .unwrap();
    let crd: Value = serde_saphyr::from_str(crd.yaml).unwrap();
    cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).unwrap();
    for _ in 0..100 {
        if cluster.get(POLICIES).is_ok() {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("the kind is not served");
}

/// A policy of the database: only pods with this app may reach it, in any cluster.
fn policy(app: &str) -> Value {
    json!({
        "apiVersion": "submariner.io/v1alpha1", "kind": "ClusterSetNetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}],
        },
    })
}

/// Writes a kubeconfig with a context for each cluster.
fn kubeconfig(folder: &Path, clusters: &[(&str, &Cluster)]) {
    let mut config =
        json!({"apiVersion": "v1", "kind": "Config", "contexts": [], "clusters": [], "users": []});
    for (name, cluster) in clusters {
        let access = cluster.admin();
        let ca = folder.join(format!("{name}.pem"));
        fs::write(&ca, &access.ca).unwrap();
        let entries = [
            ("contexts", json!({"name": name, "context": {"cluster": name, "user": name}})),
            (
                "clusters",
                json!({"name": name, "cluster": {"server": access.url, "certificate-authority": ca}}),
            ),
            ("users", json!({"name": name, "user": {"token": access.token}})),
        ];
        for (list, entry) in entries {
            config[list].as_array_mut().unwrap().push(entry);
        }
    }
    fs::write(folder.join("kubeconfig"), config.to_string()).unwrap();
}

#[test]
fn live_clusters_are_read_with_their_clusterset_policies_and_manifests_are_applied_to_them() {
    let east = start(&[("db", "10.1.0.2"), ("api", "10.1.0.3")]);
    // The second cluster lacks the kind.
    let west = start(&[("api", "10.2.0.2"), ("job", "10.2.0.3")]);
    install(&east);
    let uid = east.create(POLICIES, &policy("api")).unwrap()["metadata"]["uid"].clone();
    let uid = uid.as_str().unwrap();
    // A translation that is out of date: its controller has stopped.
    let owner = json!({
        "apiVersion": "submariner.io/v1alpha1", "kind": "ClusterSetNetworkPolicy",
        "name": "db", "uid": uid, "controller": true,
    });
    let written = json!({
        "metadata": {"name": format!("csnp-{uid}-i4-0a020000-16"), "ownerReferences": [owner]},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"ipBlock": {"cidr": "10.2.0.3/32"}}]}],
        },
    });
    east.create(NETWORK_POLICIES, &written).unwrap();
    let folder = tempfile::tempdir().unwrap();
    kubeconfig(folder.path(), &[("e", &east), ("w", &west)]);
    let run = |arguments: &str| -> Output {
        let clusters = "--cluster east=context:e --cluster west=context:w --kubeconfig";
        command()
            .args(arguments.split_whitespace())
            .args(clusters.split_whitespace())
            .arg(folder.path().join("kubeconfig"))
            .output()
            .unwrap()
    };
    let rendered = run("render");
    let text = stdout(&rendered);
    assert!(text.contains("# east: ClusterSetNetworkPolicy shop/db"), "{}", text_of(&rendered));
    assert!(text.contains("10.2.0.2/32") && !text.contains("10.2.0.3/32"), "{text}");
    let explained = |pod: &str, more: &str| {
        let output =
            run(&format!("explain --from west:shop/{pod} --to east:shop/db --port 80 {more}"));
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", stderr(&output));
        output.status.code() == Some(0)
    };
    assert!(explained("api", ""));
    assert!(!explained("job", ""), "the ClusterSetNetworkPolicy decides, not its translation");
    // A new version of the policy, before it is applied.
    let file = folder.path().join("new.json");
    fs::write(&file, policy("job").to_string()).unwrap();
    let more = format!("--cluster east={}", file.display());
    assert!(!explained("api", &more));
    assert!(explained("job", &more));
}
