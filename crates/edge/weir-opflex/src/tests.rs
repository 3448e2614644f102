use std::{fs, sync::Arc};

use serde_json::json;
use weir_aci::{Files, Folder, Kind, Settings};
use weir_controllers::{Object, Told};

use crate::{
    desk::Desk,
    home::Home,
    pressed::{pressed, unpressed},
    report::Report,
    run::News,
};

fn object(value: serde_json::Value) -> Object {
    pressed(serde_json::from_value(value).unwrap())
}

/// A HostprotPol of one rule, for the pods with a label in `shop`.
fn pol(name: &str, label: &str) -> Object {
    let selects = json!([{"namespaces": ["shop"], "pods": [{"key": "app", "operator": "Equals", "values": [label]}]}]);
    object(json!({
        "metadata": {"name": name.replace('_', "-"), "annotations": {"weir/selects": selects.to_string()}},
        "spec": {
            "name": name,
            "networkPolicies": ["shop/np"],
            "hostprotSubj": [{"name": "networkpolicy-ingress", "hostprotRule": [{
                "name": "0-ipv4", "direction": "ingress", "ethertype": "ipv4", "connTrack": "reflexive",
                "rsRemoteIpContainer": ["shop"],
            }]}],
        },
    }))
}

/// The HostprotPol of the node.
fn own() -> Object {
    object(json!({
        "metadata": {"name": "k-node-n1"},
        "spec": {"name": "k_node_n1", "networkPolicies": ["k_node_n1"]},
    }))
}

fn container(address: &str) -> Object {
    object(
        json!({"metadata": {"name": "shop"}, "spec": {"name": "shop", "hostprotRemoteIp": [{"addr": address}]}}),
    )
}

fn pod(name: &str, label: &str) -> Object {
    let value = json!({"metadata": {"namespace": "shop", "name": name, "labels": {"app": label}}});
    serde_json::from_value(value).unwrap()
}

struct Node {
    desk: Desk,
    place: tempfile::TempDir,
    report: Arc<Report>,
}

/// A desk of the node `n1` in a folder.
fn desk(place: &tempfile::TempDir) -> (Desk, Arc<Report>) {
    let report = Arc::new(Report::new("n1"));
    let home = Home { namespace: "aci".into(), node: "n1".into(), prefix: "k".into() };
    let files = Files::new(&Settings { prefix: "k".into() }, "k", "n1");
    let folder = Folder::open(place.path()).unwrap();
    (Desk::new(home, files, folder, report.clone()), report)
}

impl Node {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        // What an earlier agent has left.
        fs::write(place.path().join("k_np_old.netpol"), "[]").unwrap();
        let (desk, report) = desk(&place);
        Node { desk, place, report }
    }

    /// One that has read everything.
    fn with(mut pols: Vec<Object>, pods: Vec<Object>) -> Self {
        let mut node = Node::new();
        pols.push(own());
        node.desk.take(News::Pol(Told::Listed("v1", pols)));
        node.desk.take(News::Container(Told::Listed("v1", vec![container("10.0.0.1")])));
        node.desk.take(News::Pod(Told::Listed("v1", pods)));
        node.desk.settle();
        node
    }

    fn tell(&mut self, news: News) {
        self.desk.take(news);
        self.desk.settle();
    }

    /// All files, without that of the node itself.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.place.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != "k_node_n1.netpol");
        names.sort();
        names
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.place.path().join(name)).unwrap()
    }
}

#[test]
fn nothing_is_touched_before_everything_was_read() {
    let mut node = Node::new();
    node.tell(News::Pol(Told::Listed("v1", vec![own(), pol("k_np_1", "web")])));
    node.tell(News::Pod(Told::Listed("v1", vec![pod("a", "web")])));
    node.tell(News::Container(Told::Trouble(Some("away".into()))));
    assert_eq!(node.files(), ["k_np_old.netpol"]);
    assert!(!node.desk.is_in_sync());
    assert_eq!(node.report.reasons(), ["away"]);
    node.desk.take(News::Container(Told::Trouble(None)));
    node.desk.take(News::Container(Told::Listed("v1", vec![container("10.0.0.1")])));
    assert_eq!(node.report.reasons(), ["the folder is not compared yet"]);
    node.desk.settle();
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    assert_eq!(node.report.reasons(), [""; 0]);
    assert!(node.desk.is_in_sync());
}

