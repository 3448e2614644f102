//! Missing permissions, and tokens that expire.

use std::time::{Duration, Instant};

use serde_json::json;
use weir_cluster::Right;
use weir_kube::{Access, ApiError, ClusterKinds};

use crate::{cluster, namespace, observer::Observer, pod_key, run_pod};

const READ: &[&str] = &["list", "watch"];
const ALL_BUT_NODES: [Right; 2] = [
    Right { group: "", resources: &["pods", "namespaces"], verbs: READ },
    Right { group: "networking.k8s.io", resources: &["networkpolicies"], verbs: READ },
];

#[test]
fn without_the_right_to_list_nodes_the_other_kinds_arrive_and_it_is_never_in_sync() {
    let cluster = cluster();
    namespace(cluster, "rights", json!({}));
    run_pod(cluster, "rights", "web", "10.4.0.1");
    let user = cluster.user("no-nodes", &ALL_BUT_NODES).unwrap();
    let policy = weir_kube::RetryPolicy {
        absence_grace: Duration::from_secs(1),
        ..crate::observer::policy()
    };
    let mut seen = Observer::with(&user, policy);
    let web = pod_key("rights", "web");
    seen.until("the pod and a problem", |seen| seen.put.contains(&web) && !seen.unread.is_empty());
    seen.linger(Duration::from_secs(2));
    assert!(!seen.in_sync);
    assert_eq!(seen.unread.len(), 1, "{:?}", seen.unread);
    assert_eq!(seen.unread[0].message, "cannot watch nodes: not allowed to list nodes");
    assert!(seen.unread[0].hint.contains(r#"resources ["nodes"], verbs ["list"]"#));
    // A snapshot does not need nodes, and reports that they are missing.
    let manifests = weir_kube::read_cluster(
        &Access::new(Some(&seen.kubeconfig()), None),
        ClusterKinds::Policies,
        |_| (),
    )
    .unwrap();
    assert!(manifests.findings.iter().any(|finding| finding.code == "nodes-unread"));

    let right = json!({"rules": [
        {"apiGroups": [""], "resources": ["pods", "namespaces", "nodes"], "verbs": READ},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": READ},
    ]});
    cluster.patch("/apis/rbac.authorization.k8s.io/v1/clusterroles/no-nodes", &right).unwrap();
    seen.until_in_sync();
    seen.until("no problem", |seen| seen.unread.is_empty());
}

#[test]
fn an_expired_token_is_replaced_from_its_file() {
    let cluster = cluster();
    namespace(cluster, "tokens", json!({}));
    let rights = [
        ALL_BUT_NODES[0],
        ALL_BUT_NODES[1],
        Right { group: "", resources: &["nodes"], verbs: READ },
    ];
    let old = cluster.user("rotating", &rights).unwrap();
    let gate = cluster.gate().unwrap();
    let policy = weir_kube::RetryPolicy {
        absence_grace: Duration::from_secs(1),
        ..crate::observer::policy()
    };
    let mut seen = Observer::with(&old.through(gate.address()), policy);
    seen.until_in_sync();
    gate.shut();
    let new = cluster.user("rotating", &rights).unwrap();
    // The API server caches the old token for a moment.
    let folder = tempfile::tempdir().unwrap();
    let direct = Access::new(Some(&old.write_kubeconfig(folder.path()).unwrap()), None);
    let start = Instant::now();
    while !matches!(
        weir_kube::read_cluster(&direct, ClusterKinds::Policies, |_| ()),
        Err(ApiError::Unauthorized)
    ) {
        assert!(start.elapsed() < Duration::from_secs(60), "the old token is still accepted");
        std::thread::sleep(Duration::from_millis(500));
    }
    gate.open();
    seen.until("a problem", |seen| {
        let is_it = |message: &str| message.contains("does not accept the credentials");
        seen.unread.iter().any(|finding| is_it(&finding.message))
    });
    seen.forget();
    run_pod(cluster, "tokens", "late", "10.5.0.1");
    seen.replace_token(&new.token);
    let late = pod_key("tokens", "late");
    seen.until("the new pod", |seen| seen.put.contains(&late) && seen.unread.is_empty());
    assert!(!seen.removed.contains(&late));
}
