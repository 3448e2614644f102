//! What the agent of a node enforces, in the annotations of a Lease.
//!
//! Agents write it rarely: at most once in the time that they spread their writes over, which grows
//! with the number of nodes, and only if something changed.

use std::{collections::BTreeMap, io, thread, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{runtime, sync::watch, time::sleep};
use weir_model::PolicyId;
use weir_runtime::{Backoff, jitter};

use crate::{Access, ApiClient, ApiError, Resource};

/// Leases.
pub const LEASES: Resource =
    Resource { group: "coordination.k8s.io", versions: &["v1"], kind: "Lease", plural: "leases" };

/// The label of these Leases, as a selector.
pub const REPORTS: &str = "weir.dev/report=node";
const ENFORCED: &str = "weir.dev/enforced";
const DEGRADED: &str = "weir.dev/degraded";
const PREFIX: &str = "weir-node-";
/// The manager of the fields of the Lease.
const FIELD_MANAGER: &str = "weir-agent";
/// The most policies that a report names, and the most bytes of a reason.
const MAX_DEGRADED: usize = 50;
const MAX_REASON: usize = 200;
/// The reason of the others.
const UNNAMED: &str =
    "the node reports more policies that are not in force as written than it can name";
/// All agents of a cluster together begin about so many writes per second.
const WRITES_PER_SECOND: u32 = 50;
const SHORTEST_SPREAD: Duration = Duration::from_millis(200);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// What the agent of a node enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// The node.
    pub node: String,
    /// The resourceVersion up to which all changes to policies are in force, by kind.
    pub enforced: BTreeMap<String, u64>,
    /// The policies that are not in force as written, each with the reason.
    pub degraded: BTreeMap<String, String>,
}

impl NodeReport {
    /// The Lease with the report.
    fn lease(&self, namespace: &str) -> Value {
        let name = format!("{PREFIX}{}", self.node);
        let some = self.degraded.iter().take(MAX_DEGRADED);
        let cut = |text: &String| text.chars().take(MAX_REASON).collect::<String>();
        let mut degraded: BTreeMap<String, String> =
            some.map(|(policy, reason)| (policy.clone(), cut(reason))).collect();
        let others = self.degraded.keys().skip(MAX_DEGRADED);
        let kinds = others.filter_map(|policy| policy.split_once(' ')).map(|(kind, _)| kind);
        degraded.extend(kinds.map(|kind| (others_of(kind), UNNAMED.to_owned())));
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {"app.kubernetes.io/name": "weir", "weir.dev/report": "node"},
                "annotations": {
                    ENFORCED: json!(self.enforced).to_string(),
                    DEGRADED: json!(degraded).to_string(),
                },
            },
            "spec": {"holderIdentity": self.node},
        })
    }

    /// Why a policy is not in force as written, by the degraded policies of a report.
    pub fn reason<'a>(
        degraded: &'a BTreeMap<String, String>,
        policy: &PolicyId,
    ) -> Option<&'a str> {
        let others = || degraded.get(&others_of(&policy.kind.to_string()));
        degraded.get(&policy.to_string()).or_else(others).map(|reason| &**reason)
    }

    /// The report in a Lease; `None` if the Lease has none. Texts that cannot be read count as
    /// empty: then nothing is in force.
    pub fn from_lease(lease: &Value) -> Option<Self> {
        let metadata = &lease["metadata"];
        let node = metadata["name"].as_str()?.strip_prefix(PREFIX)?;
        let text = |key: &str| metadata["annotations"][key].as_str().unwrap_or_default();
        let enforced = serde_json::from_str(text(ENFORCED));
        let degraded = serde_json::from_str(text(DEGRADED));
        let (enforced, degraded) = enforced.ok().zip(degraded.ok()).unwrap_or_default();
        Some(NodeReport { node: node.into(), enforced, degraded })
    }
}

/// Stands for all policies of a kind that a report does not name.
fn others_of(kind: &str) -> String {
    format!("{kind} *")
}

/// The time that the agents of a cluster of this size spread their writes over.
fn spread(nodes: usize) -> Duration {
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    (Duration::from_secs(1) / WRITES_PER_SECOND).saturating_mul(nodes).max(SHORTEST_SPREAD)
}

/// Writes the report of a node from a thread, until this is dropped. This needs `create` and `patch`
/// on leases of the namespace.
#[derive(Debug)]
pub struct NodeReporter {
    reports: watch::Sender<(NodeReport, usize)>,
}

impl NodeReporter {
    /// Starts the thread.
    pub fn start(access: Access, namespace: &str) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (reports, latest) = watch::channel((NodeReport::default(), 0));
        let (client, namespace) = (ApiClient::new(access), namespace.to_owned());
        let thread = thread::Builder::new().name("weir-report".into());
        thread.spawn(move || {
            runtime.block_on(write_all(client, namespace, latest));
            runtime.shutdown_background();
        })?;
        Ok(NodeReporter { reports })
    }

    /// Publishes the report of a node in a cluster of so many nodes. This returns immediately.
    pub fn publish(&self, report: NodeReport, nodes: usize) {
        self.reports.send_if_modified(|latest| {
            let is_new = latest.0 != report;
            *latest = (report, nodes);
            is_new
        });
    }
}

