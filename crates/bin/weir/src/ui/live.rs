//! Follows the flows and the drops of agents while the page is served.

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

use serde_json::{Value, json};
use weir_kube::{Access, AdminClient};

use super::{drops::DropLog, flows::FlowLog};
use crate::{
    drops,
    failure::Failure,
    observe::{
        ClusterAgents, LocalAgent, NodeEvent, ObserveFilter, POLL_INTERVAL, POLL_SECONDS,
        follow_words, parse,
    },
};

/// The time before agents that could not be followed are asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The agents to follow.
pub(super) enum LiveAgents {
    /// The agent at an address.
    One(String),
    /// The agents of a cluster, in this namespace.
    Cluster(Access, String),
}

/// Follows the agents in two threads, until the process ends.
pub(super) fn start(agents: LiveAgents, flows: &FlowLog, drops: &DropLog) {
    let agents = Arc::new(agents);
    let (own, log) = (Arc::clone(&agents), flows.clone());
    thread::spawn(move || {
        keep_trying(|| follow_flows(&own, &log), |why| log.report(NodeEvent::ListFailed(why)));
    });
    let log = drops.clone();
    thread::spawn(move || {
        keep_trying(|| follow_drops(&agents, &log), |why| log.report(NodeEvent::ListFailed(why)));
    });
}

fn keep_trying(follow: impl Fn() -> anyhow::Result<()>, failed: impl Fn(String)) {
    loop {
        if let Err(error) = follow() {
            failed(sentence(&error));
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

fn follow_flows(agents: &LiveAgents, log: &FlowLog) -> anyhow::Result<()> {
    match agents {
        LiveAgents::One(address) => {
            let mut page = LocalAgent(address).page(0, 0)?;
            loop {
                let unavailable = page.flows_unavailable.take();
                log.add(page.flows);
                log.set_trouble(
                    unavailable.map(|why| format!("the agent does not observe connections: {why}")),
                );
                // The agent unites the changes of this time.
                thread::sleep(if page.more { Duration::ZERO } else { POLL_INTERVAL });
                page = LocalAgent(address).page(page.last, POLL_SECONDS)?;
            }
        }
        LiveAgents::Cluster(access, namespace) => {
            let words = follow_words(&ObserveFilter::default(), None);
            cluster(access, namespace)?.follow_with(
                &words,
                |event| log.report(event),
                |lines| {
                    log.add(lines.iter().filter_map(parse));
                    Ok(())
                },
            )
        }
    }
}

fn follow_drops(agents: &LiveAgents, log: &DropLog) -> anyhow::Result<()> {
    match agents {
        LiveAgents::One(address) => {
            let mut page = drops::page(address, 0, 0)?;
            loop {
                log.add(page.drops);
                log.set_trouble(page.drops_unavailable.map(|why| {
                    format!("the agent cannot receive reports of dropped packets: {why}")
                }));
                page = drops::page(address, page.last, POLL_SECONDS)?;
            }
        }
        LiveAgents::Cluster(access, namespace) => {
            let words = drops::follow_words(&ObserveFilter::default());
            cluster(access, namespace)?.follow_with(
                &words,
                |event| log.report(event),
                |lines| {
                    log.add(lines.iter().filter_map(drops::parse));
                    Ok(())
                },
            )
        }
    }
}

fn cluster(access: &Access, namespace: &str) -> anyhow::Result<ClusterAgents> {
    let client = AdminClient::new(access.clone())?;
    Ok(ClusterAgents { client, namespace: namespace.to_owned() })
}

/// An error with its causes and its hint.
fn sentence(error: &anyhow::Error) -> String {
    match error.chain().find_map(|cause| cause.downcast_ref::<Failure>()) {
        Some(failure) => failure.sentence(),
        None => format!("{error:#}"),
    }
}

/// Which agents do not answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LiveState {
    /// The nodes without an answer, each with the reason.
    away: BTreeMap<String, String>,
    /// Why nothing can be followed.
    trouble: Option<String>,
}

impl LiveState {
    /// Takes over an event.
    pub(super) fn apply(&mut self, event: NodeEvent) {
        match event {
            NodeEvent::Listed(nodes) => {
                self.trouble = None;
                self.away.retain(|node, _| nodes.contains(node));
            }
            NodeEvent::Away { node, reason } => {
                self.away.insert(node, reason);
            }
            NodeEvent::Back(node) => {
                self.away.remove(&node);
            }
            NodeEvent::ListFailed(why) => self.trouble = Some(why),
        }
    }

    /// Sets or clears the reason why nothing can be followed.
    pub(super) fn set_trouble(&mut self, trouble: Option<String>) {
        self.trouble = trouble;
    }

    /// What the page shows: one sentence for each problem.
    pub(super) fn problems(&self) -> Value {
        let away =
            self.away.iter().map(|(node, why)| format!("node {node} does not answer: {why}"));
        json!(self.trouble.iter().cloned().chain(away).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_away_until_it_answers_or_leaves_the_cluster() {
        let mut state = LiveState::default();
        let away = |node: &str| NodeEvent::Away { node: node.into(), reason: "why".into() };
        state.apply(away("n1"));
        state.apply(away("n2"));
        state.apply(NodeEvent::ListFailed("no connection".into()));
        assert_eq!(
            state.problems(),
            json!([
                "no connection",
                "node n1 does not answer: why",
                "node n2 does not answer: why"
            ])
        );
        state.apply(NodeEvent::Back("n1".into()));
        assert_eq!(state.problems(), json!(["no connection", "node n2 does not answer: why"]));
        state.apply(NodeEvent::Listed(["n1".to_owned()].into()));
        assert_eq!(state, LiveState::default());
    }
}
