//! CustomResourceDefinitions that are installed and removed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_model::{Action, PolicyKind};

use crate::{observer::Observer, policy_id};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const ADMIN: &str = "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies";

/// A definition that accepts every object, so that only weir validates it.
fn definition(plural: &str, kind: &str, version: &str) -> Value {
    let group = "policy.networking.k8s.io";
    json!({
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    })
}

fn admin_policy(name: &str, priority: u32) -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "priority": priority,
            "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
        },
    })
}

/// Creates an object of a kind whose definition is new.
fn create_when_served(cluster: &Cluster, path: &str, object: &Value) {
    let start = Instant::now();
    while let Err(error) = cluster.create(path, object) {
        assert!(start.elapsed() < Duration::from_secs(60), "{path} is not served: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn policies_follow_the_definition_of_their_kind() {
    let mut cluster = Cluster::start().unwrap();
    let mut seen = Observer::start(cluster.admin());
    seen.until_in_sync();
    let admin = definition("adminnetworkpolicies", "AdminNetworkPolicy", "v1alpha1");
    cluster.create(DEFINITIONS, &admin).unwrap();
    create_when_served(&cluster, ADMIN, &admin_policy("deny", 10));
    let deny = policy_id(PolicyKind::AdminNetworkPolicy, "", "deny");
    seen.until("the policy", |seen| seen.world.policies.contains_key(&deny));

    // An API server with the official definition would reject this policy.
    cluster.create(ADMIN, &admin_policy("refused", 5000)).unwrap();
    let refused = policy_id(PolicyKind::AdminNetworkPolicy, "", "refused");
    seen.until("the other policy", |seen| {
        seen.world.policies.contains_key(&refused) && !seen.findings.is_empty()
    });
    assert_eq!(seen.findings[0].object_text(), "AdminNetworkPolicy refused");
    assert_eq!(seen.findings[0].location, None);
    assert_eq!(seen.unread, []);
    let rules = seen.world.policies[&refused].spec.ingress.clone().unwrap();
    assert!(rules.iter().all(|rule| rule.action == Action::Deny), "{rules:?}");
    cluster.delete(&format!("{ADMIN}/refused")).unwrap();
    seen.until("no finding", |seen| seen.findings.is_empty());

    // Right after its start, the API server does not serve the installed kinds.
    seen.forget();
    for _ in 0..2 {
        cluster.stop_server();
        cluster.start_server().unwrap();
        seen.until("no problem", |seen| seen.unread.is_empty());
        seen.linger(Duration::from_secs(1));
    }
    assert_eq!(seen.removed, []);

    // A version that is no longer served removes nothing. When it is served again, it is read again.
    let path = format!("{DEFINITIONS}/adminnetworkpolicies.policy.networking.k8s.io");
    let (mut old, mut later) =
        (admin["spec"]["versions"][0].clone(), admin["spec"]["versions"][0].clone());
    old["served"] = false.into();
    (later["name"], later["storage"]) = ("v2".into(), false.into());
    cluster.patch(&path, &json!({"spec": {"versions": [old, later]}})).unwrap();
    seen.until("a finding", |seen| {
        seen.findings.iter().any(|finding| finding.code == "unknown-version")
    });
    seen.until("no problem", |seen| seen.unread.is_empty());
    assert_eq!(seen.removed, []);
    old["served"] = true.into();
    cluster.patch(&path, &json!({"spec": {"versions": [old, later]}})).unwrap();
    seen.until("no finding", |seen| seen.findings.is_empty());
    assert_eq!(seen.removed, []);

    let other = definition("clusternetworkpolicies", "ClusterNetworkPolicy", "v1alpha2");
    cluster.create(DEFINITIONS, &other).unwrap();
    let path = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies";
    let policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "base"},
        "spec": {"tier": "Baseline", "priority": 1, "subject": {"namespaces": {}}},
    });
    create_when_served(&cluster, path, &policy);
    let base = policy_id(PolicyKind::ClusterNetworkPolicy, "", "base");
    seen.until("another kind", |seen| seen.world.policies.contains_key(&base));

    cluster
        .delete(&format!("{DEFINITIONS}/adminnetworkpolicies.policy.networking.k8s.io"))
        .unwrap();
    seen.until("its removal", |seen| !seen.world.policies.contains_key(&deny));
    assert!(seen.world.policies.contains_key(&base));
}

