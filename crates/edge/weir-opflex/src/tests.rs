use std::{fs, sync::Arc};

use serde_json::{Value, json};
use weir_aci::{AciSettings, Files, Folder, GroupNames, HostprotKind};
use weir_kube::{Item, ObjectEvent, WireObject};

use crate::{
    file_writer::FileWriter,
    identity::NodeIdentity,
    object::{parse_container, parse_pod, parse_pol},
    report::OpflexReport,
    run::OpflexEvent,
};

/// A HostprotPol of one rule, for the pods with a label in `shop`.
fn pol(name: &str, label: &str) -> Value {
    let selects = json!([{"namespaces": ["shop"], "pods": [{"key": "app", "operator": "Equals", "values": [label]}]}]);
    json!({
        "metadata": {"name": name.replace('_', "-"), "annotations": {"weir/selects": selects.to_string()}},
        "spec": {
            "name": name,
            "networkPolicies": ["shop/np"],
            "hostprotSubj": [{"name": "networkpolicy-ingress", "hostprotRule": [{
                "name": "0-ipv4", "direction": "ingress", "ethertype": "ipv4", "connTrack": "reflexive",
                "rsRemoteIpContainer": ["shop"],
            }]}],
        },
    })
}

/// The HostprotPol of the node.
fn own() -> Value {
    json!({
        "metadata": {"name": "k-node-n1"},
        "spec": {"name": "k_node_n1", "networkPolicies": ["k_node_n1"]},
    })
}

/// A HostprotPol that cannot be read.
fn broken(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"name": 5}})
}

fn container(address: &str) -> Value {
    json!({"metadata": {"name": "shop"}, "spec": {"name": "shop", "hostprotRemoteIp": [{"addr": address}]}})
}

fn pod(name: &str, label: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "labels": {"app": label}}})
}

fn listed<T>(objects: Vec<Value>, parse: fn(Value) -> T) -> ObjectEvent<T> {
    let items = objects.into_iter().map(|object| Item::from_object(object, parse)).collect();
    ObjectEvent::Listed { version: "v1", items }
}

fn list_pols(objects: Vec<Value>) -> OpflexEvent {
    OpflexEvent::Pol(listed(objects, parse_pol))
}

fn list_containers(objects: Vec<Value>) -> OpflexEvent {
    OpflexEvent::Container(listed(objects, parse_container))
}

fn list_pods(objects: Vec<Value>) -> OpflexEvent {
    OpflexEvent::Pod(listed(objects, parse_pod))
}

fn put_pol(object: Value) -> OpflexEvent {
    OpflexEvent::Pol(ObjectEvent::Put(Item::from_object(object, parse_pol)))
}

fn put_container(object: Value) -> OpflexEvent {
    OpflexEvent::Container(ObjectEvent::Put(Item::from_object(object, parse_container)))
}

fn put_pod(object: Value) -> OpflexEvent {
    OpflexEvent::Pod(ObjectEvent::Put(Item::from_object(object, parse_pod)))
}

fn remove_pol(object: &Value) -> OpflexEvent {
    OpflexEvent::Pol(ObjectEvent::Removed(object.revision()))
}

struct TestNode {
    writer: FileWriter,
    folder: tempfile::TempDir,
    report: Arc<OpflexReport>,
}

/// A writer for the node `n1` and a folder.
fn file_writer(folder: &tempfile::TempDir) -> (FileWriter, Arc<OpflexReport>) {
    file_writer_with(folder, GroupNames::Hash)
}

fn file_writer_with(
    folder: &tempfile::TempDir,
    group_names: GroupNames,
) -> (FileWriter, Arc<OpflexReport>) {
    let report = Arc::new(OpflexReport::new("n1"));
    let identity = NodeIdentity { namespace: "aci".into(), node: "n1".into(), prefix: "k".into() };
    let files = Files::new(&AciSettings { prefix: "k".into() }, "k", "n1", group_names);
    let folder = Folder::open(folder.path()).unwrap();
    (FileWriter::new(identity, files, folder, report.clone()), report)
}

