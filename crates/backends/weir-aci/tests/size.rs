//! The size of objects and files is proportional to the size of the policies, or they are held.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use weir_aci::{AciSettings, HostprotKind, RenderedCluster};
use weir_model::{Change, Flow, Protocol, Verdict, World};
use weir_testkit::egress::{block, port, rule};

const PODS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, status: {podIPs: [{ip: 10.0.0.1}]}}
";

fn cluster(pods: &str, rules: &[String]) -> RenderedCluster {
    let text = format!(
        "{PODS}{pods}---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: shop}}, spec: {{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Egress], egress: [{}]}}}}",
        rules.join(", ")
    );
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("test".into(), text.as_bytes());
    let mut world = World::default();
    reader.finish().objects.into_iter().for_each(|object| world.apply(Change::Put(object)));
    RenderedCluster::new(&AciSettings { prefix: "k".into() }, "k", &world).unwrap()
}

fn is_allowed(cluster: &RenderedCluster, to: [u8; 4], port: u16) -> bool {
    let flow = Flow { from: [10, 0, 0, 1].into(), to: to.into(), protocol: Protocol::Tcp, port };
    cluster.verdict(&flow) == Verdict::Allow
}

/// The bytes of the objects and of the files of policies.
fn sizes(cluster: &RenderedCluster) -> (usize, usize) {
    let objects = cluster.hpp().objects().values();
    let objects = objects.map(|object| object.manifest("x").to_string().len()).sum();
    (objects, cluster.files().iter().map(|file| file.text.len()).sum())
}

#[test]
fn blocks_do_not_multiply_with_ports() {
    let small = sizes(&cluster("", &[rule((0..50).map(block), (0..50).map(port))]));
    let cluster = cluster("", &[rule((0..500).map(block), (0..500).map(port))]);
    let large = sizes(&cluster);
    assert!(large.0 < 12 * small.0 && large.1 < 12 * small.1, "{small:?} {large:?}");
    assert_eq!(cluster.hpp().findings(), []);
    assert!(is_allowed(&cluster, [20, 0, 0, 4], 3));
    assert!(!is_allowed(&cluster, [20, 0, 0, 5], 3) && !is_allowed(&cluster, [20, 0, 0, 4], 4));
    let containers = cluster.hpp().objects().keys();
    let shared =
        containers.filter(|id| id.kind == HostprotKind::Container && id.name.contains('.'));
    assert_eq!(shared.count(), 1);
}

#[test]
fn members_do_not_multiply_with_ports() {
    let pod = |number: u32| {
        let [_, _, c, d] = number.to_be_bytes();
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: m{number}, namespace: shop, labels: {{app: member}}}}, status: {{podIPs: [{{ip: 10.1.{c}.{d}}}]}}}}\n"
        )
    };
    let peer = || ["{podSelector: {matchLabels: {app: member}}}".to_owned()].into_iter();
    let render = |pods: u32, ports: u32| {
        let pods: String = (0..pods).map(pod).collect();
        cluster(&pods, &[rule(peer(), (0..ports).map(port))])
    };
    let (small, large) = (render(110, 50), render(1100, 500));
    let (small, large) = (sizes(&small), sizes(&large));
    assert!(large.0 < 12 * small.0 && large.1 < 12 * small.1, "{small:?} {large:?}");
}

/// A policy that does not fit into an object.
fn check_held(rules: &[String]) {
    let cluster = cluster("", rules);
    let findings = cluster.hpp().findings();
    assert_eq!(findings.iter().map(|one| one.code).collect::<Vec<_>>(), ["aci-size"]);
    assert!(sizes(&cluster).0 < 10_000 && sizes(&cluster).1 < 50_000, "{:?}", sizes(&cluster));
    assert!(!is_allowed(&cluster, [20, 0, 0, 4], 3), "the pod is isolated");
}

#[test]
fn a_policy_that_does_not_fit_is_held_and_reported() {
    check_held(&[rule((0..10).map(block), (0..20_000).map(port))]);
    let except: Vec<String> =
        (0..3000).map(|number| format!("'2001:db8:{number:x}::1/128'")).collect();
    let wide = format!("{{ipBlock: {{cidr: '::/0', except: [{}]}}}}", except.join(", "));
    check_held(&[rule([wide].into_iter(), (0..3).map(port))]);
    let name = |number: u32| format!("{{port: name-{number}}}");
    check_held(&[rule((0..40).map(block), (0..40).map(name))]);
}
