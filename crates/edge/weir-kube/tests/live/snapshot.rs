//! Reading a cluster once, and single pods.

use std::{error::Error, fs, path::Path};

use serde_json::json;
use weir_api::WorkloadRef;
use weir_cluster::Right;
use weir_kube::{Access, ApiError, ClusterKinds, PodClient, read_cluster};
use weir_model::{Object, PodId};

use crate::{cluster, namespace, pod, pods_of, policies_of, policy, run_pod};

pub(crate) fn snapshot(access: &weir_cluster::Access) -> Result<weir_api::Manifests, ApiError> {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = access.write_kubeconfig(folder.path()).unwrap();
    read_cluster(&Access::new(Some(&kubeconfig), Some("test")), ClusterKinds::Policies, |_| ())
}

#[test]
fn a_snapshot_contains_all_objects_unchanged() {
    let cluster = cluster();
    namespace(cluster, "snapshot", json!({"team": "a"}));
    run_pod(cluster, "snapshot", "web", "10.6.0.1");
    let mut waiting = pod("api-5d4f-x");
    waiting["metadata"]["labels"]["pod-template-hash"] = "5d4f".into();
    waiting["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "api-5d4f", "uid": "1"}]);
    cluster.create(&pods_of("snapshot"), &waiting).unwrap();
    cluster.create(&policies_of("snapshot"), &policy("lock", "web")).unwrap();
    let manifests = snapshot(cluster.admin()).unwrap();
    let ours = |object: &Object| match object {
        Object::Pod(pod) => &*pod.id.namespace == "snapshot",
        Object::Policy(policy) => &*policy.id.namespace == "snapshot",
        Object::Namespace(namespace) => &*namespace.name == "snapshot",
        _ => false,
    };
    let ours: Vec<Object> = manifests.objects.clone().into_iter().filter(ours).collect();
    assert_eq!(ours.len(), 4, "{ours:#?}");
    let addresses = ours.iter().filter_map(|object| match object {
        Object::Pod(pod) => Some(pod.addresses.len()),
        _ => None,
    });
    assert_eq!(addresses.sum::<usize>(), 1, "a snapshot has no synthetic addresses");
    let owner =
        WorkloadRef { namespace: "snapshot".into(), kind: "deployment".into(), name: "api".into() };
    assert_eq!(manifests.owners[&owner], [PodId::new("snapshot", "api-5d4f-x")]);
    assert!(manifests.synthetic.is_empty());
}

#[test]
fn a_single_pod_is_read_without_a_watch() {
    let cluster = cluster();
    namespace(cluster, "single", json!({}));
    run_pod(cluster, "single", "web", "10.6.1.1");
    let folder = tempfile::tempdir().unwrap();
    let right = Right { group: "", resources: &["pods"], verbs: &["get"] };
    let user = cluster.user("getter", &[right]).unwrap();
    let kubeconfig = user.write_kubeconfig(folder.path()).unwrap();
    let pods = PodClient::new(Access::new(Some(&kubeconfig), None)).unwrap();
    let pod = pods.get("single", "web").unwrap().unwrap();
    assert_eq!((&*pod.id.name, pod.addresses.len(), pod.node.as_deref()), ("web", 1, Some("n1")));
    assert!(pod.uid.is_some());
    for (namespace, name) in
        [("single", "api"), ("nowhere", "web"), ("single", ""), ("single/pods/web", "log")]
    {
        assert_eq!(pods.get(namespace, name).unwrap(), None, "{namespace} {name}");
    }
    // A token that is rejected, and one that is accepted again.
    fs::write(folder.path().join("token"), "no such token").unwrap();
    let rejected = PodClient::new(Access::new(Some(&kubeconfig), None)).unwrap();
    assert!(matches!(rejected.get("single", "web"), Err(ApiError::Unauthorized)));
    fs::write(folder.path().join("token"), &user.token).unwrap();
    assert!(rejected.get("single", "web").unwrap().is_some());
    // A token file with a line break at the end, as editors and `echo` write it.
    for token in ["no such token", &user.token] {
        fs::write(folder.path().join("token"), format!("{token}\n")).unwrap();
        let pods = PodClient::new(Access::new(Some(&kubeconfig), None)).unwrap();
        let found = pods.get("single", "web");
        assert_eq!(found.is_ok(), token == user.token, "{found:?}");
    }
}

#[test]
fn a_failed_snapshot_names_the_missing_permission() {
    let cluster = cluster();
    let right = Right { group: "", resources: &["pods", "namespaces", "nodes"], verbs: &["list"] };
    let user = cluster.user("only-pods", &[right]).unwrap();
    let error = snapshot(&user).unwrap_err();
    assert_eq!(error.to_string(), "not allowed to list networkpolicies.networking.k8s.io");
    assert!(error.hint().contains(
        r#"apiGroups ["networking.k8s.io"], resources ["networkpolicies"], verbs ["list"]"#
    ));
    let rejected = weir_cluster::Access { token: "no such token".into(), ..user.clone() };
    assert!(matches!(snapshot(&rejected), Err(ApiError::Unauthorized)));
    let nowhere = weir_cluster::Access { url: "https://127.0.0.1:1".into(), ..user };
    let error = snapshot(&nowhere).unwrap_err();
    assert_eq!(error.to_string(), "cannot reach the API server");
    assert!(error.source().unwrap().to_string().contains("refused"), "{error:?}");
    let missing = read_cluster(
        &Access::new(Some(Path::new("no/such/kubeconfig")), None),
        ClusterKinds::Policies,
        |_| (),
    );
    let error = missing.unwrap_err();
    assert_eq!(error.to_string(), "cannot use the kubeconfig no/such/kubeconfig");
}