#[test]
fn without_the_object_of_the_node_nothing_is_touched_and_it_is_told_why() {
    for (pols, why) in [
        (Vec::new(), "there are no HostprotPols in namespace aci"),
        (vec![pol("k_np_1", "web")], "none of the 1 HostprotPols in namespace aci is k_node_n1"),
    ] {
        let mut node = Node::new();
        node.desk.take(News::Pol(Told::Listed("v1", pols)));
        node.desk.take(News::Container(Told::Listed("v1", vec![container("10.0.0.1")])));
        node.tell(News::Pod(Told::Listed("v1", vec![pod("a", "web")])));
        assert_eq!(node.files(), ["k_np_old.netpol"]);
        assert!(node.desk.is_strange() && !node.desk.is_in_sync());
        assert!(node.report.reasons()[0].starts_with(why), "{:?}", node.report.reasons());
        // As soon as it is there, so is the rest.
        node.tell(News::Pol(Told::Listed("v1", vec![own(), pol("k_np_1", "web")])));
        assert_eq!(node.files(), ["k_np_1.netpol"]);
        assert_eq!(node.report.reasons(), [""; 0]);
    }
}

#[test]
fn an_object_of_the_node_that_cannot_be_read_is_that_of_the_node_nevertheless() {
    let mut node = Node::new();
    let broken = object(json!({"metadata": {"name": "k-node-n1"}, "spec": {"name": 5}}));
    node.desk.take(News::Pol(Told::Listed("v1", vec![broken, pol("k_np_1", "web")])));
    node.desk.take(News::Container(Told::Listed("v1", Vec::new())));
    node.tell(News::Pod(Told::Listed("v1", vec![pod("a", "web")])));
    assert_eq!(node.files(), ["k_np_1.netpol"]);
}

#[test]
fn who_was_at_home_once_believes_that_there_is_nothing_any_more() {
    let mut node = Node::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    node.tell(News::Pol(Told::Gone(own())));
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    assert!(!node.place.path().join("k_node_n1.netpol").exists());
    assert!(node.report.reasons()[0].starts_with("the object of this node, k_node_n1, is gone"));
    node.tell(News::Pol(Told::Gone(pol("k_np_1", "web"))));
    assert_eq!(node.files(), [""; 0]);
    assert_eq!(node.report.reasons(), [""; 0]);
}

#[test]
fn files_are_those_of_objects_that_select_a_pod_of_the_node() {
    let pols = vec![pol("k_np_1", "web"), pol("k_np_2", "db")];
    let mut node = Node::with(pols, vec![pod("a", "web")]);
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    node.tell(News::Pod(Told::Put(pod("b", "db"))));
    assert_eq!(node.files(), ["k_np_1.netpol", "k_np_2.netpol"]);
    node.tell(News::Pod(Told::Put(pod("c", "db"))));
    node.tell(News::Pod(Told::Gone(pod("b", "db"))));
    assert_eq!(node.files().len(), 2, "another pod still needs it");
    node.tell(News::Pod(Told::Listed("v1", vec![pod("a", "web")])));
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    node.tell(News::Pol(Told::Gone(pol("k_np_1", "web"))));
    node.tell(News::Pol(Told::Listed("v1", Vec::new())));
    assert_eq!(node.files(), [""; 0]);
    assert_eq!(node.report.metrics.repairs.get(), 0, "what we do ourselves is no disturbance");
}

#[test]
fn a_container_changes_the_files_of_those_that_refer_to_it() {
    let mut node = Node::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    assert!(node.text("k_np_1.netpol").contains("10.0.0.1"));
    node.tell(News::Container(Told::Put(container("10.0.0.2"))));
    let text = node.text("k_np_1.netpol");
    assert!(text.contains("10.0.0.2") && !text.contains("10.0.0.1"));
    node.tell(News::Container(Told::Gone(container("10.0.0.2"))));
    assert!(!node.text("k_np_1.netpol").contains("GbpLocalSecGroupRule"));
}