/// A schema that prunes the egress rules of a policy, as an old definition does with new fields.
fn without_egress() -> Value {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let rules = json!({"type": "array", "items": any});
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "priority": {"type": "integer"}, "subject": any, "ingress": rules,
    }}}})
}

#[test]
fn objects_are_read_again_when_the_schema_changes() {
    let cluster = Cluster::start().unwrap();
    let admin = definition("adminnetworkpolicies", "AdminNetworkPolicy", "v1alpha1");
    cluster.create(DEFINITIONS, &admin).unwrap();
    let mut policy = admin_policy("deny", 10);
    policy["spec"]["egress"] = json!([{"action": "Deny", "to": [{"namespaces": {}}]}]);
    create_when_served(&cluster, ADMIN, &policy);
    let path = format!("{DEFINITIONS}/adminnetworkpolicies.policy.networking.k8s.io");
    let whole = admin["spec"]["versions"][0].clone();
    let mut pruned = whole.clone();
    pruned["schema"]["openAPIV3Schema"] = without_egress();
    let mut seen = Observer::start(cluster.admin());
    let deny = policy_id(PolicyKind::AdminNetworkPolicy, "", "deny");
    for (version, has_egress) in [(&whole, true), (&pruned, false), (&whole, true)] {
        cluster.patch(&path, &json!({"spec": {"versions": [version]}})).unwrap();
        seen.until("the fields of the schema", |seen| {
            let policy = seen.world.policies.get(&deny);
            policy.is_some_and(|policy| policy.spec.egress.is_some() == has_egress)
        });
    }
    assert_eq!(seen.removed, []);
}

/// The served version changes while policies are read, and no policy disappears meanwhile.
#[test]
fn policies_are_read_in_whichever_version_is_served() {
    let cluster = Cluster::start().unwrap();
    let definition = definition("clusternetworkpolicies", "ClusterNetworkPolicy", "v1alpha2");
    cluster.create(DEFINITIONS, &definition).unwrap();
    let path = format!("{DEFINITIONS}/clusternetworkpolicies.policy.networking.k8s.io");
    let (mut old, mut new) =
        (definition["spec"]["versions"][0].clone(), definition["spec"]["versions"][0].clone());
    (new["name"], new["storage"]) = ("v1beta1".into(), false.into());
    let create = |version: &str| {
        let spec = json!({"tier": "Baseline", "priority": 1, "subject": {"namespaces": {}}});
        let policy = json!({
            "apiVersion": format!("policy.networking.k8s.io/{version}"),
            "kind": "ClusterNetworkPolicy", "metadata": {"generateName": "p-"}, "spec": spec,
        });
        let path = format!("/apis/policy.networking.k8s.io/{version}/clusternetworkpolicies");
        create_when_served(&cluster, &path, &policy);
    };
    create("v1alpha2");
    let mut seen = Observer::start(cluster.admin());
    seen.until("the policy", |seen| seen.world.policies.len() == 1);
    // Both are served; then the new one is stored; then it is the only one; then the old one is.
    let steps =
        [(true, true, true), (true, true, false), (false, true, false), (true, false, true)];
    for (count, (serves_old, serves_new, stores_old)) in (2..).zip(steps) {
        (old["served"], old["storage"]) = (serves_old.into(), stores_old.into());
        (new["served"], new["storage"]) = (serves_new.into(), (!stores_old).into());
        cluster.patch(&path, &json!({"spec": {"versions": [old, new]}})).unwrap();
        create(if serves_new { "v1beta1" } else { "v1alpha2" });
        seen.until("the next policy", |seen| seen.world.policies.len() == count);
        seen.until("no problem", |seen| seen.unread.is_empty() && seen.findings.is_empty());
    }
    assert_eq!(seen.removed, []);
}

#[test]
fn an_unknown_version_is_reported() {
    let cluster = Cluster::start().unwrap();
    let later = definition("adminnetworkpolicies", "AdminNetworkPolicy", "v2");
    cluster.create(DEFINITIONS, &later).unwrap();
    let mut seen = Observer::start(cluster.admin());
    seen.until_in_sync();
    seen.until("a finding", |seen| !seen.findings.is_empty());
    assert_eq!(seen.findings[0].code, "unknown-version");
}
