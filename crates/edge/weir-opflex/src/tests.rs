use std::{fs, sync::Arc};

use serde_json::json;
use weir_aci::{Files, Folder, Kind, Settings};
use weir_controllers::{Object, Told};

use crate::{desk::Desk, report::Report, run::News};

fn object(value: serde_json::Value) -> Object {
    serde_json::from_value(value).unwrap()
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

fn container(address: &str) -> Object {
    object(
        json!({"metadata": {"name": "shop"}, "spec": {"name": "shop", "hostprotRemoteIp": [{"addr": address}]}}),
    )
}

fn pod(name: &str, label: &str) -> Object {
    object(json!({"metadata": {"namespace": "shop", "name": name, "labels": {"app": label}}}))
}

struct Node {
    desk: Desk,
    place: tempfile::TempDir,
    report: Arc<Report>,
}

impl Node {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        // What an earlier agent has left.
        fs::write(place.path().join("k_np_old.netpol"), "[]").unwrap();
        let report = Arc::new(Report::new("n1"));
        let files = Files::new(&Settings { prefix: "k".into() }, "k", "n1");
        let folder = Folder::open(place.path()).unwrap();
        Node { desk: Desk::new(files, folder, report.clone()), place, report }
    }

    /// One that has read everything.
    fn with(pols: Vec<Object>, pods: Vec<Object>) -> Self {
        let mut node = Node::new();
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

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.place.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
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
    node.tell(News::Pol(Told::Listed("v1", vec![pol("k_np_1", "web")])));
    node.tell(News::Pod(Told::Listed("v1", vec![pod("a", "web")])));
    node.tell(News::Container(Told::Trouble(Some("away".into()))));
    assert_eq!(node.files(), ["k_np_old.netpol"]);
    assert!(!node.desk.is_in_sync());
    assert_eq!(node.report.reasons(), ["away"]);
    node.desk.take(News::Container(Told::Trouble(None)));
    node.tell(News::Container(Told::Listed("v1", vec![container("10.0.0.1")])));
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    assert_eq!(node.report.reasons(), [""; 0]);
    assert!(node.desk.is_in_sync());
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
    let report = Arc::new(Report::new("n1"));
    let files = Files::new(&Settings { prefix: "k".into() }, "k", "n1");
    let desk = Desk::new(files, Folder::open(place.path()).unwrap(), report.clone());
    let mut node = Node { desk, place, report };
    node.desk.take(News::Pol(Told::Listed("v1", vec![broken])));
    node.desk.take(News::Container(Told::Listed("v1", Vec::new())));
    node.tell(News::Pod(Told::Listed("v1", Vec::new())));
    assert_eq!(node.text("k_np_1.netpol"), before);
}

#[test]
fn an_object_that_lost_a_field_allows_nothing_until_it_is_whole() {
    let sealed = |kind: Kind, object: &Object| {
        let value = serde_json::to_value(object).unwrap();
        weir_aci::Object::read(kind, &value).unwrap().manifest("x")
    };
    let whole = sealed(Kind::Pol, &pol("k_np_1", "web"));
    let mut node = Node::with(vec![object(whole.clone())], vec![pod("a", "web")]);
    let before = node.text("k_np_1.netpol");
    assert!(before.contains("10.0.0.1"));
    // Without its container, the rule would be one for all.
    let mut less = whole.clone();
    let rule = less.pointer_mut("/spec/hostprotSubj/0/hostprotRule/0").unwrap();
    assert!(rule.as_object_mut().unwrap().remove("rsRemoteIpContainer").is_some());
    node.tell(News::Pol(Told::Listed("v1", vec![object(less)])));
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
