use std::process::Output;

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

/// A Deployment with one container port.
fn deployment(name: &str, app: &str, port: u16) -> String {
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: {app}}}}}
  template:
    metadata: {{labels: {{app: {app}}}}}
    spec: {{containers: [{{name: main, ports: [{{containerPort: {port}}}]}}]}}
---
"
    )
}

/// A NetworkPolicy of namespace shop for the pods of one app.
fn policy(app: &str, spec: &str) -> String {
    format!(
        "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: {app}, namespace: shop}}
spec: {{podSelector: {{matchLabels: {{app: {app}}}}}, {spec}}}
---
"
    )
}

/// Compares two texts.
fn diff(old: &str, new: &str, options: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.yaml");
    std::fs::write(&path, old).unwrap();
    weir_reading(&format!("diff {} - {options}", path.display()), new)
}

/// Pods web, api and db, where only api reaches db and only web reaches api.
fn shop() -> String {
    [
        deployment("web", "web", 8000),
        deployment("api", "api", 8080),
        deployment("db", "db", 5432),
        policy(
            "api",
            "ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 8080}]}]",
        ),
        policy(
            "db",
            "ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 5432}]}]",
        ),
    ]
    .concat()
}

#[test]
fn a_new_pod_with_the_labels_of_another_opens_its_connections() {
    let new = shop() + &deployment("crawler", "api", 8080);
    check(
        &diff(&shop(), &new, ""),
        expect![[r#"
        1 pod added: shop/crawler
          +  shop/web      →  shop/crawler       8080/TCP
          +  shop/crawler  →  shop/db            5432/TCP
          +  shop/crawler  →  shop/web, outside  any port
        --- exit 1
    "#]],
    );
    let answer = json(&diff(&shop(), &new, "-o json"));
    assert_eq!(answer["opened"], serde_json::json!([]));
    assert_eq!(answer["added"]["pods"], serde_json::json!(["shop/crawler"]));
    let opened = answer["added"]["opened"].as_array().unwrap();
    let to_db =
        serde_json::json!({"from": ["shop/crawler"], "to": ["shop/db"], "ports": ["5432/TCP"]});
    assert!(opened.contains(&to_db), "{opened:?}");
    assert_eq!(answer["removed"]["closed"], serde_json::json!([]));
}

#[test]
fn a_removed_pod_closes_its_connections() {
    let old = shop() + &deployment("crawler", "api", 8080);
    check(
        &diff(&old, &shop(), ""),
        expect![[r#"
        1 pod removed: shop/crawler
          -  shop/web      →  shop/crawler       8080/TCP
          -  shop/crawler  →  shop/db            5432/TCP
          -  shop/crawler  →  shop/web, outside  any port
        --- exit 1
    "#]],
    );
    let answer = json(&diff(&old, &shop(), "-o json"));
    assert_eq!(answer["closed"], serde_json::json!([]));
    assert_eq!(answer["removed"]["pods"], serde_json::json!(["shop/crawler"]));
    assert_eq!(answer["removed"]["closed"].as_array().unwrap().len(), 3);
}

/// An online shop: every pod is isolated in both directions, and a new pod is not.
#[test]
fn a_new_pod_without_policies_is_open_to_the_outside() {
    let isolated = "policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: cart}}}]}]";
    let open = "policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]";
    let old = [
        deployment("cart", "cart", 7070),
        deployment("email", "email", 8080),
        deployment("redis-cart", "redis-cart", 6379),
        policy("cart", isolated),
        policy("email", isolated),
        policy("redis-cart", open),
    ]
    .concat();
    let new = old.clone() + &deployment("unicorn", "unicorn", 8080);
    check(
        &diff(&old, &new, ""),
        expect![[r#"
        1 pod added: shop/unicorn
          +  shop/unicorn              →  shop/redis-cart, outside  any port
          +  shop/redis-cart, outside  →  shop/unicorn              any port
        --- exit 1
    "#]],
    );
}

#[test]
fn nothing_that_a_new_pod_never_had_is_closed() {
    let old = deployment("web", "web", 80);
    let new = old.clone() + &deployment("redis", "redis", 6379) + &policy("redis", "ingress: []");
    check(
        &diff(&old, &new, ""),
        expect![[r#"
        1 pod added: shop/redis
          +  shop/redis  →  shop/web, outside  any port
        --- exit 1
    "#]],
    );
}

#[test]
fn a_new_pod_without_connections_opens_nothing() {
    let deny = "policyTypes: [Ingress, Egress]";
    let new = shop() + &deployment("sealed", "sealed", 80) + &policy("sealed", deny);
    check(
        &diff(&shop(), &new, ""),
        expect![[r#"
            no connection is opened or closed
            1 pod added: shop/sealed (no open connections)
            --- exit 0
        "#]],
    );
}

#[test]
fn a_new_host_network_pod_is_reported() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: agent, namespace: shop}, spec: {hostNetwork: true, containers: []}}\n";
    check(
        &diff(&shop(), &(shop() + pod), ""),
        expect![[r#"
            1 host network pod added: shop/agent (no policy applies to host network pods)
            --- exit 1
        "#]],
    );
}
