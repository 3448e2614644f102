use expect_test::expect;

use crate::{check, json, weir, weir_reading};

const APPS: &str = "examples/shop/manifests/apps";
const POLICIES: &str = "examples/shop/manifests/policies";

#[test]
fn the_diff_as_json() {
    let output = weir(&format!("diff -f {APPS} {POLICIES} examples/shop/repaired -o json"));
    assert_eq!(output.status.code(), Some(1));
    let answer = json(&output);
    assert_eq!(answer["opened"][0]["from"], serde_json::json!(["shop/api"]));
    assert_eq!(answer["opened"][0]["ports"], serde_json::json!(["5432/TCP"]));
    assert_eq!(answer["closed"].as_array().unwrap().len(), 2);
}

#[test]
fn ports_addresses_and_families_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let world = |ingress: &str| {
        format!(
            "\
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: shop, labels: {{app: web}}}}
spec: {{containers: []}}
status: {{podIPs: [{{ip: 10.0.0.1}}, {{ip: \"fd00::1\"}}]}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: web, namespace: shop}}
spec: {{podSelector: {{}}, ingress: [{ingress}]}}
"
        )
    };
    let old = folder.path().join("old.yaml");
    let rule = "{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}], ports: [{port: 80, endPort: 90}]}";
    std::fs::write(&old, world(rule)).unwrap();
    let new = world("{ports: [{port: 85, endPort: 99}]}");
    check(
        &weir_reading(&format!("diff {} -", old.display()), &new),
        expect![[r#"
        opened
          +  0.0.0.0/0 except 10.0.0.0/8  →  shop/web  91-99/TCP
          +  10.0.0.0/8, outside (IPv6)   →  shop/web  85-99/TCP
        closed
          -  0.0.0.0/0 except 10.0.0.0/8  →  shop/web  80-84/TCP
        --- exit 1
    "#]],
    );
}

#[test]
fn added_and_removed_pods_are_listed() {
    let pod = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop}}, spec: {{containers: []}}}}\n---\n"
        )
    };
    let deny = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress]}}\n";
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join("old.yaml");
    std::fs::write(&old, format!("{}{}", pod("stays"), pod("goes"))).unwrap();
    let new = format!("{}{}{deny}", pod("stays"), pod("comes"));
    check(
        &weir_reading(&format!("diff {} -", old.display()), &new),
        expect![[r#"
            closed
              -  every pod (2), outside  →  every pod (2)  any port
            1 pod added: shop/comes
            1 pod removed, not compared: shop/goes
            --- exit 1
        "#]],
    );
}
