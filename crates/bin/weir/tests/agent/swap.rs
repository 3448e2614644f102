use std::net::IpAddr;

use weir_api::ManifestReader;
use weir_datapath::{ApplyError, Datapath, Established, Ledger, Mode, Outcome};
use weir_engine::{Engine, Locality};
use weir_lab::{Lab, Layout};
use weir_model::{Change, Name, World};
use weir_nft::Nft;

use crate::prober::Prober;

/// Two pods on one node, and others that fill the sets.
pub(crate) const PODS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web, tier: front}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {podIP: 10.0.0.2}
";

pub(crate) const WEB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const DB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
pub(crate) const OPEN: u16 = 5432;
pub(crate) const CLOSED: u16 = 5433;

/// A policy that lets the web server reach one port of the database, in one of several equivalent
/// forms.
pub(crate) fn policy(form: usize) -> String {
    let peer = match form % 3 {
        0 => "podSelector: {matchLabels: {app: web}}",
        1 => "namespaceSelector: {}",
        _ => "ipBlock: {cidr: 10.0.0.0/30}",
    };
    let ports = match form % 2 {
        0 => format!("{{port: {OPEN}, protocol: UDP}}"),
        _ => format!("{{port: {OPEN}, protocol: UDP}}, {{port: {}, protocol: TCP}}", 1 + form),
    };
    format!(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: db, namespace: shop}}
spec:
  podSelector: {{matchLabels: {{app: db}}}}
  policyTypes: [Ingress]
  ingress: [{{from: [{{{peer}}}], ports: [{ports}]}}]
"
    )
}

/// The objects of manifests without findings.
pub(crate) fn changes(text: &str) -> Vec<Change> {
    let mut reader = ManifestReader::new();
    reader.read_file("test".into(), text.as_bytes());
    let manifests = reader.finish();
    assert!(manifests.findings.is_empty(), "{:?}", manifests.findings);
    manifests.objects.into_iter().map(Change::Put).collect()
}

/// The node and its two pods.
pub(crate) fn lab() -> Lab {
    let mut world = World::default();
    changes(PODS).into_iter().for_each(|change| world.apply(change));
    Lab::build(&Layout::from_world(&world, &[])).unwrap()
}

pub(crate) fn a_thousand_times() {
    again_and_again(|| Nft::open(Mode::Enforce), 1_000);
}

/// Changes the policy `times` times between equivalent forms, while a prober sends packets.
pub(crate) fn again_and_again<D: Datapath + Send>(
    open: impl FnOnce() -> Result<D, ApplyError> + Send,
    times: usize,
) {
    let lab = lab();
    let node = Name::from("n1");
    let mut ledger = Ledger::new(lab.on_node(&node, open).unwrap().unwrap(), Established::Keep);
    let mut engine = Engine::new(Locality::Node(node));
    ledger.add_delta(engine.apply(changes(PODS)));
    ledger.add_delta(engine.apply(changes(&policy(0))));
    ledger.set_in_sync();
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    let probing = Prober::new(&lab, WEB, DB, OPEN, CLOSED).start();
    for form in 1..=times {
        ledger.add_delta(engine.apply(changes(&policy(form))));
        assert!(matches!(ledger.apply_pending(), Outcome::Applied), "swap {form}");
    }
    probing.stop().check(1_000);
}
