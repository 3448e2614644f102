//! `weir flows`, `weir top` and `weir bundle`, and the agents that they ask.

mod agents;
mod bundle;
mod filter;
mod flows;
mod gaps;
mod local;
mod refresh;
mod top;
mod uses;

pub(crate) use self::{
    agents::{
        AgentLine, Agents, AgentsArgs, ClusterAgents, NodeEvent, agent_address, nodes_unknown,
        print_message, remark,
    },
    bundle::BundleCommand,
    filter::{ObserveFilter, VerdictArg},
    flows::{FlowsCommand, Reading, follow_words, parse, read_cluster},
    gaps::gaps,
    local::{LocalAgent, POLL_INTERVAL, POLL_SECONDS},
    refresh::refresh,
    top::TopCommand,
};
