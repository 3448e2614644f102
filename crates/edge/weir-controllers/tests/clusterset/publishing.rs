//! The objects that a cluster publishes.

use serde_json::{Value, json};

use crate::{
    common::eventually,
    fixture::{at_broker, set, unused},
    until,
};

/// The RemotePods of a namespace.
fn published(namespace: &str) -> Vec<Value> {
    let all = set().broker.get(&at_broker("remotepods")).unwrap();
    let all = all["items"].as_array().unwrap().iter();
    all.filter(|one| one["spec"]["remoteNamespace"] == namespace).cloned().collect()
}

#[test]
fn pods_and_namespaces_are_created_updated_and_deleted_on_the_broker() {
    let (set, namespace) = (set(), unused("published"));
    set.east.namespace(&namespace, json!({}));
    set.west.namespace(&namespace, json!({"team": "a"}));
    let everyone = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
    set.east.policy(&namespace, "everyone", everyone);
    set.west.pod(&namespace, "web", "web", &["10.2.6.1", "fd02::61"]);
    let pod = eventually("the pod is published", || published(&namespace).pop());
    assert_eq!(pod["apiVersion"], "submariner.io/v1alpha1");
    assert_eq!(pod["metadata"]["name"], format!("west.{namespace}.web"));
    assert_eq!(pod["metadata"]["labels"], json!({"app": "web", "submariner-io/clusterID": "west"}));
    assert_eq!(pod["spec"]["clusterID"], "west");
    assert_eq!(pod["spec"]["podIPs"], json!(["10.2.6.1", "fd02::61"]));
    assert_eq!(pod["spec"]["remoteNamespace"], namespace);
    let path = format!("{}/west.{namespace}", at_broker("remotenamespaces"));
    let remote = eventually("its namespace is published", || set.broker.get(&path).ok());
    assert_eq!(remote["spec"]["clusterID"], "west");
    assert_eq!(remote["metadata"]["labels"]["team"], "a");
    assert_eq!(remote["metadata"]["labels"]["kubernetes.io/metadata.name"], namespace);
    let local = format!("/api/v1/namespaces/{namespace}");
    // A pod cannot forge a label of the broker.
    set.west.relabel(
        &format!("{local}/pods/web"),
        json!({"app": "new", "submariner-io/clusterID": "east"}),
    );
    until("a label is updated", || published(&namespace)[0]["metadata"]["labels"]["app"] == "new");
    assert_eq!(published(&namespace)[0]["metadata"]["labels"]["submariner-io/clusterID"], "west");
    set.west.relabel(&local, json!({"team": "b"}));
    until("a label of the namespace is updated", || {
        set.broker.get(&path).unwrap()["metadata"]["labels"]["team"] == "b"
    });
    // An object that another client deletes is created again.
    set.broker.delete(&format!("{}/west.{namespace}.web", at_broker("remotepods"))).unwrap();
    until("the pod is published again", || published(&namespace).len() == 1);
    set.west.cluster.delete(&format!("{local}/pods/web")).unwrap();
    until("the RemotePod is deleted", || published(&namespace).is_empty());
    until("the RemoteNamespace is deleted", || set.broker.get(&path).is_err());
}

#[test]
fn pods_of_namespaces_that_are_not_publishable_stay_private() {
    let (set, namespace) = (set(), unused("private"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    let everyone = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
    for (name, address) in [("kube-system", "10.2.17.1"), (&namespace, "10.2.17.2")] {
        set.east.policy(name, "everyone", everyone.clone());
        set.west.pod(name, "private-web", "web", &[address]);
    }
    until("the other pod is published", || published(&namespace).len() == 1);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(published("kube-system"), [] as [Value; 0]);
}

#[test]
fn only_pods_that_policies_of_other_clusters_can_select_are_published() {
    let (set, namespace) = (set(), unused("interests"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    set.west.pod(&namespace, "web", "web", &["10.2.7.1"]);
    set.west.pod(&namespace, "other", "other", &["10.2.7.2"]);
    set.west.pod(&namespace, "done", "web", &["10.2.7.3"]);
    set.west.status(&namespace, "done", "Failed", &["10.2.7.3"]);
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let host = json!({
        "metadata": {"name": "host", "labels": {"app": "web"}},
        "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]},
    });
    set.west.cluster.create(&path, &host).unwrap();
    set.west.status(&namespace, "host", "Running", &["192.168.0.1"]);
    // A cluster's own policies create no interests.
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "other"}}}]}]});
    set.west.policy(&namespace, "own", spec);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(published(&namespace).is_empty(), "no cluster is interested");
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]});
    set.east.policy(&namespace, "web", spec);
    until("the selected pod is published", || !published(&namespace).is_empty());
    std::thread::sleep(std::time::Duration::from_secs(1));
    let names: Vec<Value> =
        published(&namespace).iter().map(|one| one["spec"]["podName"].clone()).collect();
    assert_eq!(names, [json!("web")]);
    set.east.cluster.delete(&format!("{}/web", crate::fixture::policies(&namespace))).unwrap();
    until("without interest the pod is withdrawn", || published(&namespace).is_empty());
}

#[test]
fn a_member_lists_the_remote_pods_that_it_has_received() {
    let (set, namespace) = (set(), unused("listed"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    let everyone = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
    set.east.policy(&namespace, "everyone", everyone);
    let listed = || -> Vec<Value> {
        let (code, body) = set.east_process().get("/remotepods");
        assert_eq!(code, 200, "{body}");
        let list: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(list["kind"], "RemotePodList");
        let pods = list["items"].as_array().unwrap().iter();
        pods.filter(|one| one["spec"]["remoteNamespace"] == namespace).cloned().collect()
    };
    until("the controller leads", || set.east_process().get("/remotepods").0 == 200);
    assert_eq!(listed(), [Value::Null; 0]);
    set.west.pod(&namespace, "web", "web", &["10.2.18.1"]);
    until("the pod is listed", || listed().len() == 1);
    let (pod, on_broker) = (listed().remove(0), published(&namespace).remove(0));
    assert_eq!(pod["spec"], on_broker["spec"]);
    assert_eq!(pod["metadata"]["labels"], on_broker["metadata"]["labels"]);
    set.west.cluster.delete(&format!("/api/v1/namespaces/{namespace}/pods/web")).unwrap();
    until("the pod is no longer listed", || listed().is_empty());
}
