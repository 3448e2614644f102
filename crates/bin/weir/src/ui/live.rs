//! Follows the flows and the drops of agents while the page is served.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use weir_kube::Access;

use super::{drops::DropLog, flows::FlowLog};
use crate::{
    drops,
    failure::Failure,
    observe::{
        ClusterAgents, LocalAgent, NodeEvent, ObserveFilter, POLL_INTERVAL, POLL_SECONDS,
        follow_words, gaps, nodes_unknown, parse, remark,
    },
};

/// The time before agents that could not be followed are asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The most messages of a node that the page shows: the latest ones.
const MAX_REMARKS: usize = 3;

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
                let gaps = gaps(&page);
                log.add(page.flows);
                log.set_trouble((!gaps.is_empty()).then(|| gaps.join("; ")));
                // The agent unites the changes of this time.
                thread::sleep(if page.more { Duration::ZERO } else { POLL_INTERVAL });
                page = LocalAgent(address).page(page.last, POLL_SECONDS)?;
            }
        }
        LiveAgents::Cluster(access, namespace) => {
            let words = follow_words(&ObserveFilter::default(), None);
            ClusterAgents::new(access.clone(), namespace)?.follow_with(
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
                log.set_trouble(page.drops_unavailable.as_deref().map(drops::unavailable));
                page = drops::page(address, page.last, POLL_SECONDS)?;
            }
        }
        LiveAgents::Cluster(access, namespace) => {
            let words = drops::follow_words(&ObserveFilter::default(), None);
            ClusterAgents::new(access.clone(), namespace)?.follow_with(
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

/// An error with its causes and its hint.
fn sentence(error: &anyhow::Error) -> String {
    match error.chain().find_map(|cause| cause.downcast_ref::<Failure>()) {
        Some(failure) => failure.sentence(),
        None => format!("{error:#}"),
    }
}

/// Which agents do not answer, and what the answers of others do not contain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LiveState {
    /// The nodes without an answer, each with the reason.
    away: BTreeMap<String, String>,
    /// The latest messages of nodes.
    remarks: BTreeMap<String, VecDeque<String>>,
    /// Why nodes without an agent are not known.
    nodes_unknown: Option<String>,
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
                self.remarks.retain(|node, _| nodes.contains(node));
            }
            NodeEvent::NodesUnknown(why) => self.nodes_unknown = why,
            NodeEvent::Started(node) => _ = self.remarks.remove(&node),
            NodeEvent::Remark { node, line } => {
                let remarks = self.remarks.entry(node).or_default();
                remarks.retain(|earlier| *earlier != line);
                remarks.push_back(line);
                if remarks.len() > MAX_REMARKS {
                    remarks.pop_front();
                }
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
        let remarks = self.remarks.iter();
        let remarks =
            remarks.flat_map(|(node, lines)| lines.iter().map(move |line| remark(node, line)));
        let unknown = self.nodes_unknown.iter().map(|why| nodes_unknown(why));
        let all = self.trouble.iter().cloned().chain(unknown).chain(away).chain(remarks);
        json!(all.collect::<Vec<_>>())
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

    #[test]
    fn the_latest_messages_of_a_node_are_shown_until_its_command_starts_again() {
        let mut state = LiveState::default();
        for line in ["a", "b", "a", "c", "d"] {
            state.apply(NodeEvent::Remark { node: "n1".into(), line: line.into() });
        }
        state.apply(NodeEvent::NodesUnknown(Some("why".into())));
        assert_eq!(
            state.problems(),
            json!([
                "nodes without an agent are not known: why",
                "node n1: a",
                "node n1: c",
                "node n1: d"
            ])
        );
        state.apply(NodeEvent::NodesUnknown(None));
        state.apply(NodeEvent::Started("n1".into()));
        assert_eq!(state, LiveState::default());
    }
}
