//! The example of the published design, step by step, with its objects and files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::{fs, path::Path};

use expect_test::{Expect, expect, expect_file};
use serde_json::{Value, json};
use weir_aci::{AciSettings, RenderedCluster};
use weir_api::ManifestReader;
use weir_model::World;

const POLICY: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: taatfan-np
  namespace: default
  labels:
    test: test-taatfan
spec:
  ingress:
    - from:
        - namespaceSelector:
            matchLabels:
              purpose: production
  podSelector:
    matchLabels:
      app: web
  policyTypes:
    - Ingress
"#;
const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec: {nodeName: k8s20-node-1.local.lan}
status: {podIP: 10.2.0.10}
"#;
const NODE: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: k8s20-node-1.local.lan}
status: {addresses: [{type: InternalIP, address: 192.168.20.1}]}
"#;
const PROD: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: prod, labels: {purpose: production}}
"#;
const PROD_POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: prod-ns-pod, namespace: prod}
status: {podIP: 10.2.64.1}
"#;
const PROD_POD_LABELLED: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: prod-ns-pod, namespace: prod, labels: {app: browser}}
status: {podIP: 10.2.64.1}
"#;

/// The policy with an additional pod selector.
fn filtered() -> String {
    POLICY.replace(
        "              purpose: production\n",
        "              purpose: production\n          podSelector: {matchLabels: {app: browser}}\n",
    )
}

/// A policy with the same rules for other pods in another namespace.
fn second() -> String {
    POLICY
        .replace("taatfan-np", "another-np")
        .replace("default", "prod")
        .replace("app: web", "app: x")
}

fn render(manifests: &[&str]) -> RenderedCluster {
    let mut reader = ManifestReader::new();
    for (at, text) in manifests.iter().enumerate() {
        reader.read_file(format!("{at}.yaml").into(), text.as_bytes());
    }
    let manifests = reader.finish();
    assert_eq!(manifests.findings, []);
    let world: World = manifests.objects.into_iter().collect();
    RenderedCluster::new(&AciSettings { prefix: "demo_xyz1".into() }, "demo_xyz1", &world).unwrap()
}

fn names(cluster: &RenderedCluster) -> Vec<String> {
    let kinds = cluster.hpp().objects().keys();
    kinds.map(|id| format!("{} {}", id.kind.name(), id.name)).collect()
}

fn spec(cluster: &RenderedCluster, name: &str) -> Value {
    let object = cluster.hpp().objects().iter().find(|(id, _)| id.name == name);
    object.unwrap().1.manifest("aci-containers-system")["spec"].clone()
}

fn file(cluster: &RenderedCluster, name: &str) -> String {
    cluster.files().iter().find(|file| file.file == name).unwrap().text.clone()
}

#[track_caller]
fn golden(cluster: &RenderedCluster, name: &str, golden: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(golden);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    expect_file![path].assert_eq(&file(cluster, name));
}

/// The objects with their specs, and the files of a node.
fn everything(cluster: &RenderedCluster) -> String {
    let mut lines = Vec::new();
    for (id, object) in cluster.hpp().objects() {
        let is_fixed = id.name.contains("-static-") || id.name.contains("-node-");
        let spec =
            (!is_fixed).then(|| object.manifest("aci-containers-system")["spec"].to_string());
        lines.push(format!("{} {}", id.kind.name(), id.name));
        lines.extend(spec.map(|spec| format!("  {spec}")));
    }
    lines.extend(cluster.files().iter().map(|file| format!("file {}", file.file)));
    lines.join("\n") + "\n"
}

