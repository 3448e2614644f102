//! Starts agents and measures their resource usage.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_cluster::{Access, Cluster};
use weir_lab::Lab;

use crate::{
    requests::{Audit, Requests},
    site::{Agent, Scratch, gate, run_weir},
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
    taken: Taken,
    requests: Requests,
}

/// The resource usage of a process since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) cpu: Duration,
    pub(crate) resident: u64,
    pub(crate) peak: u64,
}

impl Stage<'_> {
    /// Starts an agent and waits until it is ready. It must then have rules for `pods` pods.
    pub(crate) fn start(&self, pods: usize) -> (Agent, Start) {
        self.audit.since_last();
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
        let taken = Taken::by(&agent);
        let requests = self.audit.since_last();
        // The agent updates this metric when it is idle.
        let counted = || metric(&self.metrics(&agent), "weir_endpoints") as usize;
        agent.until("the pods of the node have rules", || counted() == pods);
        (agent, Start { time, taken, requests })
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
        let Start { time, taken: Taken { cpu, resident, peak }, requests } = self;
        json!({
            "seconds": time.as_secs_f64(), "cpu_seconds": cpu.as_secs_f64(),
            "resident_bytes": resident, "peak_bytes": peak, "requests": requests,
        })
    }
}

impl Taken {
    /// The resource usage of an agent so far.
    pub(crate) fn by(agent: &Agent) -> Self {
        let process = format!("/proc/{}", agent.child.id());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
        };
        // The program name may contain spaces; the fields after it do not. User and system time are
        // in hundredths of a second.
        let stat = fs::read_to_string(format!("{process}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Taken {
            cpu: Duration::from_millis(ticks * 10),
            resident: kilobytes("VmRSS:"),
            peak: kilobytes("VmHWM:"),
        }
    }
}

/// The value of a metric without labels.
pub(crate) fn metric(metrics: &str, name: &str) -> f64 {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    metrics.lines().find_map(value).unwrap_or_else(|| panic!("no metric {name}:\n{metrics}"))
}
