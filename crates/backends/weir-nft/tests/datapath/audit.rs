//! In audit mode everything passes, and denials are counted.

use libtest_mimic::Trial;
use weir_datapath::Mode;
use weir_lab::{Lab, Wiring};
use weir_model::{Direction, Protocol, Verdict};
use weir_trials::cluster::{PODS, TrialCluster, flow, policy, world};

use crate::{
    backend::{Nftables, trial},
    node,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("in_audit_mode_denials_pass_and_are_counted", denials_pass),
        trial("in_audit_mode_a_denial_of_an_admin_policy_is_counted_once", counted_once),
    ]
}

/// `db` admits `api`, and `web` has no egress.
fn policies() -> String {
    let db = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";
    let web = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]";
    format!("{PODS}policies:\n{}{}", policy("db", db), policy("web", web))
}

/// The number of packets counted as denied.
fn counted(lab: &Lab, direction: Direction) -> u64 {
    let chain = format!("{direction}-denied");
    let listed = node::list(lab, &["list", "chain", "inet", "weir", &chain]);
    let (_, rest) = listed.split_once("counter packets ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

fn denials_pass() {
    let cluster =
        TrialCluster::new(Nftables::default(), &world(&policies()), Wiring::Routed, Mode::Audit);
    let counts = || Direction::BOTH.map(|direction| counted(&cluster.lab, direction));
    let pairs = |ends: [(&str, &str); 2]| {
        let flows = ends.map(|(from, to)| {
            [Protocol::Tcp, Protocol::Udp].map(|protocol| flow(from, to, protocol, 80))
        });
        flows.concat().into_iter().map(|flow| (flow, Verdict::Allow)).collect::<Vec<_>>()
    };
    let [ingress, egress] = Direction::BOTH;
    assert_eq!((ingress, egress), (Direction::Ingress, Direction::Egress));
    cluster.probe(&pairs([("10.0.0.1", "10.0.0.3"), ("fd00::1", "fd00::3")]));
    assert_eq!(counts(), [0, 0], "allowed packets are not counted");
    cluster.probe(&pairs([("10.0.0.4", "10.0.0.3"), ("fd00::4", "fd00::3")]));
    assert_eq!(counts(), [4, 0], "the first packet of each connection is judged");
    cluster.probe(&pairs([("10.0.0.2", "10.0.0.4"), ("fd00::2", "fd00::4")]));
    assert_eq!(counts(), [4, 4]);
    cluster.probe(&pairs([("10.0.0.2", "10.0.0.3"), ("fd00::2", "fd00::3")]));
    assert_eq!(counts(), [8, 8], "both ends deny it");
    cluster.ping("10.0.0.4", "10.0.0.3", Verdict::Allow);
    cluster.ping("fd00::4", "fd00::3", Verdict::Allow);
    assert_eq!(counts(), [10, 8]);
}

/// An admin policy denies ingress of `db` and egress of `web`, and so do their NetworkPolicies.
fn counted_once() {
    let admin = |name: &str, app: &str, rules: &str| {
        format!(
            "- apiVersion: policy.networking.k8s.io/v1alpha2
  kind: ClusterNetworkPolicy
  metadata: {{name: {name}}}
  spec: {{tier: Admin, priority: 1, subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: {app}}}}}}}}}, {rules}}}
"
        )
    };
    let text = format!(
        "{}adminPolicies:\n{}{}",
        policies(),
        admin("db", "db", "ingress: [{action: Deny, from: [{namespaces: {}}]}]"),
        admin("web", "web", "egress: [{action: Deny, to: [{namespaces: {}}]}]"),
    );
    let cluster =
        TrialCluster::new(Nftables::default(), &world(&text), Wiring::Routed, Mode::Audit);
    let counts = || Direction::BOTH.map(|direction| counted(&cluster.lab, direction));
    let probe = |from, to| cluster.probe(&[(flow(from, to, Protocol::Udp, 80), Verdict::Allow)]);
    probe("10.0.0.4", "10.0.0.3");
    assert_eq!(counts(), [1, 0]);
    probe("fd00::2", "fd00::4");
    assert_eq!(counts(), [1, 1]);
    probe("10.0.0.2", "10.0.0.3");
    assert_eq!(counts(), [2, 2], "both ends deny it");
}
