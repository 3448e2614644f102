//! The bodies of the agent's HTTP paths about flows.

use serde::{Deserialize, Serialize};

use crate::{FlowRecord, RuleUse};

/// The body of `/flows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowsPage {
    /// The flows that changed after the requested number, the first change first.
    pub flows: Vec<FlowRecord>,
    /// The number for the next request.
    pub last: u64,
    /// Whether the agent has further flows.
    pub more: bool,
    /// The start of the observation, in RFC 3339.
    pub since: String,
    /// The number of flows that made room for others since then.
    pub evicted: u64,
    /// The least number of connections that were not observed since then.
    pub lost: u64,
    /// Why the agent does not observe connections, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows_unavailable: Option<String>,
}

/// The body of `/policies`: which policies and rules were used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoliciesPage {
    /// The node of the agent.
    pub node: String,
    /// The start of the observation, in RFC 3339. An agent that starts again observes anew.
    pub since: String,
    /// Whether every use since then is listed.
    pub complete: bool,
    /// The policies that select a pod of this node, such as `NetworkPolicy shop/db`.
    pub policies: Vec<String>,
    /// The rules that decided about a connection.
    pub uses: Vec<RuleUse>,
    /// Why the agent does not observe connections, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows_unavailable: Option<String>,
}