impl TestNode {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A file of an earlier agent.
        fs::write(folder.path().join("k_np_old.netpol"), "[]").unwrap();
        let (writer, report) = file_writer(&folder);
        TestNode { writer, folder, report }
    }

    /// A node after the first lists.
    fn with(mut pols: Vec<Value>, pods: Vec<Value>) -> Self {
        let mut node = TestNode::new();
        pols.push(own());
        node.writer.apply(list_pols(pols));
        node.writer.apply(list_containers(vec![container("10.0.0.1")]));
        node.writer.apply(list_pods(pods));
        node.writer.flush();
        node
    }

    fn handle(&mut self, message: OpflexEvent) {
        self.writer.apply(message);
        self.writer.flush();
    }

    /// All files, without the one of the node itself.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != "k_node_n1.netpol");
        names.sort();
        names
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }
}

#[test]
fn no_file_changes_before_all_kinds_are_listed() {
    let mut node = TestNode::new();
    node.handle(list_pols(vec![own(), pol("k_np_1", "web")]));
    node.handle(list_pods(vec![pod("a", "web")]));
    node.handle(OpflexEvent::Container(ObjectEvent::Unavailable("unreachable".into())));
    assert_eq!(node.files(), ["k_np_old.netpol"]);
    assert!(!node.writer.is_in_sync());
    assert_eq!(node.report.reasons(), ["unreachable"]);
    node.writer.apply(OpflexEvent::Container(ObjectEvent::Available));
    node.writer.apply(list_containers(vec![container("10.0.0.1")]));
    assert_eq!(node.report.reasons(), ["the folder has not been compared yet"]);
    node.writer.flush();
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    assert_eq!(node.report.reasons(), [""; 0]);
    assert!(node.writer.is_in_sync());
}

#[test]
fn without_the_object_of_the_node_no_file_changes_and_the_reason_is_reported() {
    for (pols, why) in [
        (Vec::new(), "there are no HostprotPols in namespace aci"),
        (vec![pol("k_np_1", "web")], "none of the 1 HostprotPols in namespace aci is k_node_n1"),
    ] {
        let mut node = TestNode::new();
        node.writer.apply(list_pols(pols));
        node.writer.apply(list_containers(vec![container("10.0.0.1")]));
        node.handle(list_pods(vec![pod("a", "web")]));
        assert_eq!(node.files(), ["k_np_old.netpol"]);
        assert!(node.writer.is_unconfirmed() && !node.writer.is_in_sync());
        assert!(node.report.reasons()[0].starts_with(why), "{:?}", node.report.reasons());
        node.handle(list_pols(vec![own(), pol("k_np_1", "web")]));
        assert_eq!(node.files(), ["k_np_1.netpol"]);
        assert_eq!(node.report.reasons(), [""; 0]);
    }
}

#[test]
fn an_unreadable_object_of_the_node_confirms_the_node() {
    let mut node = TestNode::new();
    node.writer.apply(list_pols(vec![broken("k-node-n1"), pol("k_np_1", "web")]));
    node.writer.apply(list_containers(Vec::new()));
    node.handle(list_pods(vec![pod("a", "web")]));
    assert_eq!(node.files(), ["k_np_1.netpol"]);
}

#[test]
fn a_confirmed_node_removes_its_files_when_the_objects_are_gone() {
    let mut node = TestNode::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    node.handle(remove_pol(&own()));
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    assert!(!node.folder.path().join("k_node_n1.netpol").exists());
    let reasons = node.report.reasons();
    assert!(reasons[0].starts_with("the HostprotPol of this node, k_node_n1, is gone"));
    node.handle(remove_pol(&pol("k_np_1", "web")));
    assert_eq!(node.files(), [""; 0]);
    assert_eq!(node.report.reasons(), [""; 0]);
}

