//! `weir flows`, `weir top` and `weir bundle`, and the agents that they ask.

mod agents;
mod bundle;
mod filter;
mod flows;
mod local;
mod top;

pub(crate) use self::{
    agents::{
        AgentLine, Agents, AgentsArgs, ClusterAgents, NodeEvent, agent_address,
        report as report_away,
    },
    bundle::BundleCommand,
    filter::{ObserveFilter, VerdictArg},
    flows::{FlowsCommand, follow_words, parse},
    local::{LocalAgent, POLL_INTERVAL, POLL_SECONDS},
    top::TopCommand,
};
