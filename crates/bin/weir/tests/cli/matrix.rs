use expect_test::expect;

use crate::{check, json, stdout, weir, weir_reading};

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

            ✓ all, ~ some, ✗ none of: the named ports of the destination's containers, every port if it has none
            60 pods in 2 rows: pods that are alike share a row
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
