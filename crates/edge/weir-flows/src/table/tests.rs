use super::*;
use crate::{RuleDirection, RuleEffect};

const COMPLETE: Completeness =
    Completeness { connections: true, source: SamplingSource::Conntrack, denied_per_second: 20 };

fn workload(name: &str) -> FlowPeer {
    let name =
        WorkloadName { namespace: "shop".into(), kind: "Deployment".into(), name: name.into() };
    FlowPeer::Workload(Arc::new(name))
}

fn observation(from: FlowPeer, port: u16, verdict: FlowVerdict, time: u64) -> Observation {
    Observation {
        key: FlowKey { from, to: workload("db"), protocol: 6, port: Some(port), verdict },
        is_from_here: false,
        pods: (Some("web-1".into()), Some("db-0".into())),
        time,
        connections: 1,
        traffic: None,
    }
}

fn decision(name: &str) -> Decision {
    let rule = DecidingRule {
        kind: "NetworkPolicy".into(),
        namespace: Some("shop".into()),
        name: name.into(),
        direction: RuleDirection::Ingress,
        rule: Some(0),
        effect: RuleEffect::Allow,
    };
    Decision { rules: vec![rule], more_policies: 0 }
}

fn table(flows: usize, per_workload: usize) -> FlowTable {
    FlowTable::new("n1", FlowLimits { flows, per_workload })
}

fn ports(table: &FlowTable, since: u64) -> Vec<Option<u16>> {
    table.since(since, 100, COMPLETE).flows.iter().map(|flow| flow.port).collect()
}

#[test]
fn connections_of_a_workload_at_a_port_are_one_flow() {
    let mut table = table(10, 10);
    for (time, pod) in [(2000, "web-1"), (1000, "web-2"), (3000, "web-3")] {
        let traffic = Some(Traffic { packets: 10, bytes: 1000 });
        let pods = (Some(pod.into()), Some("db-0".into()));
        let one = observation(workload("web"), 5432, FlowVerdict::Allow, time);
        table.observe(Observation { pods, traffic, ..one }, 1, || decision("db"));
    }
    table
        .observe(observation(workload("web"), 5432, FlowVerdict::Deny, 4000), 1, || decision("db"));
    let page = table.since(0, 100, COMPLETE);
    let [allowed, denied] = &page.flows[..] else { panic!("{page:?}") };
    assert_eq!((allowed.connections, allowed.packets, allowed.bytes), (3, Some(30), Some(3000)));
    assert_eq!(allowed.first_seen, "1970-01-01T00:00:01.000Z");
    assert_eq!(allowed.last_seen, "1970-01-01T00:00:03.000Z");
    assert_eq!(allowed.from.to_string(), "shop/deployment/web");
    assert!(allowed.from.is_named("web-3") && allowed.sampling.complete);
    assert_eq!((denied.connections, denied.packets), (1, None));
    assert_eq!(denied.sampling.limit_per_second, Some(20));
}

#[test]
fn rules_are_computed_once_until_they_change() {
    let mut table = table(10, 10);
    let mut computed = 0;
    for rules in [1, 1, 2, 2] {
        let one = observation(workload("web"), 80, FlowVerdict::Allow, 1);
        table.observe(one, rules, || {
            computed += 1;
            decision(&format!("db{rules}"))
        });
    }
    assert_eq!(computed, 2);
    assert_eq!(table.since(0, 1, COMPLETE).flows[0].policies[0].name, "db2");
    let uses: Vec<(String, u64)> =
        table.uses().list().into_iter().map(|one| (one.rule.name, one.connections)).collect();
    assert_eq!(uses, [("db1".to_owned(), 2), ("db2".to_owned(), 2)]);
}

#[test]
fn pages_continue_in_the_order_of_changes() {
    let mut table = table(10, 10);
    for port in [1, 2, 3, 1] {
        table.observe(observation(workload("web"), port, FlowVerdict::Allow, 1), 1, || {
            decision("a")
        });
    }
    assert_eq!(ports(&table, 0), [Some(2), Some(3), Some(1)]);
    let page = table.since(0, 2, COMPLETE);
    assert_eq!((page.last, page.more), (3, true));
    assert_eq!(ports(&table, page.last), [Some(1)]);
    assert_eq!(ports(&table, 4), []);
    assert_eq!(ports(&table, 1000).len(), 3, "the agent started again");
}

#[test]
fn a_full_table_evicts_the_flow_that_changed_first() {
    let mut table = table(3, 10);
    for port in [1, 2, 3, 1, 4, 5] {
        table.observe(observation(workload("web"), port, FlowVerdict::Allow, 1), 1, || {
            decision("a")
        });
    }
    assert_eq!(ports(&table, 0), [Some(1), Some(4), Some(5)]);
    assert_eq!((table.len(), table.evicted()), (3, 2));
    // The index finds the flows that took the slots of others.
    table.observe(observation(workload("web"), 4, FlowVerdict::Allow, 1), 1, || decision("a"));
    assert_eq!(ports(&table, 0), [Some(1), Some(5), Some(4)]);
}

#[test]
fn a_flow_that_may_have_been_evicted_before_is_not_complete() {
    let mut table = table(2, 10);
    for port in [1, 2, 1, 3, 2] {
        table.observe(observation(workload("web"), port, FlowVerdict::Allow, 1), 1, || {
            decision("a")
        });
    }
    let flows = table.since(0, 100, COMPLETE).flows;
    let complete: Vec<(Option<u16>, u64, bool)> =
        flows.iter().map(|flow| (flow.port, flow.connections, flow.sampling.complete)).collect();
    assert_eq!(complete, [(Some(3), 1, true), (Some(2), 1, false)]);
    table.observe(observation(workload("web"), 1, FlowVerdict::Audit, 1), 1, || decision("a"));
    assert!(table.since(0, 100, COMPLETE).flows.iter().all(|flow| !flow.sampling.complete));
}

#[test]
fn a_workload_with_many_peers_does_not_displace_the_flows_of_others() {
    let mut table = table(100, 5);
    for last in 0..50 {
        let from = FlowPeer::Address(IpAddr::from([203, 0, 113, last]));
        table.observe(observation(from, 80, FlowVerdict::Allow, 1), 1, || decision("a"));
    }
    assert_eq!(table.len(), 6);
    let flows = table.since(0, 100, COMPLETE).flows;
    let others = flows.iter().find(|flow| flow.from == RecordEnd::Others { others: true });
    let others = others.unwrap();
    assert_eq!((others.connections, others.port, others.policies.len()), (45, None, 0));
    assert!(table.uses().is_incomplete());
}

#[test]
fn the_counts_of_workloads_follow_evictions() {
    let mut table = table(4, 4);
    for round in 0..50u16 {
        let from = FlowPeer::Address(IpAddr::from([203, 0, 113, 1]));
        let mut one = observation(from, round, FlowVerdict::Allow, 1);
        one.key.to = workload(&format!("w{}", round % 5));
        table.observe(one, 1, || decision("a"));
    }
    assert_eq!(table.counts.values().sum::<usize>(), 4);
    assert_eq!((table.len(), table.evicted()), (4, 46));
}
