use expect_test::expect;

use crate::{check, json, stderr, stdout, weir, weir_reading};

#[test]
fn the_shop_as_json() {
    let answer =
        json(&weir("matrix -f examples/shop/manifests -n shop --port 8080 --port 53/UDP -o json"));
    assert_eq!(answer["asked"], "8080/TCP, 53/UDP");
    let connections = answer["connections"].as_array().unwrap();
    let web_to_api = connections.iter().find(|c| c["from"] == "shop/web" && c["to"] == "shop/api");
    expect![[r#"
        {
          "from": "shop/web",
          "to": "shop/api",
          "reach": "some",
          "allowed": [
            "8080/TCP"
          ],
          "denied": [
            "53/UDP"
          ]
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(web_to_api.unwrap()).unwrap());
}

#[test]
fn the_shop_as_a_picture() {
    let text = stdout(&weir("matrix -f examples/shop/manifests -o svg"));
    assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n"));
    assert!(
        text.contains("<title>shop/web → shop/api\nallowed: 8080/TCP\ndenied: 9100/TCP</title>")
    );
    assert_eq!(text.matches("<title>").count(), 8 * 8 + 1);
}

#[test]
fn pods_that_no_rule_distinguishes_share_a_row() {
    let pods: Vec<String> = (1..=60)
        .map(|n| {
            let app = if n % 2 == 0 { "even" } else { "odd" };
            format!("{{apiVersion: v1, kind: Pod, metadata: {{name: p{n}, namespace: shop, labels: {{app: {app}}}}}, spec: {{containers: []}}}}\n---\n")
        })
        .collect();
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: odd, namespace: shop}, spec: {podSelector: {matchLabels: {app: odd}}, ingress: [{from: [{podSelector: {matchLabels: {app: even}}}]}]}}\n";
    let input = format!("{}{policy}", pods.concat());
    check(
        &crate::weir_reading("matrix -f -", &input),
        expect![[r#"
            from ↓  to →          shop/p1 and 29 more  shop/p10 and 29 more  outside
            shop/p1 and 29 more   ✗                    ✓                     ✓
            shop/p10 and 29 more  ✓                    ✓                     ✓
            outside               ✗                    ✓                     ·

            ✓ all, ~ some of: the ports that the destination's containers declare, every
              port if there are none
            ✗ closed, on every port
            60 pods in 2 rows: pods that are alike share a row
            shop/p1 and 29 more: shop/p1, shop/p11, shop/p13, shop/p15, shop/p17, shop/p19,
              shop/p21, shop/p23, shop/p25, shop/p27, shop/p29, shop/p3, shop/p31, shop/p33,
              shop/p35, shop/p37, shop/p39, shop/p41, shop/p43, shop/p45, shop/p47,
              shop/p49, shop/p5, shop/p51, shop/p53, shop/p55, shop/p57, shop/p59, shop/p7,
              shop/p9
            shop/p10 and 29 more: shop/p10, shop/p12, shop/p14, shop/p16, shop/p18, shop/p2,
              shop/p20, shop/p22, shop/p24, shop/p26, shop/p28, shop/p30, shop/p32,
              shop/p34, shop/p36, shop/p38, shop/p4, shop/p40, shop/p42, shop/p44, shop/p46,
              shop/p48, shop/p50, shop/p52, shop/p54, shop/p56, shop/p58, shop/p6, shop/p60,
              shop/p8
            --- exit 0
        "#]],
    );
}

#[test]
fn a_large_matrix_is_printed_as_a_list() {
    let pods: Vec<String> = (1..=70)
        .map(|n| {
            format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: p{n}, namespace: shop, labels: {{pod: p{n}}}}}, spec: {{containers: []}}}}\n---\n\
                 {{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: n{n}, namespace: shop}}, spec: {{podSelector: {{matchLabels: {{pod: p{n}}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{pod: p{}}}}}}}]}}]}}}}\n---\n",
                n + 1
            )
        })
        .collect();
    let text = stdout(&crate::weir_reading("matrix -f -", &pods.concat()));
    assert!(text.contains("shop/p9   ←  shop/p10\n"), "{text}");
    assert!(text.contains("outside   ←  all sources\n"), "{text}");
    assert!(text.contains("shop/p70  ←  none\n"), "{text}");
}

/// Namespaces with a pod and a policy each, all different.
fn many_namespaces(namespaces: usize) -> String {
    let each = |at: usize| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, namespace: n{at}, labels: {{app: a}}}}\n---\n\
             apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: n{at}}}\n\
             spec: {{podSelector: {{}}, ingress: [{{from: [{{ipBlock: {{cidr: 198.51.{}.{}/32}}}}]}}]}}\n---\n",
            at / 256,
            at % 256
        )
    };
    (0..namespaces).map(each).collect()
}

