//! The costs of an event at a real API server, a real relay and real agents.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cargo_bench;

/// The pods and the seconds of the measurement.
const FULL: (usize, usize) = (20_000, 30);
/// The same with `--quick`.
const QUICK: (usize, usize) = (1_000, 5);

/// Costs of the benchmark `fleet` of weir. Times are in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recorded {
    nodes: f64,
    pods: f64,
    pod_bytes: f64,
    changes_per_second: f64,
    /// The CPU time of the API server for an event without a watch.
    write_cpu: f64,
    /// Its bytes for an event and a watch of all pods.
    pub(super) watch_bytes: f64,
    /// Its CPU time for an event and such a watch.
    pub(super) watch_cpu: f64,
    /// The CPU time for an event of a client that discards it.
    client_cpu: f64,
    /// The clients that watched, and their watches.
    clients: f64,
    watches: f64,
    pub(super) agent: AgentCosts,
    pub(super) relay: RelayCosts,
}

/// The costs of an agent for an event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AgentCosts {
    pub(super) cpu: f64,
    /// The bytes that it receives, with HTTP and TLS.
    received: f64,
}

/// The costs with a relay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RelayCosts {
    agents: f64,
    /// The watches at the API server, of the relay and of its agents.
    watches: f64,
    /// The CPU time of the API server for an event, without that for the write.
    server_cpu: f64,
    pub(super) cpu: f64,
    /// What it sends for an event, with heartbeats.
    sent_bytes: f64,
    /// The agents that an event reaches.
    reached: f64,
    /// What it sends for an event to such an agent.
    transaction_bytes: f64,
    pub(super) agent: AgentCosts,
    resident_bytes: f64,
    start: f64,
    list_bytes: f64,
}

impl Recorded {
    /// Measures. This takes some minutes.
    pub(super) fn measure(is_quick: bool) -> Result<Self> {
        let (pods, seconds) = if is_quick { QUICK } else { FULL };
        let report = cargo_bench::run("fleet", pods, seconds)?;
        Self::read(&report).context("a figure is missing in the benchmark's output")
    }

    fn read(report: &Value) -> Option<Self> {
        let [writes, relay, direct] = ["writes", "relay", "direct"].map(|part| &report[part]);
        let changes = report["changes"].as_f64()?;
        let number = |part: &Value, name: &str| part[name].as_f64();
        let each = |part: &Value, name: &str| Some(number(part, name)? / changes);
        let agent = |part: &Value| {
            let (cpu, received) = (each(part, "agent_cpu_seconds")?, each(part, "agent_bytes")?);
            Some(AgentCosts { cpu, received })
        };
        let write_cpu = each(writes, "server_cpu_seconds")?;
        let server_cpu = |part| Some((each(part, "server_cpu_seconds")? - write_cpu).max(0.0));
        // An agent of weir watches beside the clients.
        let clients = number(direct, "clients")?;
        Some(Recorded {
            nodes: number(report, "nodes")?,
            pods: number(report, "pods")?,
            pod_bytes: number(report, "pod_bytes")?,
            changes_per_second: number(report, "changes_per_second")?,
            write_cpu,
            watch_bytes: each(direct, "watch_bytes")? / clients,
            watch_cpu: server_cpu(direct)? / (clients + 1.0),
            client_cpu: each(&report["bare"], "client_cpu_seconds")?,
            clients: clients + 1.0,
            watches: number(direct, "watches")?,
            agent: agent(direct)?,
            relay: RelayCosts {
                agents: number(relay, "agents")?,
                watches: number(relay, "watches")?,
                server_cpu: server_cpu(relay)?,
                cpu: number(relay, "relay_cpu_seconds")? / number(relay, "relay_events")?.max(1.0),
                sent_bytes: each(relay, "relay_sent_bytes")?,
                reached: each(relay, "relay_transactions")?,
                transaction_bytes: number(relay, "relay_transaction_bytes")?
                    / number(relay, "relay_transactions")?.max(1.0),
                agent: agent(relay)?,
                resident_bytes: number(relay, "resident_bytes")?,
                start: number(relay, "start_seconds")?,
                list_bytes: number(relay, "list_bytes")?,
            },
        })
    }

