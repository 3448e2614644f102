use std::fmt;

use serde::{Deserialize, Serialize};

/// The schema of a record, with its version.
pub const SCHEMA: &str = "weir.dev/flow/v1";

/// The connections, or connection attempts, between two workloads at one port with one verdict, as
/// the agent of one node observed them.
///
/// If the pods run on different nodes, the agents of both nodes have a record: that of the source
/// names the egress rules, and that of the destination the ingress rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a flow record, as `weir flows -o json` prints it")]
pub struct FlowRecord {
    /// The schema with its version: [`SCHEMA`].
    pub schema_version: String,
    /// The node whose agent observed the flow.
    pub node: String,
    /// What happened to the connections.
    pub verdict: FlowVerdict,
    /// The source.
    pub from: RecordEnd,
    /// The destination, after the translation of a Service.
    pub to: RecordEnd,
    /// The protocol: `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6` or a number.
    pub protocol: String,
    /// The destination port. Absent if the protocol has no ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The policies and rules that decided. Empty if no policy applies on this node.
    pub policies: Vec<DecidingRule>,
    /// The number of isolating policies that `policies` leaves out.
    #[serde(default)]
    pub more_policies: usize,
    /// The time of the first connection, in RFC 3339.
    pub first_seen: String,
    /// The time of the last connection, in RFC 3339.
    pub last_seen: String,
    /// The number of connections; for [`FlowVerdict::Deny`], the number of reported packets.
    pub connections: u64,
    /// The packets of both directions of ended connections. Absent if the kernel does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// The bytes of both directions of ended connections. Absent if the kernel does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// How complete `connections` is.
    pub sampling: Sampling,
}

/// What happened to the connections of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowVerdict {
    /// They passed.
    Allow,
    /// Their packets were dropped or rejected.
    Deny,
    /// Policies deny them, and they passed because of audit mode.
    Audit,
}

impl FlowVerdict {
    /// All verdicts.
    pub const ALL: [FlowVerdict; 3] = [FlowVerdict::Allow, FlowVerdict::Deny, FlowVerdict::Audit];

    /// The text in a record.
    pub fn as_str(self) -> &'static str {
        match self {
            FlowVerdict::Allow => "allow",
            FlowVerdict::Deny => "deny",
            FlowVerdict::Audit => "audit",
        }
    }
}

impl fmt::Display for FlowVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One end of a flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected an end: namespace, kind, name and pod of a workload, an address, or others"
)]
pub enum RecordEnd {
    /// Pods of one workload.
    Workload {
        /// The namespace.
        namespace: String,
        /// The kind of the workload, such as `Deployment`; `Pod` for a pod without an owner.
        kind: String,
        /// The name of the workload.
        name: String,
        /// The pod of the last connection.
        pod: String,
    },
    /// An address of no pod: a node, a host network pod, or outside the cluster.
    Address {
        /// The address.
        address: String,
    },
    /// Several ends, because the other end has reached its limit of records.
    Others {
        /// Always true.
        others: bool,
    },
}

impl RecordEnd {
    /// Whether this is a pod of the namespace.
    pub fn is_in(&self, wanted: &str) -> bool {
        matches!(self, RecordEnd::Workload { namespace, .. } if namespace == wanted)
    }

    /// Whether this is the pod or workload `NAME` or `NAMESPACE/NAME`.
    pub fn is_named(&self, wanted: &str) -> bool {
        let RecordEnd::Workload { namespace, name, pod, .. } = self else { return false };
        let (in_namespace, wanted) = match wanted.split_once('/') {
            Some((wanted_namespace, wanted)) => (wanted_namespace == namespace, wanted),
            None => (true, wanted),
        };
        in_namespace && (wanted == pod || wanted == name)
    }
}

impl fmt::Display for RecordEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordEnd::Workload { namespace, kind, name, .. } if kind == "Pod" => {
                write!(f, "{namespace}/{name}")
            }
            RecordEnd::Workload { namespace, kind, name, .. } => {
                write!(f, "{namespace}/{}/{name}", kind.to_lowercase())
            }
            RecordEnd::Address { address } => f.write_str(address),
            RecordEnd::Others { .. } => f.write_str("others"),
        }
    }
}

/// A policy that decided, and its rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a policy that decided")]
pub struct DecidingRule {
    /// The kind of the policy.
    pub kind: String,
    /// The namespace of the policy. Absent for a cluster-wide kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the policy.
    pub name: String,
    /// The direction of the rules: `egress` for those of the source.
    pub direction: RuleDirection,
    /// The index of the rule in its list. Absent if the policy isolates and no rule matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    /// What the policy did.
    pub effect: RuleEffect,
}

impl DecidingRule {
    /// The policy as in `NetworkPolicy shop/db`.
    pub fn policy(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

impl fmt::Display for DecidingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.direction {
            RuleDirection::Ingress => "ingress",
            RuleDirection::Egress => "egress",
        };
        write!(f, "{} {direction}", self.policy())?;
        self.rule.map_or(Ok(()), |rule| write!(f, "[{rule}]"))?;
        match self.effect {
            RuleEffect::Allow => f.write_str(" allows"),
            RuleEffect::Deny => f.write_str(" denies"),
            RuleEffect::Pass => f.write_str(" passes"),
            RuleEffect::Isolate => f.write_str(" isolates"),
        }
    }
}

/// The direction of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleDirection {
    /// The rules of the destination.
    Ingress,
    /// The rules of the source.
    Egress,
}

/// What a policy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleEffect {
    /// A rule allowed the connection.
    Allow,
    /// A rule denied it.
    Deny,
    /// An admin rule passed the decision to the next tier.
    Pass,
    /// The policy isolates the pod, and no rule of any policy allows the connection.
    Isolate,
}

/// How complete the number of connections is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "how complete the numbers are")]
pub struct Sampling {
    /// Where the observations come from.
    pub source: SamplingSource,
    /// Whether all connections since the start of the agent are counted. The table of eBPF programs
    /// shows a connection that uses the ports of an earlier one again as the same connection. A flow
    /// that made room for others and returns counts only the connections since then.
    pub complete: bool,
    /// The most observations per second of one source address. Absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_per_second: Option<u32>,
}

/// Where observations come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SamplingSource {
    /// Events of the kernel's connection tracking.
    Conntrack,
    /// Events of connection tracking, and the table of weir's eBPF programs for other connections.
    Ebpf,
    /// Reports of the rules about denied packets.
    Reports,
}