#[test]
fn a_huge_matrix_is_rejected() {
    let manifests = many_namespaces(201);
    for form in ["text", "svg", "dot"] {
        check(
            &weir_reading(&format!("matrix -f - -o {form}"), &manifests),
            expect![[r#"
                --- stderr
                error: a matrix of 202 rows is too large to print
                hint: select a namespace with -n NAME, or use -o json for everything
                --- exit 2
            "#]],
        );
    }
    let one = weir_reading("matrix -f - -n n200", &manifests);
    assert_eq!(one.status.code(), Some(0));
    let answer = json(&weir_reading("matrix -f - -o json", &manifests));
    assert_eq!(answer["ends"].as_array().unwrap().len(), 202);
    assert_eq!(answer["connections"].as_array().unwrap().len(), 202 * 202 - 202);
}

#[test]
fn a_port_can_be_a_name() {
    assert_eq!(weir("matrix -f examples/shop/manifests --port sql").status.code(), Some(0));
}

#[test]
fn the_picture_in_the_documentation_is_current() {
    let picture = std::fs::read_to_string(crate::root().join("docs/img/shop-matrix.svg"));
    let output = weir("matrix -f examples/shop/manifests -o svg");
    assert!(picture.unwrap() == stdout(&output), "write it again with the command of this test");
}

/// A Deployment of namespace shop with one container port, `NUMBER` or `NUMBER, name: NAME`.
fn deployment(name: &str, port: &str) -> String {
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: shop}}
spec:
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec: {{containers: [{{name: main, ports: [{{containerPort: {port}}}]}}]}}
---
"
    )
}

/// A policy that allows ingress to one app of namespace shop.
fn ingress(app: &str, rule: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {app}, namespace: shop}}, spec: {{podSelector: {{matchLabels: {{app: {app}}}}}, ingress: [{rule}]}}}}\n---\n"
    )
}

