//! Pods whose labels change while packets arrive.

use weir_datapath::Mode;
use weir_lab::Wiring;

use crate::{
    Backend,
    cluster::{PODS, TrialCluster, policy, world},
    traffic::Traffic,
};

/// The number of label changes.
const LABEL_CHANGES: usize = 40;

/// `db` allows `api` and `new` by rules with different port ranges, so that each has its own set. It
/// also allows `far` and `near`.
const DB: &str = "podSelector: {matchLabels: {app: db}}, ingress: [
    {from: [{podSelector: {matchLabels: {app: api}}}], ports: [{protocol: UDP, port: 70, endPort: 90}]},
    {from: [{podSelector: {matchLabels: {app: new}}}], ports: [{protocol: UDP, port: 60, endPort: 100}]},
    {from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [far, near]}]}}]}]";

/// An admin policy denies `far` and `near`, with one rule for each.
const ADMIN: &str = "
- {apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: admin}, spec: {priority: 1,
   subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}},
   ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: far}}}}]},
             {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: near}}}}]}]}}
";

/// A rule that passes `api` to the next tier and adds one set lookup.
const PASS: &str = "ingress: [{action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: api}}}}]}, ";

/// One pod moves between two allowed sets and one between two denied sets.
pub(crate) fn between_sets<B: Backend>(backend: B) {
    check_verdicts(backend, ADMIN);
}

/// The same, while an admin rule alternately passes one of them.
pub(crate) fn passed_on<B: Backend>(backend: B) {
    check_verdicts(backend, &ADMIN.replace("ingress: [", PASS));
}

fn check_verdicts<B: Backend>(backend: B, admin: &str) {
    let text = format!("{PODS}policies:\n{}adminPolicies:{admin}", policy("db", DB));
    let mut cluster = TrialCluster::new(backend, &world(&text), Wiring::Routed, Mode::Enforce);
    let moved = PODS.replace("app: api", "app: new").replace("app: far", "app: near");
    Traffic::new(&cluster.lab).check_during(|| {
        for time in 0..LABEL_CHANGES {
            cluster.change(if time % 2 == 0 { &moved } else { PODS });
        }
    });
}
