use crate::{json, stderr, weir};

#[test]
fn the_explanation_as_json() {
    let output = weir(
        "explain -f examples/shop/manifests --from payments/checkout --to 203.0.113.7 --port 443 -o json",
    );
    assert_eq!(output.status.code(), Some(1));
    let answer = json(&output);
    assert_eq!(answer["verdict"], "deny");
    assert_eq!(answer["ingress"]["reason"], "no-pod");
    assert_eq!(answer["egress"]["reason"], "isolated");
    assert_eq!(answer["egress"]["nearest"][0]["missing"], "peer");
    assert!(answer["remedy"]["add"][0].as_str().unwrap().contains("203.0.113.7/32"));
}

#[test]
fn the_remedy_allows_the_connection() {
    let ask = "explain --from shop/api --to shop/db --port sql";
    let answer = json(&weir(&format!("{ask} -f examples/shop/manifests -o json")));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("remedy.yaml");
    let policies: Vec<&str> =
        answer["remedy"]["add"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    std::fs::write(&file, policies.join("---\n")).unwrap();
    let cured = weir(&format!("{ask} -f examples/shop/manifests -f {}", file.display()));
    assert_eq!(cured.status.code(), Some(0));
}

#[test]
fn the_remedy_has_the_version_of_the_denying_policy() {
    for version in ["v1alpha2", "v1beta1"] {
        let manifests = format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: shop}}
status: {{podIP: 10.0.0.1}}
---
apiVersion: policy.networking.k8s.io/{version}
kind: ClusterNetworkPolicy
metadata: {{name: closed}}
spec:
  tier: Admin
  priority: 10
  subject: {{namespaces: {{}}}}
  egress: [{{action: Deny, to: [{{networks: [0.0.0.0/0]}}]}}]
"
        );
        let ask = "explain -f - --from shop/web --to 203.0.113.7 --port 443 -o json";
        let answer = json(&crate::weir_reading(ask, &manifests));
        let remedy = answer["remedy"]["add"][0].as_str().unwrap();
        let first = format!("apiVersion: policy.networking.k8s.io/{version}\n");
        assert!(remedy.starts_with(&first), "{remedy}");
    }
}

#[test]
fn a_workload_has_several_names() {
    let shop = "explain -f examples/shop/manifests --port 5432 --from shop/api";
    for workload in ["shop/deploy/web", "shop/Deployment/web", "shop/deployments/web"] {
        let output = weir(&format!("{shop} --to {workload}"));
        assert_eq!(output.status.code(), Some(1), "{workload}: {}", stderr(&output));
    }
}

#[test]
fn a_pod_whose_address_another_pod_claims_gets_a_note() {
    let pod = |name: &str, more: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: a{more}}}\nstatus: {{podIP: 10.0.0.1}}\n"
        )
    };
    let explain = |manifests: String| {
        let output =
            crate::weir_reading("explain -f - --from 10.9.9.9 --to a/old --port 80", &manifests);
        (output.status.code(), crate::stdout(&output))
    };
    let terminating = pod("old", ", deletionTimestamp: '2026-01-01T00:00:00Z'");
    let (code, text) = explain(terminating + &pod("new", ""));
    let note = "a/old is being deleted and does not own 10.0.0.1 any more: a/new has it";
    assert!(code == Some(0) && text.contains(note), "{text}");
    let (code, text) = explain(pod("old", "") + &pod("thief", ""));
    let notes = [
        "10.0.0.1 is contested: a/old and a/thief have it",
        "another pod has the same address, so weir allows nothing",
        "no policy can allow it before a/thief has an address of its own",
    ];
    assert!(code == Some(1) && notes.iter().all(|note| text.contains(note)), "{text}");
}

#[test]
fn the_policy_that_a_memcached_requests_counts() {
    let labels = "app.kubernetes.io/name: memcached, app.kubernetes.io/instance: my-cache, \
                  app.kubernetes.io/managed-by: memcached-operator";
    let manifests = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: my-cache-0, labels: {{{labels}}}}}}}\n---\n\
         {{apiVersion: v1, kind: Pod, metadata: {{name: client}}}}\n---\n\
         apiVersion: memcached.c5c3.io/v1alpha1\nkind: Memcached\nmetadata: {{name: my-cache}}\n\
         spec: {{security: {{networkPolicy: {{enabled: true}}}}}}\n"
    );
    let run = |command: &str| {
        let output = crate::weir_reading(command, &manifests);
        (output.status.code(), crate::stdout(&output))
    };
    let explain = "explain -f - --from default/client --to default/my-cache-0 --port";
    let (code, text) = run(&format!("{explain} 22"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("created for Memcached default/my-cache"), "{text}");
    let (code, text) = run(&format!("{explain} 11211"));
    assert_eq!(code, Some(0), "{text}");
    let (_, text) = run("render -f -");
    assert!(text.contains("11211"), "{text}");
}