#[test]
fn an_open_port_that_is_not_evaluated_is_shown() {
    let manifests = deployment("db", "5432, name: sql") + &ingress("db", "{ports: [{port: 22}]}");
    check(
        &weir_reading("matrix -f -", &manifests),
        expect![[r#"
            from ↓  to →  shop/db  outside
            shop/db       ·        ✓
            outside       ~        ·

            ✓ all, ~ some of: the ports that the destination's containers declare, every
              port if there are none
            ✗ closed, on every port

            open ports where only some are open:
              outside  →  shop/db  only other ports: 22/TCP
            --- exit 0
        "#]],
    );
    check(
        &weir_reading("matrix -f - --port any", &manifests),
        expect![[r#"
        from ↓  to →  shop/db  outside
        shop/db       ·        ✓
        outside       ~        ·

        ✓ all, ~ some of: any port
        ✗ closed, on every port

        open ports where only some are open:
          outside  →  shop/db  22/TCP
        --- exit 0
    "#]],
    );
    let answer = json(&weir_reading("matrix -f - --port sql -o json", &manifests));
    let into_db = |answer: &serde_json::Value| {
        let connections = answer["connections"].as_array().unwrap();
        connections.iter().find(|c| c["to"] == "shop/db").unwrap().clone()
    };
    let answer = into_db(&answer);
    assert_eq!(answer["reach"], "some");
    assert_eq!(answer["otherPorts"], serde_json::json!(["22/TCP"]));
    let udp = json(&weir_reading("matrix -f - --port any/UDP -o json", &manifests));
    assert_eq!(into_db(&udp)["denied"], serde_json::json!(["UDP"]));
    let output = weir_reading("explain -f - --from 192.0.2.1 --to shop/db --port any", &manifests);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn declared_ports_are_evaluated_with_or_without_a_name() {
    let manifests = [
        deployment("cart", "7070"),
        deployment("currency", "7000, name: grpc"),
        ingress("cart", "{ports: [{port: 7070}]}"),
        ingress("currency", "{ports: [{port: 7000}]}"),
    ]
    .concat();
    check(
        &weir_reading("matrix -f -", &manifests),
        expect![[r#"
            from ↓  to →   shop/cart  shop/currency  outside
            shop/cart      ·          ✓              ✓
            shop/currency  ✓          ·              ✓
            outside        ✓          ✓              ·

            ✓ all, ~ some of: the ports that the destination's containers declare, every
              port if there are none
            ✗ closed, on every port
            --- exit 0
        "#]],
    );
}

#[test]
fn a_namespace_is_shown_with_its_connections_to_other_namespaces() {
    check(
        &weir("matrix -f examples/shop/manifests -n shop"),
        expect![[r#"
               from ↓  to →         1  2  3  4  5
            1  shop/api             ·  ✗  ✗  ~  ✗
            2  shop/db              ✗  ·  ✗  ~  ✗
            3  shop/web             ~  ✗  ·  ~  ✗
            4  other namespaces     ~  ~  ~  ·  ·
            5  outside the cluster  ✗  ✗  ~  ·  ·

            ✓ all, ~ some of: the ports that the destination's containers declare, every
              port if there are none
            ✗ closed, on every port

            open ports where only some are open:
              outside the cluster  →  shop/web  8080/TCP
              shop/web             →  shop/api  8080/TCP

            open connections from and to other namespaces:
              shop/* (3)           →  kube-system/coredns  53/TCP, 53/UDP
              shop/api             →  payments/checkout    8443/TCP
              monitoring/* (2)     →  shop/api             9100/TCP
              monitoring/* (2)     →  shop/db              9187/TCP
              kube-system/coredns  →  shop/web             8080/TCP
              monitoring/* (2)     →  shop/web             8080/TCP, 9100/TCP
            --- exit 0
        "#]],
    );
    let answer = json(&weir("matrix -f examples/shop/manifests -n shop -o json"));
    let others = answer["otherNamespaces"].as_array().unwrap();
    let scrape = others.iter().find(|c| c["ports"] == serde_json::json!(["9187/TCP"])).unwrap();
    assert_eq!(scrape["from"], serde_json::json!(["monitoring/* (2)"]));
}

#[test]
fn the_exposure_to_pods_that_do_not_exist_yet() {
    let manifests = [
        deployment("web", "8000"),
        deployment("api", "8080"),
        deployment("db", "5432"),
        ingress("web", "{ports: [{port: 8000}]}"),
        ingress(
            "api",
            "{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 8080}]}, \
             {from: [{namespaceSelector: {matchLabels: {team: monitoring}}, podSelector: {}}], ports: [{port: 9100}]}, \
             {from: [{namespaceSelector: {}}], ports: [{port: 53, protocol: UDP}]}",
        ),
        ingress("db", "{from: [{ipBlock: {cidr: 203.0.113.0/24}}]}"),
    ]
    .concat();
    check(
        &weir_reading("matrix -f - --exposure", &manifests),
        expect![[r#"
        open to pods and namespaces that do not exist yet
          shop/api  ←  any pod in any namespace                    53/UDP
          shop/api  ←  any pod in namespaces with team=monitoring  9100/TCP
          shop/api  ←  pods with app=web in namespace shop         8080/TCP
          shop/api  →  any pod in any namespace                    any port
          shop/db   ←  none
          shop/db   →  any pod in any namespace                    any port
          shop/web  ←  any pod in any namespace                    8000/TCP
          shop/web  →  any pod in any namespace                    any port
        --- exit 0
    "#]],
    );
    let answer = json(&weir_reading("matrix -f - --exposure -o json", &manifests));
    let exposures = answer["exposures"].as_array().unwrap();
    let monitoring = exposures.iter().find(|e| e["ports"] == serde_json::json!(["9100/TCP"]));
    assert_eq!(monitoring.unwrap()["peers"]["namespaceSelector"], "team=monitoring");
    assert_eq!(weir_reading("matrix -f - --exposure -o svg", &manifests).status.code(), Some(2));
}

#[test]
fn admin_policies_limit_the_exposure() {
    let deny = "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: deny}, spec: {priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {matchLabels: {tenant: other}}}]}]}}\n";
    let manifests = deployment("web", "8000") + deny;
    check(
        &weir_reading("matrix -f - --exposure", &manifests),
        expect![[r#"
        open to pods and namespaces that do not exist yet
          shop/web  ←  any pod in any namespace                 any port
          shop/web  ←  any pod in namespaces with tenant=other  closed: any port
          shop/web  →  any pod in any namespace                 any port
        --- exit 0
    "#]],
    );
}

/// 4 namespaces of 5 pods each, where most pods reach most others.
#[test]
fn a_graph_of_many_edges_is_condensed() {
    let namespaces = ["a", "b", "c", "d"];
    let mut manifests = String::new();
    for namespace in namespaces {
        for pod in 1..=5 {
            manifests += &format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: p{pod}, namespace: {namespace}, labels: {{app: p{pod}}}}}, spec: {{containers: []}}}}\n---\n"
            );
        }
        let from = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: a}}}, {podSelector: {}}";
        manifests += &format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: one, namespace: {namespace}}}, spec: {{podSelector: {{matchLabels: {{app: p1}}}}, ingress: [{{from: [{from}]}}]}}}}\n---\n"
        );
    }
    let graph = stdout(&weir_reading("matrix -f - -o dot", &manifests));
    assert!(!graph.contains("concentrate"), "{graph}");
    let edges: Vec<&str> = graph.lines().filter(|line| line.contains(" -> ")).collect();
    assert!(edges.len() <= 30, "{} edges\n{graph}", edges.len());
    let nodes: Vec<&str> = graph
        .lines()
        .filter(|l| !l.contains(" -> "))
        .filter_map(|l| l.split_once(" ["))
        .map(|(n, _)| n.trim())
        .collect();
    for edge in edges {
        let (ends, _) = edge.split_once(" [").unwrap();
        let (from, to) = ends.trim().split_once(" -> ").unwrap();
        assert!(nodes.contains(&from) && nodes.contains(&to), "{edge}");
    }
    assert!(graph.contains("\"from everyone\" -> \"b/p2\""), "{graph}");
    assert!(graph.contains("\"every pod of a\" -> \"b/p1\""), "{graph}");
    assert_eq!(graph.matches('{').count(), graph.matches('}').count());
}

#[test]
fn a_matrix_that_is_far_too_large_is_rejected_before_it_is_evaluated() {
    let start = std::time::Instant::now();
    let output = weir_reading("matrix -f -", &many_namespaces(1001));
    assert!(stderr(&output).contains("a matrix of 1002 rows is too large to print"));
    assert_eq!(output.status.code(), Some(2));
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}
