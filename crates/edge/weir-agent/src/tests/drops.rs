//! Drops in metrics and over HTTP, while tenants try to exhaust the agent or to hide others.

use super::*;

/// A pod of this node with a policy of its own.
fn tenant(number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    format!(
        "---
{{apiVersion: v1, kind: Pod, metadata: {{name: p{number}, namespace: shop, labels: {{app: p{number}}}}}, spec: {{nodeName: n1}}, status: {{podIP: 10.1.{high}.{low}}}}}
---
{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p{number}, namespace: shop}}, spec: {{podSelector: {{matchLabels: {{app: p{number}}}}}}}}}
"
    )
}

fn packet_to(number: u16) -> Dropped {
    let [high, low] = number.to_be_bytes();
    Dropped { to: IpAddr::from([10, 1, high, low]), ..packet() }
}

fn metrics(bench: &Bench) -> String {
    get(serve(bench.report.clone()), "/metrics").1
}

#[test]
fn counters_of_one_tenant_make_room_for_others_after_a_while() {
    let mut bench = Bench::started();
    bench.write("tenants.yaml", &(0..=600).map(tenant).collect::<String>());
    bench.turn();
    let has = |bench: &Bench, policy: &str| {
        metrics(bench).contains(&format!("direction=\"ingress\",policy=\"{policy}\""))
    };
    let packets = (0..600).map(packet_to).collect();
    bench.agent.handle(AgentEvent::Dropped(packets, Arc::default()));
    assert!(has(&bench, "NetworkPolicy shop/p499") && has(&bench, "others"));
    assert!(!has(&bench, "NetworkPolicy shop/p500"), "the number of counters is bounded");
    (0..11).for_each(|_| bench.turn());
    assert!(!has(&bench, "NetworkPolicy shop/p499"));
    bench.agent.handle(AgentEvent::Dropped(vec![packet_to(600)], Arc::default()));
    assert!(has(&bench, "NetworkPolicy shop/p600"));
}

#[test]
fn packets_that_were_denied_without_a_report_count_as_missed() {
    let mut bench = Bench::started();
    let missed = |bench: &mut Bench, denied: [u64; 2]| {
        bench.memory.machine(|machine| machine.denied = denied.into());
        bench.turn();
        bench.turn();
        let metrics = metrics(bench);
        let line = metrics.lines().find(|line| line.starts_with("weir_drops_missed_total"));
        line.and_then(|line| line.split_once(' ')).unwrap().1.parse::<u64>().unwrap()
    };
    assert_eq!(missed(&mut bench, [0, 0]), 0);
    bench.agent.handle(AgentEvent::Dropped(vec![packet(), packet()], Arc::default()));
    assert_eq!(missed(&mut bench, [272_601, 0]), 272_599);
    assert_eq!(missed(&mut bench, [1, 0]), 272_600, "the rules were replaced");
    let spoofed = Dropped { cause: DropCause::SpoofedSource, ..packet() };
    bench.agent.handle(AgentEvent::Dropped(vec![spoofed], Arc::default()));
    assert_eq!(missed(&mut bench, [1, 5]), 272_604, "the guard denied five");
}

#[test]
fn a_thousand_drops_are_served_in_pages() {
    let mut bench = Bench::started();
    let policy = |number: u16| {
        let name = format!("{number:04}{}", "x".repeat(240));
        format!(
            "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: shop}}, spec: {{podSelector: {{}}}}}}\n"
        )
    };
    bench.write("policies.yaml", &(0..4000).map(policy).collect::<String>());
    bench.turn();
    bench.agent.handle(AgentEvent::Dropped(vec![packet(); 1000], Arc::default()));
    let address = serve(bench.report.clone());
    let (mut after, mut read) = (0, 0);
    loop {
        let (_, body) = get(address, &format!("/drops?after={after}"));
        assert!(body.len() < 500_000, "{} bytes", body.len());
        let page: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(page["drops"][0]["morePolicies"], 3998);
        read += page["drops"].as_array().unwrap().len();
        after = page["last"].as_u64().unwrap();
        if page["more"] == false {
            break;
        }
    }
    assert_eq!((after, read > 500), (1000, true), "{read}");
    let metrics = metrics(&bench);
    let drops = metrics.lines().filter(|line| line.starts_with("weir_drops"));
    assert!(drops.map(str::len).sum::<usize>() < 100_000);
    // The counters of 500 policies with long names.
    assert!(metrics.len() < 300_000, "{} bytes", metrics.len());
}
