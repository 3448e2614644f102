//! Rules about domain names, whose addresses come and go.

use weir_datapath::Mode;
use weir_lab::{Conversation, Wiring};
use weir_model::{Protocol::Tcp, Verdict};

use crate::{
    Backend,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, flow, world},
};

/// An address of the name.
const SITE: &str = "203.0.113.9";

/// A policy of the pod `api` with these rules before one that denies everything else.
fn policy(rules: &str) -> String {
    format!(
        "
adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha2
  kind: ClusterNetworkPolicy
  metadata: {{name: names}}
  spec:
    tier: Admin
    priority: 10
    subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: api}}}}}}}}
    egress: [{rules} {{action: Deny, to: [{{networks: [0.0.0.0/0]}}]}}]
dns: {{unrelated.example.com: [203.0.113.1]}}
"
    )
}

const NAME: &str = "{action: Accept, to: [{domainNames: [api.example.com]}]},";
const OTHER: &str = "{action: Accept, to: [{networks: [198.51.100.0/24]}]},";

/// A connection to an address of a name continues when the name has lost the address, and ends when
/// no rule mentions the name.
pub(crate) fn established<B: Backend>(backend: B) {
    let text = policy(NAME)
        .replace("unrelated.example.com: [203.0.113.1", &format!("api.example.com: [{SITE}"));
    let text = format!("{PODS}{text}");
    let mut cluster = TrialCluster::new(backend, &world(&text), Wiring::Routed, Mode::Enforce);
    let site = flow("10.0.0.1", SITE, Tcp, 443);
    cluster.probe(&[
        (site, Verdict::Allow),
        (flow("10.0.0.1", "203.0.113.8", Tcp, 443), Verdict::Deny),
    ]);
    let mut talk = cluster.lab.converse(site, ARRIVAL_TIMEOUT).unwrap();
    let continues = |talk: &mut Conversation, why: &str| {
        assert_eq!(talk.exchange(ARRIVAL_TIMEOUT).unwrap(), Verdict::Allow, "{why}");
    };
    continues(&mut talk, "the name has the address");

    cluster.forget_name("api.example.com");
    cluster.assert_cut([0, 0], "the name has lost the address");
    cluster.probe(&[(site, Verdict::Deny)]);
    continues(&mut talk, "the name has lost the address");

    cluster.change(&policy(&format!("{NAME} {OTHER}")));
    cluster.assert_cut([0, 0], "another rule");
    continues(&mut talk, "another rule");

    cluster.change(&policy(OTHER));
    cluster.assert_cut([2, 0], "no rule about the name: the probe and the conversation");
    assert_eq!(talk.exchange(DROP_TIMEOUT).unwrap(), Verdict::Deny, "no rule about the name");
}
