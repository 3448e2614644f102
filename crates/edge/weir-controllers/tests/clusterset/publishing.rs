//! What a cluster tells the others.

use serde_json::{Value, json};

use crate::{
    eventually,
    setting::{at_broker, set, unused},
    until,
};

/// What the broker has about the pods of a namespace.
fn told(namespace: &str) -> Vec<Value> {
    let all = set().broker.get(&at_broker("remotepods")).unwrap();
    let all = all["items"].as_array().unwrap().iter();
    all.filter(|one| one["spec"]["remoteNamespace"] == namespace).cloned().collect()
}

#[test]
fn pods_and_namespaces_are_created_updated_and_deleted_on_the_broker() {
    let (set, namespace) = (set(), unused("told"));
    set.east.namespace(&namespace, json!({}));
    set.west.namespace(&namespace, json!({"team": "a"}));
    let everyone = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
    set.east.policy(&namespace, "everyone", everyone);
    set.west.pod(&namespace, "web", "web", &["10.2.6.1", "fd02::61"]);
    let pod = eventually("the pod is told", || told(&namespace).pop());
    assert_eq!(pod["apiVersion"], "submariner.io/v1alpha1");
    assert_eq!(pod["metadata"]["name"], format!("west.{namespace}.web"));
    assert_eq!(pod["metadata"]["labels"], json!({"app": "web", "submariner-io/clusterID": "west"}));
    assert_eq!(pod["spec"]["clusterID"], "west");
    assert_eq!(pod["spec"]["podIPs"], json!(["10.2.6.1", "fd02::61"]));
    assert_eq!(pod["spec"]["remoteNamespace"], namespace);
    let path = format!("{}/west.{namespace}", at_broker("remotenamespaces"));
    let remote = eventually("its namespace is told", || set.broker.get(&path).ok());
    assert_eq!(remote["spec"]["clusterID"], "west");
    assert_eq!(remote["metadata"]["labels"]["team"], "a");
    assert_eq!(remote["metadata"]["labels"]["kubernetes.io/metadata.name"], namespace);
    let local = format!("/api/v1/namespaces/{namespace}");
    // A label of the exchange cannot be forged.
    set.west.relabel(
        &format!("{local}/pods/web"),
        json!({"app": "new", "submariner-io/clusterID": "east"}),
    );
    until("a label is updated", || told(&namespace)[0]["metadata"]["labels"]["app"] == "new");
    assert_eq!(told(&namespace)[0]["metadata"]["labels"]["submariner-io/clusterID"], "west");
    set.west.relabel(&local, json!({"team": "b"}));
    until("a label of the namespace is updated", || {
        set.broker.get(&path).unwrap()["metadata"]["labels"]["team"] == "b"
    });
    // What somebody else removes is there again.
    set.broker.delete(&format!("{}/west.{namespace}.web", at_broker("remotepods"))).unwrap();
    until("it is told again", || told(&namespace).len() == 1);
    set.west.cluster.delete(&format!("{local}/pods/web")).unwrap();
    until("it is deleted", || told(&namespace).is_empty());
    until("and so is its namespace", || set.broker.get(&path).is_err());
}

#[test]
fn only_what_another_clusters_policy_can_select_is_told() {
    let (set, namespace) = (set(), unused("asked"));
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
    // Its own policies are nothing to the others.
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "other"}}}]}]});
    set.west.policy(&namespace, "own", spec);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(told(&namespace).is_empty(), "nobody asked");
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]});
    set.east.policy(&namespace, "web", spec);
    until("what is asked for is told", || !told(&namespace).is_empty());
    std::thread::sleep(std::time::Duration::from_secs(1));
    let names: Vec<Value> =
        told(&namespace).iter().map(|one| one["spec"]["podName"].clone()).collect();
    assert_eq!(names, [json!("web")]);
    set.east.cluster.delete(&format!("{}/web", crate::setting::policies(&namespace))).unwrap();
    until("and no longer when nobody asks any more", || told(&namespace).is_empty());
}
