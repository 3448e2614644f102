//! The memory of a full table, and the time of an observation.
//!
//! ```sh
//! cargo bench -p weir-flows --bench table
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints its figures")]

use std::{fs, hint::black_box, net::IpAddr, sync::Arc, time::Instant};

use weir_flows::{
    DecidingRule, Decision, FlowKey, FlowLimits, FlowPeer, FlowTable, FlowVerdict, Observation,
    RuleDirection, RuleEffect, Traffic, WorkloadName,
};

const FLOWS: u32 = 100_000;
/// The workloads of the node, each with its own policy.
const WORKLOADS: u32 = 100;
/// The workloads of the cluster.
const PEERS: u32 = 5000;

fn workload(kind: &str, number: u32) -> Arc<WorkloadName> {
    let (namespace, name) = (format!("namespace-{}", number % 50), format!("workload-{number}"));
    Arc::new(WorkloadName { namespace: namespace.into(), kind: kind.into(), name: name.into() })
}

fn decision(number: u32) -> Decision {
    let rule = |direction| DecidingRule {
        kind: "NetworkPolicy".into(),
        namespace: Some(format!("namespace-{}", number % 50)),
        name: format!("allow-workload-{number}"),
        direction,
        rule: Some(number % 7),
        effect: RuleEffect::Allow,
    };
    let rules = vec![rule(RuleDirection::Egress), rule(RuleDirection::Ingress)];
    Decision { rules, more_policies: 0 }
}

/// The resident memory of this process, in bytes.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn main() {
    let own: Vec<_> = (0..WORKLOADS).map(|number| workload("Deployment", number)).collect();
    let others: Vec<_> = (0..PEERS).map(|number| workload("StatefulSet", number)).collect();
    let observation = |number: u32, time: u64| {
        let own = own[(number % WORKLOADS) as usize].clone();
        // Half of the peers are pods, and half are addresses outside the cluster.
        let (to, pod) = if number.is_multiple_of(2) {
            let at = number / 2 % PEERS;
            (FlowPeer::Workload(others[at as usize].clone()), Some(format!("pod-{at}").into()))
        } else {
            (FlowPeer::Address(IpAddr::from((0xcb00_7100 + number).to_be_bytes())), None)
        };
        Observation {
            key: FlowKey {
                from: FlowPeer::Workload(own),
                to,
                protocol: 6,
                port: Some(u16::try_from(1 + number / 10_000).unwrap()),
                verdict: FlowVerdict::Allow,
            },
            is_from_here: true,
            pods: (Some(format!("pod-{}", number % 1000).into()), pod),
            time,
            connections: 1,
            traffic: Some(Traffic { packets: 10, bytes: 1000 }),
        }
    };
    let before = memory();
    let mut table = FlowTable::new("node-1", FlowLimits::default());
    let start = Instant::now();
    for number in 0..FLOWS {
        table.observe(observation(number, 1_760_000_000_000), 1, || decision(number % WORKLOADS));
    }
    let filled = start.elapsed();
    let after = memory();
    let start = Instant::now();
    for number in 0..FLOWS {
        table.observe(observation(number, 1_760_000_000_001), 1, || decision(number % WORKLOADS));
    }
    let repeated = start.elapsed();
    let start = Instant::now();
    for number in FLOWS..2 * FLOWS {
        table.observe(observation(number, 1_760_000_000_002), 1, || decision(number % WORKLOADS));
    }
    let replaced = start.elapsed();
    println!("flows                    {}", table.len());
    println!("memory                   {:.1} MB", (after - before) as f64 / 1e6);
    println!("memory after replacing   {:.1} MB", (memory() - before) as f64 / 1e6);
    println!("new flow                 {:.2} µs", filled.as_secs_f64() * 1e6 / f64::from(FLOWS));
    println!("known flow               {:.2} µs", repeated.as_secs_f64() * 1e6 / f64::from(FLOWS));
    println!("flow that evicts one     {:.2} µs", replaced.as_secs_f64() * 1e6 / f64::from(FLOWS));
    black_box(table);
}