#[test]
fn a_file_exists_while_its_object_selects_a_pod_of_the_node() {
    let pols = vec![pol("k_np_1", "web"), pol("k_np_2", "db")];
    let mut node = TestNode::with(pols, vec![pod("a", "web")]);
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    node.handle(put_pod(pod("b", "db")));
    assert_eq!(node.files(), ["k_np_1.netpol", "k_np_2.netpol"]);
    node.handle(put_pod(pod("c", "db")));
    node.handle(OpflexEvent::Pod(ObjectEvent::Removed(pod("b", "db").revision())));
    assert_eq!(node.files().len(), 2, "another pod still needs it");
    node.handle(list_pods(vec![pod("a", "web")]));
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    node.handle(remove_pol(&pol("k_np_1", "web")));
    node.handle(list_pols(Vec::new()));
    assert_eq!(node.files(), [""; 0]);
    assert_eq!(node.report.metrics.repairs.get(), 0, "the agent's own writes need no repair");
}

/// The migration from one kind of names to the other: no step removes a file that endpoints may
/// still list.
#[test]
fn agents_with_both_names_keep_the_files_of_either() {
    let pols = || vec![own(), pol("k_np_1", "web")];
    let mut node = TestNode::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    let before = node.text("k_np_1.netpol");
    let steps = [
        (GroupNames::Both, &["k_np_1.netpol", "k_np_shop_np.netpol"][..], 1),
        (GroupNames::Policy, &["k_np_shop_np.netpol"], 0),
        (GroupNames::Both, &["k_np_1.netpol", "k_np_shop_np.netpol"], 1),
        (GroupNames::Hash, &["k_np_1.netpol"], 0),
    ];
    for (names, files, writes) in steps {
        (node.writer, node.report) = file_writer_with(&node.folder, names);
        node.writer.apply(list_pols(pols()));
        node.writer.apply(list_containers(vec![container("10.0.0.1")]));
        node.handle(list_pods(vec![pod("a", "web")]));
        assert_eq!(node.files(), files);
        assert_eq!(node.report.metrics.writes.get(), writes, "files that exist are not written");
        for file in files {
            let name = file.trim_end_matches(".netpol");
            assert_eq!(node.text(file), before.replace("k_np_1", name));
        }
    }
}

#[test]
fn a_container_changes_the_files_that_refer_to_it() {
    let mut node = TestNode::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    assert!(node.text("k_np_1.netpol").contains("10.0.0.1"));
    node.handle(put_container(container("10.0.0.2")));
    let text = node.text("k_np_1.netpol");
    assert!(text.contains("10.0.0.2") && !text.contains("10.0.0.1"));
    node.handle(OpflexEvent::Container(ObjectEvent::Removed(container("10.0.0.2").revision())));
    assert!(!node.text("k_np_1.netpol").contains("GbpLocalSecGroupRule"));
}

#[test]
fn an_unreadable_object_keeps_its_last_known_good_file() {
    let mut node = TestNode::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    let before = node.text("k_np_1.netpol");
    node.handle(put_pol(broken("k-np-1")));
    assert_eq!(node.text("k_np_1.netpol"), before);
    let reasons = node.report.reasons().join("\n");
    assert!(reasons.contains("HostprotPol k-np-1: spec is invalid"), "{reasons}");
    // Also the file of an earlier agent that could read the object.
    let folder = node.folder;
    let (writer, report) = file_writer(&folder);
    let mut node = TestNode { writer, folder, report };
    node.writer.apply(list_pols(vec![own(), broken("k-np-1")]));
    node.writer.apply(list_containers(Vec::new()));
    node.handle(list_pods(Vec::new()));
    assert_eq!(node.text("k_np_1.netpol"), before);
}

