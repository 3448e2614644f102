//! One look at a cluster.

use std::{error::Error, fs, path::Path};

use serde_json::json;
use weir_api::Owner;
use weir_cluster::Right;
use weir_kube::{Access, Pods, ReadError, read_cluster};
use weir_model::{Object, PodId};

use crate::{cluster, namespace, pod, pods_of, policies_of, policy, run_pod};

fn look(access: &weir_cluster::Access) -> Result<weir_api::Manifests, ReadError> {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = access.write_kubeconfig(folder.path()).unwrap();
    read_cluster(&Access::new(Some(&kubeconfig), Some("test")), |_| ())
}

#[test]
fn one_look_sees_everything_as_it_is() {
    let cluster = cluster();
    namespace(cluster, "look", json!({"team": "a"}));
    run_pod(cluster, "look", "web", "10.6.0.1");
    let mut waiting = pod("api-5d4f-x");
    waiting["metadata"]["labels"]["pod-template-hash"] = "5d4f".into();
    waiting["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "api-5d4f", "uid": "1"}]);
    cluster.create(&pods_of("look"), &waiting).unwrap();
    cluster.create(&policies_of("look"), &policy("lock", "web")).unwrap();
    let manifests = look(cluster.admin()).unwrap();
    let ours = |object: &&Object| match object {
        Object::Pod(pod) => &*pod.id.namespace == "look",
        Object::Policy(policy) => &*policy.id.namespace == "look",
        Object::Namespace(namespace) => &*namespace.name == "look",
        _ => false,
    };
    let ours: Vec<&Object> = manifests.objects.iter().filter(ours).collect();
    assert_eq!(ours.len(), 4, "{ours:#?}");
    let addresses = ours.iter().filter_map(|object| match object {
        Object::Pod(pod) => Some(pod.addresses.len()),
        _ => None,
    });
    assert_eq!(addresses.sum::<usize>(), 1, "nothing is made up");
    let owner = Owner { namespace: "look".into(), kind: "deployment".into(), name: "api".into() };
    assert_eq!(manifests.owners[&owner], [PodId::new("look", "api-5d4f-x")]);
    assert!(manifests.synthetic.is_empty());
}

#[test]
fn single_pods_are_read_as_they_are_now() {
    let cluster = cluster();
    namespace(cluster, "single", json!({}));
    run_pod(cluster, "single", "web", "10.6.1.1");
    let folder = tempfile::tempdir().unwrap();
    let right = Right { group: "", resources: &["pods"], verbs: &["get"] };
    let user = cluster.user("getter", &[right]).unwrap();
    let kubeconfig = user.write_kubeconfig(folder.path()).unwrap();
    let pods = Pods::new(Access::new(Some(&kubeconfig), None)).unwrap();
    let pod = pods.get("single", "web").unwrap().unwrap();
    assert_eq!((&*pod.id.name, pod.addresses.len(), pod.node.as_deref()), ("web", 1, Some("n1")));
    assert!(pod.uid.is_some());
    for (namespace, name) in
        [("single", "api"), ("nowhere", "web"), ("single", ""), ("single/pods/web", "log")]
    {
        assert_eq!(pods.get(namespace, name).unwrap(), None, "{namespace} {name}");
    }
    // A token that no longer counts, and one that does again.
    fs::write(folder.path().join("token"), "no such token").unwrap();
    let stranger = Pods::new(Access::new(Some(&kubeconfig), None)).unwrap();
    assert!(matches!(stranger.get("single", "web"), Err(ReadError::Unauthorized)));
    fs::write(folder.path().join("token"), &user.token).unwrap();
    assert!(stranger.get("single", "web").unwrap().is_some());
}

#[test]
fn who_may_not_read_is_told_what_is_missing() {
    let cluster = cluster();
    let right = Right { group: "", resources: &["pods", "namespaces", "nodes"], verbs: &["list"] };
    let user = cluster.user("only-pods", &[right]).unwrap();
    let error = look(&user).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the API server forbids to list networkpolicies.networking.k8s.io"
    );
    assert!(error.hint().contains(
        r#"apiGroups ["networking.k8s.io"], resources ["networkpolicies"], verbs ["list"]"#
    ));
    let stranger = weir_cluster::Access { token: "no such token".into(), ..user.clone() };
    assert!(matches!(look(&stranger), Err(ReadError::Unauthorized)));
    let nowhere = weir_cluster::Access { url: "https://127.0.0.1:1".into(), ..user };
    let error = look(&nowhere).unwrap_err();
    assert_eq!(error.to_string(), "cannot reach the API server");
    assert!(error.source().unwrap().to_string().contains("refused"), "{error:?}");
    let missing = read_cluster(&Access::new(Some(Path::new("no/such/kubeconfig")), None), |_| ());
    let error = missing.unwrap_err();
    assert_eq!(error.to_string(), "cannot use the kubeconfig no/such/kubeconfig");
}