#[test]
fn what_cannot_be_read_counts_as_it_was_before() {
    let mut node = Node::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    let before = node.text("k_np_1.netpol");
    let broken = object(json!({"metadata": {"name": "k-np-1"}, "spec": {"name": 5}}));
    node.tell(News::Pol(Told::Put(broken.clone())));
    assert_eq!(node.text("k_np_1.netpol"), before);
    let reasons = node.report.reasons().join("\n");
    assert!(reasons.contains("HostprotPol k-np-1: spec cannot be read"), "{reasons}");
    // Also what an earlier agent has read, and we cannot.
    let place = node.place;
    let (desk, report) = desk(&place);
    let mut node = Node { desk, place, report };
    node.desk.take(News::Pol(Told::Listed("v1", vec![own(), broken])));
    node.desk.take(News::Container(Told::Listed("v1", Vec::new())));
    node.tell(News::Pod(Told::Listed("v1", Vec::new())));
    assert_eq!(node.text("k_np_1.netpol"), before);
}

#[test]
fn an_object_that_lost_a_field_allows_nothing_until_it_is_whole() {
    let sealed = |kind: Kind, object: &Object| {
        weir_aci::Object::read(kind, &unpressed(object)).unwrap().manifest("x")
    };
    let whole = sealed(Kind::Pol, &pol("k_np_1", "web"));
    let mut node = Node::with(vec![object(whole.clone())], vec![pod("a", "web")]);
    let before = node.text("k_np_1.netpol");
    assert!(before.contains("10.0.0.1"));
    // Without its container, the rule would be one for all.
    let mut less = whole.clone();
    let rule = less.pointer_mut("/spec/hostprotSubj/0/hostprotRule/0").unwrap();
    assert!(rule.as_object_mut().unwrap().remove("rsRemoteIpContainer").is_some());
    node.tell(News::Pol(Told::Listed("v1", vec![own(), object(less)])));
    assert!(!node.text("k_np_1.netpol").contains("GbpLocalSecGroupRule"));
    let reasons = node.report.reasons().join("\n");
    assert!(reasons.contains("HostprotPol k-np-1: spec cannot be read"), "{reasons}");
    node.tell(News::Pol(Told::Put(object(whole))));
    assert_eq!(node.text("k_np_1.netpol"), before);
    assert_eq!(node.report.reasons(), [""; 0]);
    // Nor is anybody in a container that lost what its addresses are.
    let mut less = sealed(Kind::Container, &container("10.0.0.1"));
    less["spec"]["hostprotRemoteIp"][0]["hppEpLabel"] = json!([{"key": "a", "value": "b"}]);
    node.tell(News::Container(Told::Put(object(less))));
    assert!(!node.text("k_np_1.netpol").contains("GbpLocalSecGroupRule"));
}

#[test]
fn what_others_do_to_the_files_is_put_right() {
    let mut node = Node::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    let before = node.text("k_np_1.netpol");
    fs::write(node.place.path().join("k_np_1.netpol"), "[]").unwrap();
    fs::write(node.place.path().join("foreign.netpol"), "[]").unwrap();
    node.desk.settle();
    assert_eq!((node.files(), node.text("k_np_1.netpol")), (vec!["k_np_1.netpol".into()], before));
    assert_eq!(node.report.metrics.repairs.get(), 1);
    fs::remove_file(node.place.path().join("k_np_1.netpol")).unwrap();
    node.desk.settle();
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    let writes = node.report.metrics.writes.get();
    node.desk.distrust();
    node.desk.settle();
    assert_eq!(node.report.metrics.writes.get(), writes, "what is so is not written again");
}

#[test]
fn a_folder_that_is_gone_is_told_and_tried_again() {
    let mut node = Node::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    fs::remove_dir_all(node.place.path()).unwrap();
    node.desk.settle();
    assert!(node.report.reasons()[0].starts_with("cannot write"), "{:?}", node.report.reasons());
    fs::create_dir(node.place.path()).unwrap();
    node.desk.settle();
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    assert_eq!(node.report.reasons(), [""; 0]);
}