    pub(super) fn table(&self) -> Result<String> {
        let Recorded { nodes, pods, clients, changes_per_second, agent, relay, .. } = self;
        let mut table = format!(
            "| real API server, {nodes} nodes, {pods} pods of {:.1} kB, {changes_per_second} changed \
             addresses a second | {clients} agents without a relay | {} agents with a relay |\n\
             | --- | ---: | ---: |\n",
            self.pod_bytes / 1e3,
            relay.agents
        );
        let mut row = |what: &str, direct: Option<String>, with_relay: Option<String>| {
            let [direct, with_relay] = [direct, with_relay].map(|cell| cell.unwrap_or("–".into()));
            writeln!(table, "| {what} | {direct} | {with_relay} |")
        };
        let micros = |seconds: f64| Some(format!("{:.1} µs", seconds * 1e6));
        let bytes = |bytes: f64| Some(format!("{bytes:.0} bytes"));
        let count = |count: f64| Some(format!("{count:.0}"));
        row("watches at the API server", count(self.watches), count(relay.watches))?;
        let written = micros(self.write_cpu);
        row("CPU of the API server for a change without watches", written.clone(), written)?;
        let watched = micros(self.watch_cpu * clients);
        row(
            "CPU of the API server for the watches of a change",
            watched,
            micros(relay.server_cpu),
        )?;
        row("of which for one watch of pods", micros(self.watch_cpu), None)?;
        row("bytes of a change in one watch of pods", bytes(self.watch_bytes), None)?;
        let client = micros(self.client_cpu);
        row(
            "CPU of a client that reads one watch of pods and discards it",
            client.clone(),
            client,
        )?;
        row("CPU of the relay for a change", None, micros(relay.cpu))?;
        row(
            "agents that a change reaches",
            count(*clients),
            Some(format!("{:.2}", relay.reached)),
        )?;
        let transaction = bytes(relay.transaction_bytes);
        row("bytes of the relay for a change and such an agent", None, transaction)?;
        row(
            "bytes of the relay for a change and all agents, with heartbeats",
            None,
            bytes(relay.sent_bytes),
        )?;
        let (direct, received) =
            (bytes(agent.received), Some(format!("{:.1} bytes", relay.agent.received)));
        row("bytes of a change that an agent receives, with HTTP and TLS", direct, received)?;
        row("CPU of an agent for a change", micros(agent.cpu), micros(relay.agent.cpu))?;
        row("the relay is ready after", None, Some(format!("{:.1} s", relay.start)))?;
        row("first list of an agent", None, Some(format!("{:.0} kB", relay.list_bytes / 1e3)))?;
        let memory = format!("{:.0} MB", relay.resident_bytes / 1e6);
        row("resident memory of the relay", None, Some(memory))?;
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn costs_are_for_one_change() {
        let report = json!({
            "nodes": 5_000, "pods": 20_000, "pod_bytes": 5_600, "changes": 1_000,
            "changes_per_second": 120, "writes": {"server_cpu_seconds": 1.0},
            "relay": {
                "server_cpu_seconds": 1.1, "agent_cpu_seconds": 0.004, "agent_bytes": 9_000,
                "relay_cpu_seconds": 0.02, "relay_events": 1_000, "relay_transactions": 400,
                "relay_transaction_bytes": 48_000, "relay_sent_bytes": 60_000, "watches": 12, "agents": 200, "start_seconds": 1.25,
                "list_bytes": 9_000, "resident_bytes": 21_000_000,
            },
            "direct": {
                "server_cpu_seconds": 1.4, "agent_cpu_seconds": 0.03, "agent_bytes": 5_700_000,
                "watch_bytes": 106_400_000, "watches": 80, "clients": 19,
            },
            "bare": {"client_cpu_seconds": 0.012},
        });
        let recorded = Recorded::read(&report).unwrap();
        assert_eq!(recorded.watch_bytes, 5_600.0);
        expect![[r#"
            | real API server, 5000 nodes, 20000 pods of 5.6 kB, 120 changed addresses a second | 20 agents without a relay | 200 agents with a relay |
            | --- | ---: | ---: |
            | watches at the API server | 80 | 12 |
            | CPU of the API server for a change without watches | 1000.0 µs | 1000.0 µs |
            | CPU of the API server for the watches of a change | 400.0 µs | 100.0 µs |
            | of which for one watch of pods | 20.0 µs | – |
            | bytes of a change in one watch of pods | 5600 bytes | – |
            | CPU of a client that reads one watch of pods and discards it | 12.0 µs | 12.0 µs |
            | CPU of the relay for a change | – | 20.0 µs |
            | agents that a change reaches | 20 | 0.40 |
            | bytes of the relay for a change and such an agent | – | 120 bytes |
            | bytes of the relay for a change and all agents, with heartbeats | – | 60 bytes |
            | bytes of a change that an agent receives, with HTTP and TLS | 5700 bytes | 9.0 bytes |
            | CPU of an agent for a change | 30.0 µs | 4.0 µs |
            | the relay is ready after | – | 1.2 s |
            | first list of an agent | – | 9 kB |
            | resident memory of the relay | – | 21 MB |
        "#]].assert_eq(&recorded.table().unwrap());
        assert!(Recorded::read(&json!({})).is_none());
    }
}