#[test]
fn the_example_step_by_step() {
    let (filtered, second) = (filtered(), second());
    let steps: [(&str, &[&str]); 8] = [
        ("before any policy", &[WEB, NODE]),
        ("the policy alone", &[POLICY, WEB, NODE]),
        ("a namespace", &[POLICY, WEB, NODE, PROD]),
        ("and a pod in it", &[POLICY, WEB, NODE, PROD, PROD_POD]),
        ("the pod has labels", &[POLICY, WEB, NODE, PROD, PROD_POD_LABELLED]),
        ("and the policy selects them", &[&filtered, WEB, NODE, PROD, PROD_POD_LABELLED]),
        (
            "a second policy has the same rules",
            &[POLICY, &second, WEB, NODE, PROD, PROD_POD_LABELLED],
        ),
        ("both are deleted", &[WEB, NODE, PROD, PROD_POD_LABELLED]),
    ];
    let story: Vec<String> = steps
        .iter()
        .map(|(step, manifests)| format!("# {step}\n{}", everything(&render(manifests))))
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/story.txt");
    expect_file![path].assert_eq(&story.join("\n"));
}

#[track_caller]
fn check(value: &Value, expected: Expect) {
    expected.assert_eq(&serde_json::to_string_pretty(value).unwrap());
}

const NAME: &str = "demo-xyz1-np-54f6fbaeb1e26d3bbcd23109158b9bb3";
const FILE: &str = "demo_xyz1_np_54f6fbaeb1e26d3bbcd23109158b9bb3.netpol";