/// Only the object says which policies it belongs to, and so which files it needs.
#[test]
fn with_names_of_policies_a_new_agent_keeps_the_files_of_unreadable_objects() {
    for names in [GroupNames::Policy, GroupNames::Both] {
        let mut node = TestNode::new();
        let restart = |node: &mut TestNode, object: Value| {
            (node.writer, node.report) = file_writer_with(&node.folder, names);
            node.writer.apply(list_pols(vec![own(), object]));
            node.writer.apply(list_containers(vec![container("10.0.0.1")]));
            node.handle(list_pods(vec![pod("a", "web")]));
        };
        restart(&mut node, pol("k_np_1", "web"));
        let files = node.files();
        let before = node.text("k_np_shop_np.netpol");
        restart(&mut node, broken("k-np-1"));
        assert_eq!((node.files(), node.text("k_np_shop_np.netpol")), (files.clone(), before));
        // Also after a comparison with the folder.
        node.writer.distrust();
        node.writer.flush();
        assert_eq!(node.files(), files);
        // The object is readable again, and belongs to another policy.
        let mut other = pol("k_np_1", "web");
        other["spec"]["networkPolicies"] = json!(["shop/other"]);
        node.handle(put_pol(other));
        assert!(!node.files().contains(&"k_np_shop_np.netpol".to_owned()), "{:?}", node.files());
        assert!(node.files().contains(&"k_np_shop_other.netpol".to_owned()), "{:?}", node.files());
        assert_eq!(node.report.metrics.repairs.get(), 0, "the agent's own writes need no repair");
    }
}

#[test]
fn an_object_that_lost_a_field_allows_nothing_until_it_is_complete() {
    let sealed =
        |kind, object: &Value| weir_aci::HostprotObject::parse(kind, object).unwrap().manifest("x");
    let complete = sealed(HostprotKind::Pol, &pol("k_np_1", "web"));
    let mut node = TestNode::with(vec![complete.clone()], vec![pod("a", "web")]);
    let before = node.text("k_np_1.netpol");
    assert!(before.contains("10.0.0.1"));
    // Without its container, the rule would allow every peer.
    let mut incomplete = complete.clone();
    let rule = incomplete.pointer_mut("/spec/hostprotSubj/0/hostprotRule/0").unwrap();
    assert!(rule.as_object_mut().unwrap().remove("rsRemoteIpContainer").is_some());
    node.handle(list_pols(vec![own(), incomplete]));
    assert!(!node.text("k_np_1.netpol").contains("GbpLocalSecGroupRule"));
    let reasons = node.report.reasons().join("\n");
    assert!(reasons.contains("HostprotPol k-np-1: spec is invalid"), "{reasons}");
    node.handle(put_pol(complete));
    assert_eq!(node.text("k_np_1.netpol"), before);
    assert_eq!(node.report.reasons(), [""; 0]);
    // A container with an invalid seal has no addresses.
    let mut incomplete = sealed(HostprotKind::Container, &container("10.0.0.1"));
    incomplete["spec"]["hostprotRemoteIp"][0]["hppEpLabel"] = json!([{"key": "a", "value": "b"}]);
    node.handle(put_container(incomplete));
    assert!(!node.text("k_np_1.netpol").contains("GbpLocalSecGroupRule"));
}

#[test]
fn files_that_another_program_changed_are_restored() {
    let mut node = TestNode::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    let before = node.text("k_np_1.netpol");
    fs::write(node.folder.path().join("k_np_1.netpol"), "[]").unwrap();
    fs::write(node.folder.path().join("foreign.netpol"), "[]").unwrap();
    node.writer.flush();
    assert_eq!((node.files(), node.text("k_np_1.netpol")), (vec!["k_np_1.netpol".into()], before));
    assert_eq!(node.report.metrics.repairs.get(), 1);
    fs::remove_file(node.folder.path().join("k_np_1.netpol")).unwrap();
    node.writer.flush();
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    let writes = node.report.metrics.writes.get();
    node.writer.distrust();
    node.writer.flush();
    assert_eq!(node.report.metrics.writes.get(), writes, "equal files are not written again");
}

#[test]
fn a_missing_folder_is_reported_and_written_when_it_exists_again() {
    let mut node = TestNode::with(vec![pol("k_np_1", "web")], vec![pod("a", "web")]);
    fs::remove_dir_all(node.folder.path()).unwrap();
    node.writer.flush();
    assert!(node.report.reasons()[0].starts_with("cannot write"), "{:?}", node.report.reasons());
    fs::create_dir(node.folder.path()).unwrap();
    node.writer.flush();
    assert_eq!(node.files(), ["k_np_1.netpol"]);
    assert_eq!(node.report.reasons(), [""; 0]);
}
