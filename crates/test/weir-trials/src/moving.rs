//! Pods that are relabelled while packets come.

use weir_datapath::Mode;
use weir_lab::Wiring;

use crate::{
    Backend,
    cluster::{Cluster, PODS, policy, world},
    traffic::Traffic,
};

/// So often pods are relabelled.
const TIMES: usize = 40;

/// `db` lets `old` and `new` in, by rules with ranges of their own, so that each has a set; and whoever was or is `far`.
const DB: &str = "podSelector: {matchLabels: {app: db}}, ingress: [
    {from: [{podSelector: {matchLabels: {app: api}}}], ports: [{protocol: UDP, port: 70, endPort: 90}]},
    {from: [{podSelector: {matchLabels: {app: new}}}], ports: [{protocol: UDP, port: 60, endPort: 100}]},
    {from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [far, near]}]}}]}]";

/// The administrator lets neither `far` nor `near` in, by a rule for each.
const ADMIN: &str = "
- {apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: admin}, spec: {priority: 1,
   subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}},
   ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: far}}}}]},
             {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: near}}}}]}]}}
";

/// A rule that has no say about `api`, and asks one set more.
const PASS: &str = "ingress: [{action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: api}}}}]}, ";

/// One pod goes from a set that is let in to another, and one from a set that is kept out to another, and back.
pub(crate) fn between_sets<B: Backend>(backend: B) {
    are_judged(backend, ADMIN);
}

/// The same where administrators pass one of them on, and no longer.
pub(crate) fn passed_on<B: Backend>(backend: B) {
    are_judged(backend, &ADMIN.replace("ingress: [", PASS));
}

fn are_judged<B: Backend>(backend: B, admin: &str) {
    let text = format!("{PODS}policies:\n{}adminPolicies:{admin}", policy("db", DB));
    let mut cluster = Cluster::new(backend, &world(&text), Wiring::Routed, Mode::Enforce);
    let moved = PODS.replace("app: api", "app: new").replace("app: far", "app: near");
    Traffic::new(&cluster.lab).none_is_misjudged(|| {
        for time in 0..TIMES {
            cluster.change(if time % 2 == 0 { &moved } else { PODS });
        }
    });
}
