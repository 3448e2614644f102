//! An agent that is killed during a plan. The next one finds a partly applied state.

use weir_datapath::Mode;
use weir_engine::{Engine, Locality};
use weir_iptables::{IptablesPlan, Step, Variant};
use weir_model::{Change, Program};
use weir_trials::cluster::{PODS, policy, world};

use crate::node;

/// `db` allows `new`, and everything that administrators pass on.
const DB: &str = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}], ports: [{protocol: UDP, port: 70, endPort: 90}]},
    {from: [{podSelector: {matchLabels: {app: new}}}]}]";

const ADMIN: &str = "
- {apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: admin}, spec: {priority: 1,
   subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}},
   ingress: [{action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: api}}}}]},
             {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: new}}}}]}]}}
";

pub(crate) fn the_next_agent_finishes_the_plan(variant: Variant) {
    let changes = |pods: &str| -> Vec<Change> {
        let case = format!("{pods}policies:\n{}adminPolicies:{ADMIN}", policy("db", DB));
        world(&case).changes().collect()
    };
    let mut engine = Engine::new(Locality::Node("n1".into()));
    let mut before = Program::default();
    before.apply(engine.apply(changes(PODS)));
    let delta = engine.apply(changes(&PODS.replace("app: api", "app: new")));
    let mut after = before.clone();
    after.apply(delta.clone());

    let lab = node::without_pods();
    let open = || node::open(&lab, "n1", Mode::Enforce, variant);
    let mut first = open();
    node::sync(&mut first, &before);
    let plan = first.plan(&after, &delta);
    let rules = plan.steps.iter().filter(|step| matches!(step, Step::Restore(_)));
    assert_eq!(
        rules.count(),
        4,
        "to the temporary sets and back, in both families:\
    {plan}"
    );
    for taken in 0..=plan.steps.len() {
        node::sync(&mut open(), &before);
        let some = IptablesPlan { steps: plan.steps[..taken].to_vec() };
        open().apply(&some).unwrap();
        node::sync(&mut open(), &after);
    }
}
