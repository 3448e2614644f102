//! Where a policy is in force, by the reports of the agents.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use weir_api::{MODE_ANNOTATION, Tree};
use weir_controllers::conditions::{Progress, selected_nodes};
use weir_kube::{AdminClient, ApiError, NodeReport, REPORTS};
use weir_model::{Labels, Name, Object, Pod, Policy};

use crate::{
    exit::Exit,
    failure::Failure,
    install::{TargetArgs, explain},
    present::{self, Schema, table::Cell},
    status::StatusFormat,
};

/// The time between two looks at the cluster.
const POLL: Duration = Duration::from_secs(1);

/// The kinds of policies: names, group and plural.
const KINDS: [(&[&str], &str, &[&str], &str); 4] = [
    (
        &["netpol", "networkpolicy", "networkpolicies"],
        "networking.k8s.io",
        &["v1"],
        "networkpolicies",
    ),
    (
        &["cnp", "clusternetworkpolicy", "clusternetworkpolicies"],
        "policy.networking.k8s.io",
        &["v1beta1", "v1alpha2"],
        "clusternetworkpolicies",
    ),
    (
        &["anp", "adminnetworkpolicy", "adminnetworkpolicies"],
        "policy.networking.k8s.io",
        &["v1alpha1"],
        "adminnetworkpolicies",
    ),
    (
        &["banp", "baselineadminnetworkpolicy", "baselineadminnetworkpolicies"],
        "policy.networking.k8s.io",
        &["v1alpha1"],
        "baselineadminnetworkpolicies",
    ),
];

/// Wait until a policy is in force
///
/// Returns when the agent of every node with a selected pod enforces the current generation of a
/// policy. The exit status is 1 if that takes longer than --timeout. A staged policy
/// (`weir.dev/mode: audit`) is never in force: the command fails without waiting.
///
/// The agents must report what they enforce (`--report-to`; in the chart, `controller.enable`
/// contains `conditions`). This needs `get` on the policy, and `list` on pods, namespaces and leases.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir wait netpol/shop/db\n  weir wait cnp/deny-metadata --timeout 60"
)]
pub(crate) struct WaitCommand {
    /// The policy: netpol/NAMESPACE/NAME, cnp/NAME, anp/NAME or banp/NAME
    policy: PolicyRef,
    /// The time to wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    #[command(flatten)]
    target: TargetArgs,
}

impl WaitCommand {
    pub(crate) fn run(&self, out: &mut dyn std::io::Write) -> anyhow::Result<Exit> {
        let client = self.target.client()?;
        let end = Instant::now() + Duration::from_secs(self.timeout);
        loop {
            let state = self.policy.state(&client, &self.target.namespace)?;
            if state.staged {
                let what = format!("{} is staged, so it is not enforced", state.policy);
                let hint = format!("remove its annotation `{MODE_ANNOTATION}` to enforce it");
                return Err(Failure::new(what, &hint).into());
            }
            if state.in_force || Instant::now() >= end {
                writeln!(out, "{}", state.text)?;
                return Ok(Exit::when(state.in_force));
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A policy, as `KIND/NAME` or `KIND/NAMESPACE/NAME`.
#[derive(Clone, Debug)]
pub(crate) struct PolicyRef {
    group: &'static str,
    versions: &'static [&'static str],
    plural: &'static str,
    /// Empty for cluster-wide kinds.
    namespace: String,
    name: String,
}

impl FromStr for PolicyRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected netpol/NAMESPACE/NAME, cnp/NAME, anp/NAME or banp/NAME";
        let (kind, rest) = text.split_once('/').ok_or(expected)?;
        let kind = kind.to_lowercase();
        let known = KINDS.iter().find(|(names, ..)| names.contains(&&*kind)).ok_or(expected)?;
        let (_, group, versions, plural) = *known;
        let is_namespaced = plural == "networkpolicies";
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) if is_namespaced => (namespace, name),
            None if is_namespaced => ("default", rest),
            None => ("", rest),
            Some(_) => return Err(format!("{plural} have no namespace: write {kind}/NAME")),
        };
        let is_name = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
        };
        if !is_name(name) || is_namespaced && !is_name(namespace) {
            return Err(expected.into());
        }
        let (namespace, name) = (namespace.into(), name.into());
        Ok(PolicyRef { group, versions, plural, namespace, name })
    }
}

impl fmt::Display for PolicyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(f, "{} {}", self.plural, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.plural, self.name),
        }
    }
}

/// Where a policy is in force.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyState {
    policy: String,
    generation: i64,
    pub(crate) in_force: bool,
    /// Whether the policy is staged, so that no node enforces it.
    staged: bool,
    /// The number of nodes with a selected pod.
    nodes: usize,
    lagging: Vec<String>,
    degraded: BTreeMap<String, String>,
    #[serde(skip)]
    text: String,
}