#[test]
fn a_policy_alone_has_no_rules() {
    let cluster = render(&[POLICY, WEB, NODE]);
    expect![[r#"
        HostprotRemoteIpContainer default
        HostprotPol demo-xyz1-node-k8s20-node-1.local.lan
        HostprotPol demo-xyz1-np-54f6fbaeb1e26d3bbcd23109158b9bb3
        HostprotPol demo-xyz1-np-static-discovery
        HostprotPol demo-xyz1-np-static-egress
        HostprotPol demo-xyz1-np-static-ingress"#]]
    .assert_eq(&names(&cluster).join("\n"));
    let printed = json!({
        "hostprotSubj": [{"name": "networkpolicy-ingress"}],
        "name": "demo_xyz1_np_54f6fbaeb1e26d3bbcd23109158b9bb3",
        "networkPolicies": ["default/taatfan-np"],
    });
    assert_eq!(spec(&cluster, NAME), printed);
    golden(&cluster, FILE, "1-policy-alone.netpol");
}

#[test]
fn a_namespace_without_pods_changes_nothing() {
    let cluster = render(&[POLICY, WEB, NODE, PROD]);
    assert_eq!(spec(&cluster, NAME)["hostprotSubj"], json!([{"name": "networkpolicy-ingress"}]));
    assert_eq!(spec(&cluster, "prod"), json!({"name": "prod"}));
}

#[test]
fn a_namespace_with_a_pod_makes_a_rule() {
    let cluster = render(&[POLICY, WEB, NODE, PROD, PROD_POD]);
    let printed = json!({
        "hostprotSubj": [{
            "hostprotRule": [{
                "connTrack": "reflexive",
                "direction": "ingress",
                "ethertype": "ipv4",
                "fromPort": "unspecified",
                "hostprotFilterContainer": {},
                "name": "0-ipv4",
                "protocol": "unspecified",
                "rsRemoteIpContainer": ["prod"],
                "toPort": "unspecified",
            }],
            "name": "networkpolicy-ingress",
        }],
        "name": "demo_xyz1_np_54f6fbaeb1e26d3bbcd23109158b9bb3",
        "networkPolicies": ["default/taatfan-np"],
    });
    assert_eq!(spec(&cluster, NAME), printed);
    let printed = json!({"hostprotRemoteIp": [{"addr": "10.2.64.1"}], "name": "prod"});
    assert_eq!(spec(&cluster, "prod"), printed);
    golden(&cluster, FILE, "2-namespace-and-pod.netpol");
}

#[test]
fn a_pod_selector_becomes_a_filter() {
    let filtered = filtered();
    let without = render(&[&filtered, WEB, NODE, PROD, PROD_POD]);
    let name = "demo-xyz1-np-5ab57ed77c5abb12b3e258dfd6464877";
    assert_eq!(spec(&without, name)["hostprotSubj"], json!([{"name": "networkpolicy-ingress"}]));
    let with = render(&[&filtered, WEB, NODE, PROD, PROD_POD_LABELLED]);
    let container =
        &spec(&with, name)["hostprotSubj"][0]["hostprotRule"][0]["hostprotFilterContainer"];
    let printed =
        json!({"hostprotFilter": [{"key": "app", "operator": "Equals", "values": ["browser"]}]});
    assert_eq!(*container, printed);
    let printed =
        json!([{"addr": "10.2.64.1", "hppEpLabel": [{"key": "app", "value": "browser"}]}]);
    assert_eq!(spec(&with, "prod")["hostprotRemoteIp"], printed);
    golden(&with, "demo_xyz1_np_5ab57ed77c5abb12b3e258dfd6464877.netpol", "3-labels.netpol");
}

#[test]
fn a_second_policy_with_equal_rules_shares_the_object() {
    let second = second();
    let cluster = render(&[POLICY, &second, WEB, NODE, PROD, PROD_POD]);
    assert_eq!(names(&cluster).iter().filter(|name| name.contains("np-54f6")).count(), 1);
    assert_eq!(
        spec(&cluster, NAME)["networkPolicies"],
        json!(["default/taatfan-np", "prod/another-np"])
    );
    golden(&cluster, FILE, "2-namespace-and-pod.netpol");
}

#[test]
fn a_second_address_family_adds_a_second_rule() {
    let both = |text: &str, address: &str, other: &str| {
        let list = format!("{{podIPs: [{{ip: {address}}}, {{ip: \"{other}\"}}]}}");
        text.replace(&format!("{{podIP: {address}}}"), &list)
    };
    let web = both(WEB, "10.2.0.10", "fd00::10");
    let pod = both(PROD_POD_LABELLED, "10.2.64.1", "fd00:64::1");
    let cluster = render(&[POLICY, &web, NODE, PROD, &pod]);
    let rules = &spec(&cluster, NAME)["hostprotSubj"][0]["hostprotRule"];
    assert_eq!((&rules[0]["name"], &rules[1]["name"]), (&json!("0-ipv4"), &json!("0-ipv6")));
    assert_eq!(rules.as_array().unwrap().len(), 2);
    golden(&cluster, FILE, "4-two-families.netpol");
    for name in ["discovery", "egress", "ingress"] {
        let file = format!("demo_xyz1_np_static-{name}.netpol");
        golden(&cluster, &file, &format!("static-{name}-two-families.netpol"));
    }
}

#[test]
fn an_object_is_deleted_with_its_last_policy() {
    let second = second();
    let one = render(&[&second, WEB, NODE, PROD, PROD_POD]);
    assert_eq!(spec(&one, NAME)["networkPolicies"], json!(["prod/another-np"]));
    let none = render(&[WEB, NODE, PROD, PROD_POD]);
    assert!(!names(&none).iter().any(|name| name.contains("54f6fbae")));
}

#[test]
fn pods_without_policies_have_static_objects() {
    let cluster = render(&[POLICY, WEB, NODE, PROD, PROD_POD]);
    golden(&cluster, "demo_xyz1_np_static-discovery.netpol", "static-discovery.netpol");
    golden(&cluster, "demo_xyz1_np_static-ingress.netpol", "static-ingress.netpol");
    golden(&cluster, "demo_xyz1_np_static-egress.netpol", "static-egress.netpol");
    golden(&cluster, "demo_xyz1_node_k8s20-node-1.local.lan.netpol", "node.netpol");
    check(
        &spec(&cluster, "demo-xyz1-node-k8s20-node-1.local.lan"),
        expect![[r#"
            {
              "name": "demo_xyz1_node_k8s20-node-1.local.lan",
              "hostprotSubj": [
                {
                  "name": "local-node",
                  "hostprotRule": [
                    {
                      "name": "allow-all-ingress",
                      "direction": "ingress",
                      "ethertype": "ipv4",
                      "connTrack": "reflexive",
                      "hostprotFilterContainer": {},
                      "hostprotServiceRemoteIps": [
                        "192.168.20.1"
                      ]
                    }
                  ]
                }
              ],
              "networkPolicies": [
                "demo_xyz1_node_k8s20-node-1.local.lan"
              ]
            }"#]],
    );
}
