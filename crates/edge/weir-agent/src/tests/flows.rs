//! Connections by workload, with the rules that decided.

use weir_flows::FlowsPage;

use super::*;
use crate::flows::{ConnectionBatch, Link, LinkCount};

fn link(from: u8, to: u8, port: u16) -> Link {
    let address = |last| IpAddr::from([10, 0, 0, last]);
    Link { from: address(from), to: address(to), protocol: 6, port: Some(port) }
}

fn observe(bench: &mut Bench, links: &[Link]) {
    let mut batch = ConnectionBatch { time: 1_000, ..ConnectionBatch::default() };
    for link in links {
        assert!(batch.add(*link, LinkCount { connections: 1, traffic: None }));
    }
    bench.agent.handle(AgentEvent::Connections(batch, Arc::default()));
}

fn flows(bench: &Bench) -> Vec<String> {
    let (_, body) = get(serve(bench.report.clone()), "/flows");
    let page: FlowsPage = serde_json::from_str(&body).unwrap();
    let text = |flow: &weir_flows::FlowRecord| {
        let rules: Vec<String> = flow.policies.iter().map(ToString::to_string).collect();
        let port = flow.port.unwrap_or_default();
        let ends = format!("{} → {}:{port}", flow.from, flow.to);
        format!("{} {ends} ×{} {}", flow.verdict, flow.connections, rules.join(", "))
    };
    page.flows.iter().map(text).collect()
}

#[test]
fn connections_name_the_rules_that_allowed_them() {
    let mut bench = Bench::started();
    // The pods of other nodes do not concern this agent, except as peers.
    observe(&mut bench, &[link(2, 1, 80), link(2, 1, 80), link(2, 3, 80), link(1, 99, 443)]);
    assert_eq!(
        flows(&bench),
        [
            "allow shop/web → 10.0.0.99:443 ×1 ",
            "allow shop/api → shop/web:80 ×2 NetworkPolicy shop/web ingress[0] allows",
        ]
    );
}

#[test]
fn a_connection_that_the_rules_deny_now_names_no_rule() {
    let mut bench = Bench::started();
    // It was established before the policy, or the rules changed in the meantime.
    observe(&mut bench, &[link(3, 1, 80)]);
    assert_eq!(flows(&bench), ["allow shop/job → shop/web:80 ×1 "]);
}

#[test]
fn denied_packets_name_the_policies_that_isolate() {
    let mut bench = Bench::started();
    let denied = Dropped { from: IpAddr::from([10, 0, 0, 3]), ..packet() };
    bench.agent.handle(AgentEvent::Dropped(vec![denied.clone(), denied], Arc::default()));
    let [flow] = &flows(&bench)[..] else { panic!("{:?}", flows(&bench)) };
    assert!(flow.starts_with("deny shop/job → shop/web:"), "{flow}");
    assert!(flow.ends_with(" ×2 NetworkPolicy shop/web ingress isolates"), "{flow}");
}

#[test]
fn in_audit_mode_a_denied_connection_is_one_flow() {
    let mut bench = Bench::with(|options| AgentOptions { mode: Mode::Audit, ..options });
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", &policy("api"));
    bench.turn();
    observe(&mut bench, &[link(3, 1, 80), link(2, 1, 80)]);
    let denied = Dropped { from: IpAddr::from([10, 0, 0, 3]), ..packet() };
    bench.agent.handle(AgentEvent::Dropped(vec![denied], Arc::default()));
    assert_eq!(
        flows(&bench),
        [
            "allow shop/api → shop/web:80 ×1 NetworkPolicy shop/web ingress[0] allows",
            "audit shop/job → shop/web:80 ×1 NetworkPolicy shop/web ingress isolates",
        ]
    );
}

#[test]
fn a_changed_policy_is_named_at_the_next_connection() {
    let mut bench = Bench::started();
    observe(&mut bench, &[link(2, 1, 80)]);
    let open = policy("api").replace("name: web,", "name: other,");
    bench.write("policy.yaml", &open);
    bench.turn();
    observe(&mut bench, &[link(2, 1, 80)]);
    assert_eq!(
        flows(&bench),
        ["allow shop/api → shop/web:80 ×2 NetworkPolicy shop/other ingress[0] allows"]
    );
}
