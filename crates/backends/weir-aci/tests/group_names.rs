//! Files with the names of policies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;

use weir_aci::{
    AciSettings, Evaluator, Files, GroupNames, HostprotId, HostprotKind, Hpp, Netpol, Pol,
};
use weir_api::ManifestReader;
use weir_model::{Change, Key, PodId, PolicyId, PolicyKind};

const CLUSTER: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: one, namespace: shop, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}, status: {podIPs: [{ip: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: two, namespace: shop, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}, status: {podIPs: [{ip: 10.0.0.2}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: shop}, spec: {podSelector: {}, ingress: [{ports: [{port: 443}]}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: b, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 443}]}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: named, namespace: shop}, spec: {podSelector: {}, ingress: [{ports: [{port: http}, {port: 443}]}]}}
"#;

struct Node {
    hpp: Hpp,
    files: Files,
    on_disk: BTreeMap<String, Netpol>,
}

impl Node {
    fn new() -> Self {
        Node::with(GroupNames::Policy)
    }

    fn with(group_names: GroupNames) -> Self {
        let settings = AciSettings { prefix: "k".into() };
        let mut reader = ManifestReader::new();
        reader.read_file("cluster.yaml".into(), CLUSTER.as_bytes());
        let objects = reader.finish().objects;
        let files = Files::new(&settings, "k", "n1", group_names);
        let mut node = Node { hpp: Hpp::new(settings), files, on_disk: BTreeMap::new() };
        objects.pods().for_each(|pod| node.files.put_pod(pod));
        let first: Vec<_> = node.hpp.objects().values().cloned().collect();
        first.into_iter().for_each(|object| node.files.put(object));
        node.apply(&objects.into_iter().map(Change::Put).collect::<Vec<_>>());
        node
    }

    fn apply(&mut self, changes: &[Change]) {
        for (id, object) in self.hpp.apply(changes) {
            match object {
                Some(object) => self.files.put(object),
                None => self.files.remove(&id),
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        for (name, file) in self.files.drain_dirty() {
            match file {
                Some(file) => self.on_disk.insert(name, file),
                None => self.on_disk.remove(&name),
            };
        }
    }

    /// The files of policies.
    fn names(&self) -> Vec<&str> {
        let names = self.on_disk.keys().map(String::as_str);
        names.filter(|name| name.starts_with("k_np_shop")).collect()
    }
}

fn policy(name: &str) -> Key {
    let (namespace, name) = ("shop".into(), name.into());
    Key::Policy(PolicyId { kind: PolicyKind::NetworkPolicy, namespace, name })
}

#[test]
fn each_policy_has_a_file_also_if_policies_share_an_object() {
    let mut node = Node::new();
    let all = ["k_np_shop_a.netpol", "k_np_shop_b.netpol", "k_np_shop_named.netpol"];
    assert_eq!(node.names(), all);
    let [a, b] = [all[0], all[1]].map(|name| node.on_disk[name].text.clone());
    assert_eq!(a.replace("k_np_shop_a", "k_np_shop_b"), b);
    node.apply(&[Change::Remove(policy("a"))]);
    assert_eq!(node.names(), all[1..]);
    assert_eq!(node.on_disk[all[1]].text, b);
    for id in [HostprotKind::Pol, HostprotKind::Container] {
        let objects = node.hpp.objects().keys().filter(|known| known.kind == id).cloned();
        objects.collect::<Vec<HostprotId>>().iter().for_each(|id| node.files.remove(id));
    }
    node.drain();
    assert_eq!(node.on_disk.len(), 0);
}

/// An endpoint finds its groups, whichever names it lists.
#[test]
fn both_names_have_files_with_the_same_rules() {
    let [mut both, mut hash, mut policy] =
        [GroupNames::Both, GroupNames::Hash, GroupNames::Policy].map(Node::with);
    let check = |both: &Node, hash: &Node, policy: &Node| {
        let mut all = hash.on_disk.clone();
        all.extend(policy.on_disk.clone());
        assert_eq!(both.on_disk, all);
        for (name, file) in &both.on_disk {
            let group = name.trim_end_matches(".netpol");
            let objects: serde_json::Value = serde_json::from_str(&file.text).unwrap();
            assert_eq!(objects[0]["subject"], "GbpLocalSecGroup", "{name}");
            assert_eq!(objects[0]["properties"][0]["data"], group, "{name}");
            Evaluator::default().add(&file.text).unwrap();
        }
    };
    check(&both, &hash, &policy);
    let shared = |pol: &&Pol| pol.spec.network_policies == ["shop/a", "shop/b"];
    let shared = both.files.pols().find(shared).unwrap().spec.name.clone();
    let of_hash = &both.on_disk[&format!("{shared}.netpol")].text;
    let of_policy = &both.on_disk["k_np_shop_a.netpol"].text;
    assert_eq!(of_hash.replace(&shared, "k_np_shop_a"), *of_policy);
    // The files stay equal when a policy, and then the last pods go.
    let pods = ["one", "two"].map(|name| Change::Remove(Key::Pod(PodId::new("shop", name))));
    for changes in [&[Change::Remove(self::policy("a"))][..], &pods] {
        for node in [&mut both, &mut hash, &mut policy] {
            for change in changes {
                if let Change::Remove(Key::Pod(id)) = change {
                    node.files.remove_pod(id);
                }
            }
            node.apply(changes);
        }
        check(&both, &hash, &policy);
    }
    assert_eq!(both.names(), [""; 0]);
}

/// Pods with different numbers share the group, so that only the common rule is right for both.
#[test]
fn a_named_port_with_different_numbers_is_closed_and_reported() {
    let node = Node::new();
    let file = &node.on_disk["k_np_shop_named.netpol"];
    let ports: Vec<&str> = file
        .text
        .split("\"name\": \"dToPort\",\n")
        .skip(1)
        .map(|rest| rest.trim_start().split('\n').next().unwrap())
        .collect();
    assert_eq!(ports, ["\"data\": 443"]);
    assert!(file.warnings[0].contains("a named port has different numbers"), "{:?}", file.warnings);
}
