//! Starts agents and measures their resource usage.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_cluster::{Access, Cluster};
use weir_lab::Lab;

use crate::{
    requests::{Audit, Requests},
    server_usage::ServerUsage,
    site::{Agent, Scratch, gate, run_weir},
    usage::{Usage, metric},
    world::NODE,
};

/// The timeout of an agent's start.
const START_TIMEOUT: Duration = Duration::from_secs(600);

/// The environment of an agent.
pub(crate) struct Stage<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) lab: &'a Lab,
    pub(crate) scratch: &'a Scratch,
    pub(crate) access: &'a Access,
    pub(crate) audit: &'a Audit,
}

/// The time and resources until an agent is in sync and all rules are in force.
pub(crate) struct Start {
    time: Duration,
    usage: Usage,
    requests: Requests,
    received_bytes: u64,
    server: [ServerUsage; 2],
}

impl Stage<'_> {
    /// Starts an agent and waits until it is ready. It must then have rules for `pods` pods.
    pub(crate) fn start(&self, pods: usize) -> (Agent, Start) {
        self.audit.since_last();
        let server_before = ServerUsage::now(self.cluster);
        let start_time = Instant::now();
        let agent = Agent::start(self.cluster, self.lab, self.scratch, NODE, self.access, &[]);
        while agent.get(self.lab, "/readyz").is_none_or(|(code, _)| code != 200) {
            assert!(
                start_time.elapsed() < START_TIMEOUT,
                "the agent is not ready:\n{}",
                agent.log()
            );
            thread::sleep(Duration::from_millis(2));
        }
        let time = start_time.elapsed();
        let usage = Usage::of_process(agent.child.id());
        let received_bytes = agent.gate.received_bytes();
        let server = [server_before, ServerUsage::now(self.cluster)];
        let requests = self.audit.since_last();
        // The agent updates this metric when it is idle.
        let counted = || metric(&self.metrics(&agent), "weir_endpoints", "") as usize;
        agent.until("the pods of the node have rules", || counted() == pods);
        (agent, Start { time, usage, requests, received_bytes, server })
    }

    /// Removes all rules from the kernel of the node.
    pub(crate) fn clean_up(&self) {
        let gate = gate(self.cluster, self.lab, NODE);
        let access = self.access.through(gate.address());
        let done = run_weir(
            self.lab,
            &self.scratch.kubeconfig(&access, "cleanup"),
            NODE,
            "agent --cleanup",
        );
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// The metrics of an agent.
    pub(crate) fn metrics(&self, agent: &Agent) -> String {
        agent.get(self.lab, "/metrics").unwrap().1
    }
}

impl Start {
    pub(crate) fn json(&self) -> Value {
        let mut report = self.usage.json(self.time);
        report["requests"] = json!(self.requests);
        report["received_bytes"] = json!(self.received_bytes);
        let [before, after] = self.server;
        after.add_since(before, &mut report);
        report
    }
}
