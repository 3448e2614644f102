//! Pods with networks other than the cluster network.

use std::fs;

use expect_test::expect;

use crate::{check, json, stderr, stdout, weir, weir_reading};

/// Two pods on their own network, two on a secondary one, and one on the cluster network alone.
const NETWORKS: &str = "\
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: net, namespace: blue}
spec: {topology: Layer2, layer2: {role: Primary}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: blue}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: blue}}
---
{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: shop, annotations: {k8s.v1.cni.cncf.io/networks: lan}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: 'y', namespace: shop, annotations: {k8s.v1.cni.cncf.io/networks: lan}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: z, namespace: shop}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {}}
";

#[test]
fn a_matrix_marks_what_it_does_not_judge() {
    check(
        &weir_reading("matrix -f -", NETWORKS),
        expect![[r#"
            from ↓  to →  blue/a  blue/b  shop/x  shop/y  shop/z  outside
            blue/a        ·       ?       ?       ?       ?       ?
            blue/b        ?       ·       ?       ?       ?       ?
            shop/x        ?       ?       ·       ✗?      ✗       ✓?
            shop/y        ?       ?       ✗?      ·       ✗       ✓?
            shop/z        ?       ?       ✗       ✗       ·       ✓
            outside       ?       ?       ✗?      ✗?      ✗       ·

            ✓ all, ~ some of: the ports that the destination's containers declare, every
              port if there are none
            ✗ closed, on every port
            ? not judged: an end is not on the cluster network
            ✓? ~? ✗? the cluster network alone; other networks are not judged
            --- stderr
            -:1: warning: UserDefinedNetwork blue/net replaces the cluster network for blue/a and 1 more pod; weir does not judge their connections [unjudged-network]
              hint: do not rely on results about these pods: the network can separate or connect them
            -:10: warning: the secondary network shop/lan connects shop/x and 1 more pod; weir does not judge its connections [unjudged-network]
              hint: NetworkPolicies do not apply to a secondary network; results are about the cluster network
            --- exit 0
        "#]],
    );
    let matrix = json(&weir_reading("matrix -f - -o json", NETWORKS));
    let cell = |from: &str, to: &str| {
        let connections = matrix["connections"].as_array().unwrap();
        let cell = connections.iter().find(|one| one["from"] == from && one["to"] == to).unwrap();
        (cell["reach"].as_str().unwrap().to_owned(), cell["otherNetworks"].as_bool())
    };
    assert_eq!(cell("blue/a", "blue/b"), ("notJudged".into(), None));
    assert_eq!(cell("outside", "blue/b"), ("notJudged".into(), None));
    assert_eq!(cell("shop/x", "shop/y"), ("none".into(), Some(true)));
    assert_eq!(cell("outside", "shop/y"), ("none".into(), Some(true)));
    assert_eq!(cell("shop/x", "shop/z"), ("none".into(), None));
    let output = weir_reading("matrix -f - -n shop", NETWORKS);
    assert!(!stdout(&output).contains("blue/"), "{output:?}");
    let output = weir_reading("matrix -f - --exposure", NETWORKS);
    assert!(!stdout(&output).contains("blue/"), "{output:?}");
    let output = weir_reading("matrix -f - -o svg", NETWORKS);
    assert!(stdout(&output).contains("not judged: not on the cluster network"));
}

#[test]
fn an_explanation_is_about_the_cluster_network_only() {
    let output = weir_reading("explain -f - --from blue/a --to blue/b --port 80", NETWORKS);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
    let error = "error: weir does not judge the connections of blue/a: UserDefinedNetwork blue/net \
                 replaces its cluster network\n";
    assert!(stderr(&output).contains(error), "{output:?}");
    let explain = "explain -f - -o json --from shop/x --to shop/z --port 80";
    let notes = json(&weir_reading(explain, NETWORKS))["notes"].clone();
    let note = "shop/x also has the network shop/lan; weir judges only the cluster network";
    assert_eq!(notes[0], note);
}

#[test]
fn a_diff_lists_the_pods_that_it_does_not_judge() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old.yaml"), folder.path().join("new.yaml"));
    fs::write(&old, NETWORKS).unwrap();
    fs::write(&new, NETWORKS).unwrap();
    let diff = format!("diff {} {}", old.display(), new.display());
    let output = weir(&diff);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        stdout(&output),
        "no connection is opened or closed\n\
         2 pods not judged: blue/a, blue/b (not on the cluster network)\n"
    );
    let more = "---\n{apiVersion: v1, kind: Pod, metadata: {name: c, namespace: blue}}\n";
    fs::write(&new, format!("{NETWORKS}{more}")).unwrap();
    let output = weir(&format!("{diff} -o json"));
    assert_eq!(output.status.code(), Some(1));
    let diff = json(&output);
    assert_eq!(diff["notJudged"], serde_json::json!(["blue/a", "blue/b", "blue/c"]));
    assert_eq!(diff["added"]["pods"], serde_json::json!([]));
}

#[test]
fn probes_of_pods_on_other_networks_are_not_judged() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("networks.yaml"), NETWORKS).unwrap();
    let tests = folder.path().join("tests.yaml");
    let case = |from: &str, to: &str, expect: &str| {
        format!(
            "{{name: {from}, manifests: [networks.yaml], probes: \
             [{{from: {{pod: {from}}}, to: {{pod: {to}}}, port: 80, expect: {expect}}}]}}\n---\n"
        )
    };
    let cases = [
        case("blue/a", "blue/b", "allow"),
        case("shop/z", "blue/a", "deny"),
        case("shop/x", "shop/z", "deny"),
        case("shop/z", "203.0.113.1", "allow").replace("{pod: 203.0.113.1}", "{ip: 203.0.113.1}"),
    ];
    fs::write(&tests, cases.concat()).unwrap();
    let output = weir(&format!("test {} -o json", tests.display()));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let run = json(&output);
    for case in [0, 1] {
        let error = run["cases"][case]["error"].as_str().unwrap();
        let expected = "weir does not judge the connections of blue/a: UserDefinedNetwork blue/net \
                        replaces its cluster network";
        assert!(error.contains(expected), "{error}");
    }
    let note = "shop/x also has the network shop/lan; weir judges only the cluster network";
    assert_eq!(run["cases"][2]["probes"][0]["assumptions"], serde_json::json!([note]));
    assert_eq!(run["cases"][3]["probes"][0].get("assumptions"), None);
    assert_eq!((run["passed"].as_u64(), run["failed"].as_u64()), (Some(2), Some(2)));
}