async fn write_all(
    client: ApiClient,
    namespace: String,
    mut latest: watch::Receiver<(NodeReport, usize)>,
) {
    let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
    while latest.changed().await.is_ok() {
        let nodes = latest.borrow().1;
        // Changes that arrive meanwhile share the write.
        sleep(jitter(spread(nodes))).await;
        loop {
            let report = latest.borrow_and_update().0.clone();
            match write(&client, &namespace, &report).await {
                Ok(()) => break,
                Err(error) => {
                    if backoff.failures() == 0 {
                        let why = explain(&error, &namespace, &report.node);
                        tracing::warn!("cannot report what is in force in the lease {why}");
                    }
                    sleep(backoff.next_delay()).await;
                }
            }
        }
        backoff.reset();
    }
}

/// The lease, why it cannot be written, and what to do about it.
fn explain(error: &ApiError, namespace: &str, node: &str) -> String {
    let why = match error {
        ApiError::Forbidden { verb, .. } => format!(
            "not allowed to {verb} it; grant that with a Role in namespace {namespace}: apiGroups \
             [\"coordination.k8s.io\"], resources [\"leases\"], verbs [\"create\", \"patch\"]"
        ),
        // Every API server has leases, so the namespace is missing.
        ApiError::Missing { .. } => format!(
            "there is no namespace {namespace}; create it, or name another with --report-to"
        ),
        error => format!("{}; {}", error.text(), error.hint()),
    };
    format!("{namespace}/{PREFIX}{node}: {why}")
}

async fn write(client: &ApiClient, namespace: &str, report: &NodeReport) -> Result<(), ApiError> {
    let lease = report.lease(namespace);
    let name = lease["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let resource = LEASES.name();
    let written = client.request("patch", &resource, async |client| {
        let api: Api<Lease> = Api::namespaced(client, namespace);
        api.patch(&name, &params, &Patch::Apply(&lease)).await
    });
    written.await.map(drop)
}

#[cfg(test)]
mod tests {
    use weir_model::PolicyKind;

    use super::*;

    #[test]
    fn a_report_survives_its_lease() {
        let report = NodeReport {
            node: "n1".into(),
            enforced: [("NetworkPolicy".to_owned(), 7)].into(),
            degraded: [("NetworkPolicy a/b".to_owned(), "too large".to_owned())].into(),
        };
        assert_eq!(NodeReport::from_lease(&report.lease("weir-system")), Some(report));
        let broken = json!({"metadata": {"name": "weir-node-n2", "annotations": {ENFORCED: "["}}});
        let broken = NodeReport::from_lease(&broken).unwrap();
        assert_eq!((&*broken.node, broken.enforced.len()), ("n2", 0));
        assert_eq!(NodeReport::from_lease(&json!({"metadata": {"name": "other"}})), None);
        let annotations = json!({ENFORCED: r#"{"NetworkPolicy": 7}"#, DEGRADED: "["});
        let broken = json!({"metadata": {"name": "weir-node-n3", "annotations": annotations}});
        assert_eq!(NodeReport::from_lease(&broken).unwrap().enforced.len(), 0);
    }

    #[test]
    fn a_policy_that_a_full_report_does_not_name_is_not_in_force() {
        let of = |kind, name: &str| PolicyId { kind, namespace: "a".into(), name: name.into() };
        let name = |number: usize| format!("p{number:03}");
        let report = NodeReport {
            node: "n1".into(),
            degraded: (0..60)
                .map(|number| (format!("NetworkPolicy a/{}", name(number)), "large".to_owned()))
                .collect(),
            ..NodeReport::default()
        };
        let read = |report: &NodeReport| {
            let read = NodeReport::from_lease(&report.lease("weir-system")).unwrap();
            let last = of(PolicyKind::NetworkPolicy, &name(59));
            let other = of(PolicyKind::ClusterNetworkPolicy, "other");
            [last, other].map(|id| NodeReport::reason(&read.degraded, &id).map(str::to_owned))
        };
        assert_eq!(read(&report), [Some(UNNAMED.to_owned()), None]);
        let short = NodeReport { degraded: BTreeMap::new(), ..report };
        assert_eq!(read(&short), [None, None]);
    }

    #[test]
    fn a_report_that_cannot_be_written_names_its_lease_and_the_role() {
        let resource = LEASES.name();
        let forbidden = ApiError::Forbidden { verb: "patch", resource: resource.clone() };
        assert_eq!(
            explain(&forbidden, "weir-system", "n1"),
            "weir-system/weir-node-n1: not allowed to patch it; grant that with a Role in namespace \
             weir-system: apiGroups [\"coordination.k8s.io\"], resources [\"leases\"], verbs \
             [\"create\", \"patch\"]"
        );
        let missing = explain(&ApiError::Missing { resource }, "weir-system", "n1");
        assert!(missing.contains("there is no namespace weir-system; create it"), "{missing}");
    }

    #[test]
    fn the_rate_of_writes_does_not_depend_on_the_number_of_nodes() {
        assert_eq!(spread(1), SHORTEST_SPREAD);
        assert_eq!(spread(500), Duration::from_secs(10));
        assert_eq!(spread(5000), Duration::from_secs(100));
        let report = NodeReport {
            degraded: (0..1000).map(|n| (format!("p{n}"), "x".repeat(10_000))).collect(),
            ..NodeReport::default()
        };
        assert!(report.lease("n").to_string().len() < 20_000);
    }
}