impl PolicyState {
    /// Writes the state.
    pub(crate) fn write(
        &self,
        out: &mut dyn std::io::Write,
        format: StatusFormat,
    ) -> anyhow::Result<Exit> {
        match format {
            StatusFormat::Json => {
                present::value(out, present::Structured::Json, Schema::StatusPolicy, self)?;
            }
            StatusFormat::Text => {
                writeln!(out, "{}", self.text)?;
                for (node, reason) in &self.degraded {
                    writeln!(out, "  {node}: {}", Cell::from(reason).text())?;
                }
            }
        }
        Ok(Exit::when(self.in_force))
    }
}

impl PolicyRef {
    /// Reads where the policy is in force. The agents report in a namespace.
    pub(crate) fn state(&self, client: &AdminClient, agents: &str) -> anyhow::Result<PolicyState> {
        let object = self.get(client).map_err(explain)?.ok_or_else(|| {
            Failure::new(
                format!("there is no {self}"),
                "check the kind, the namespace and the name",
            )
        })?;
        let Some(Object::Policy(policy)) = lower(&object) else {
            let hint = "`weir lint` says what is wrong with it";
            return Err(Failure::new(format!("{self} cannot be read"), hint).into());
        };
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let version = version.parse().unwrap_or(u64::MAX);
        let reports = reports(client, agents).map_err(explain)?;
        if reports.is_empty() {
            let hint = "enable the controller `conditions` in the chart, or give the namespace of the agents with `-n`";
            let what = format!("no agent reports in namespace {agents} what it enforces");
            return Err(Failure::new(what, hint).into());
        }
        let nodes = self.selected_nodes(client, &policy).map_err(explain)?;
        let progress = Progress::new(&policy.id, version, &nodes, &reports);
        let progress = Progress { staged: policy.staged, ..progress };
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        let (id, text) = (policy.id.to_string(), progress.text());
        let word = if progress.is_in_force() { "in force" } else { "not in force" };
        Ok(PolicyState {
            text: format!("{id}, generation {generation}: {word}; {text}"),
            policy: id,
            generation,
            in_force: progress.is_in_force(),
            staged: progress.staged,
            nodes: progress.nodes,
            lagging: progress.lagging,
            degraded: progress.degraded,
        })
    }

    fn get(&self, client: &AdminClient) -> Result<Option<Value>, ApiError> {
        for version in self.versions {
            let scope = match &*self.namespace {
                "" => String::new(),
                namespace => format!("namespaces/{namespace}/"),
            };
            let (group, plural, name) = (self.group, self.plural, &self.name);
            let path = format!("/apis/{group}/{version}/{scope}{plural}/{name}");
            if let Some(object) = client.get(&path)? {
                return Ok(Some(object));
            }
        }
        Ok(None)
    }

    fn selected_nodes(
        &self,
        client: &AdminClient,
        policy: &Policy,
    ) -> Result<std::collections::BTreeSet<Name>, ApiError> {
        let path = match &*self.namespace {
            "" => "/api/v1/pods".to_owned(),
            namespace => format!("/api/v1/namespaces/{namespace}/pods"),
        };
        let pods = client.list(&path)?;
        let pods: Vec<Pod> = pods
            .iter()
            .filter_map(|pod| match lower(&typed(pod, "Pod")) {
                Some(Object::Pod(pod)) => Some(pod),
                _ => None,
            })
            .collect();
        let namespaces = match &*self.namespace {
            "" => client.list("/api/v1/namespaces")?,
            _ => Vec::new(),
        };
        let namespaces: BTreeMap<Name, Labels> = namespaces
            .iter()
            .filter_map(|namespace| match lower(&typed(namespace, "Namespace")) {
                Some(Object::Namespace(namespace)) => Some((namespace.name, namespace.labels)),
                _ => None,
            })
            .collect();
        let labels = |name: &str| namespaces.get(name);
        Ok(selected_nodes(policy, labels, pods.iter()))
    }
}

/// An object of a list, with the fields that lists of the core group leave out.
fn typed(object: &Value, kind: &str) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = "v1".into();
    object["kind"] = kind.into();
    object
}

fn lower(object: &Value) -> Option<Object> {
    weir_api::object(&Name::default(), &Tree::from(object)).0
}

fn reports(
    client: &AdminClient,
    namespace: &str,
) -> Result<BTreeMap<String, NodeReport>, ApiError> {
    let selector = REPORTS.replace('/', "%2F").replace('=', "%3D");
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases?labelSelector={selector}"
    );
    let leases = client.list(&path)?;
    let reports = leases.iter().filter_map(NodeReport::from_lease);
    Ok(reports.map(|report| (report.node.clone(), report)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_named_as_kubectl_names_them() {
        let text = |reference: &str| {
            reference.parse::<PolicyRef>().map_or_else(|error| error, |one| one.to_string())
        };
        assert_eq!(text("netpol/shop/db"), "networkpolicies shop/db");
        assert_eq!(text("NetworkPolicy/db"), "networkpolicies default/db");
        assert_eq!(text("cnp/deny"), "clusternetworkpolicies deny");
        assert!(text("cnp/a/b").contains("have no namespace"));
        for wrong in ["db", "pod/a", "cnp/", "netpol/a/../b", "cnp/a?b", "netpol//a"] {
            assert!(text(wrong).starts_with("expected netpol/"), "{wrong}: {}", text(wrong));
        }
    }
}
