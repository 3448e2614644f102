//! The size of the ACLs is proportional to the size of the policies, or the policies are denied.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use weir_datapath::Planner as _;
use weir_engine::{Engine, Locality};
use weir_hcn::{Acls, Planner, evaluate, render};
use weir_model::{Change, Direction, Flow, Name, PodId, Program, Protocol, Verdict};
use weir_testkit::egress::{block, port, rule};

const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}}";

fn program(rules: &[String]) -> Program {
    let text = format!(
        "{POD}\n---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: shop}}, spec: {{podSelector: {{}}, policyTypes: [Egress], egress: [{}]}}}}",
        rules.join(", ")
    );
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("test".into(), text.as_bytes());
    let changes: Vec<Change> = reader.finish().objects.into_iter().map(Change::Put).collect();
    let mut program = Program::default();
    program.apply(Engine::new(Locality::Everywhere).apply(&changes));
    program
}

fn is_allowed(program: &Program, to: [u8; 4], port: u16) -> bool {
    let flow = Flow { from: [10, 0, 0, 1].into(), to: to.into(), protocol: Protocol::Tcp, port };
    let pod = PodId::new("shop", "web");
    let rendered = render(&pod, &program.endpoints[&pod], program, &Default::default());
    evaluate(&rendered.acls, &flow, Direction::Egress).unwrap() == Verdict::Allow
}

#[test]
fn blocks_do_not_multiply_with_ports() {
    let program = program(&[rule((0..9000).map(block), (0..9000).map(port))]);
    let pod = PodId::new("shop", "web");
    let rendered = render(&pod, &program.endpoints[&pod], &program, &Default::default());
    assert_eq!(rendered.shortfalls, []);
    let grants = rendered.acls.iter().filter(|acl| acl.id.contains("/p#"));
    // Three lists of addresses, each with three lists of ports.
    assert_eq!(grants.count(), 9);
    let bytes = Acls::render(&program).to_string().len();
    assert!(bytes < 3 * 9000 * (16 + 6) + 10_000, "{bytes} bytes");
    assert!(is_allowed(&program, [20, 0, 0, 4], 3));
    assert!(!is_allowed(&program, [20, 0, 0, 5], 3) && !is_allowed(&program, [20, 0, 0, 4], 4));
}

#[test]
fn rules_with_too_many_exceptions_are_denied_and_reported() {
    let except: Vec<String> =
        (0..4000).map(|number| format!("'2001:db8:{number:x}::1/128'")).collect();
    let block = format!("{{ipBlock: {{cidr: '::/0', except: [{}]}}}}", except.join(", "));
    let small = rule(["{ipBlock: {cidr: 192.0.2.0/24}}".to_owned()].into_iter(), (0..1).map(port));
    let program = program(&[rule([block].into_iter(), (0..1).map(port)), small]);
    let pod = PodId::new("shop", "web");
    let rendered = render(&pod, &program.endpoints[&pod], &program, &Default::default());
    let texts: Vec<String> = rendered.shortfalls.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].starts_with("NetworkPolicy shop/p for shop/web: the addresses"), "{texts:?}");
    let bytes = Acls::render(&program).to_string().len();
    assert!(bytes < 10_000, "{bytes} bytes");
    assert!(is_allowed(&program, [192, 0, 2, 7], 1), "the other rule stays in effect");
}

/// The lists of addresses and ports of a pod's ACLs.
fn lists(planner: &Planner, name: &str) -> Vec<Name> {
    let pod = PodId::new("shop", name);
    let acls = planner.pods().find(|(id, ..)| **id == pod).map(|(.., acls)| acls);
    let long = |list: &Name| list.len() > 100;
    let lists = acls.into_iter().flatten().flat_map(|acl| {
        [&acl.remote_addresses, &acl.local_ports, &acl.remote_ports].map(Name::clone)
    });
    lists.filter(long).collect()
}

#[test]
fn pods_with_the_same_rules_share_their_lists() {
    let pod = |number: u8| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{number}, namespace: shop}}, status: {{podIP: 10.0.0.{number}}}}}\n"
        )
    };
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    let mut planner = Planner::new(Default::default());
    let mut add = |text: &str| {
        let mut reader = weir_api::ManifestReader::new();
        reader.read_file("test".into(), text.as_bytes());
        let delta = engine.apply(reader.finish().objects.into_iter().map(Change::Put));
        program.apply(delta.clone());
        planner.plan(&program, &delta);
    };
    let rules = rule((0..500).map(block), (0..500).map(port));
    add(&format!(
        "{}{}---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: shop}}, spec: {{podSelector: {{}}, policyTypes: [Egress], egress: [{rules}]}}}}",
        pod(2),
        pod(3)
    ));
    // A pod that starts later shares them, too.
    add(&pod(4));
    let [first, second, later] = ["p2", "p3", "p4"].map(|name| lists(&planner, name));
    assert!(first.len() >= 2, "{first:?}");
    for other in [second, later] {
        assert_eq!(first, other);
        assert!(first.iter().zip(&other).all(|(one, two)| Arc::ptr_eq(one, two)));
    }
}
