//! The writes of a change in the cluster, and the parts that it leaves untouched.

#![allow(clippy::panic, reason = "tests")]

use weir_datapath::{Mode, Planner as _};
use weir_engine::{Engine, Locality};
use weir_iptables::{ChainsAndSets, IptablesPlan, Planner, Step};
use weir_model::{Change, Key, PodId, Program};

/// `db` allows peers by selector, `web` and `api` some ports; `far` is on another node.
const CLUSTER: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: n1}, status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1}, status: {podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}, {ip: 'fd00::2'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, spec: {nodeName: n1}, status: {podIP: 10.0.0.3, podIPs: [{ip: 10.0.0.3}, {ip: 'fd00::3'}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: peer}}}]}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80, endPort: 89}]}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: api, namespace: shop}, spec: {podSelector: {matchLabels: {app: api}}, egress: [{ports: [{port: 80, endPort: 89}]}]}}
";

/// A peer of `db` on another node.
const PEER: &str = "{apiVersion: v1, kind: Pod, metadata: {name: far, namespace: shop, labels: {app: peer}}, spec: {nodeName: n2}, status: {podIP: 10.0.9.9}}";

struct Node {
    engine: Engine,
    program: Program,
    planner: Planner,
}

impl Node {
    fn new() -> Node {
        let engine = Engine::new(Locality::Node("n1".into()));
        let planner = Planner::new(Mode::Enforce);
        let mut node = Node { engine, program: Program::default(), planner };
        node.plan(&changes(CLUSTER));
        node
    }

    fn plan(&mut self, changes: &[Change]) -> IptablesPlan {
        let delta = self.engine.apply(changes);
        self.program.apply(delta.clone());
        self.planner.plan(&self.program, &delta)
    }
}

fn changes(text: &str) -> Vec<Change> {
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("test".into(), text.as_bytes());
    reader.finish().objects.into_iter().map(Change::Put).collect()
}

#[test]
fn a_member_that_joins_or_leaves_changes_one_set() {
    let mut node = Node::new();
    let comes = node.plan(&changes(PEER));
    let [Step::Add(into, _, entries)] = &comes.steps[..] else { panic!("{comes}") };
    assert_eq!(entries.len(), 1, "{comes}");
    let goes = node.plan(&[Change::Remove(Key::Pod(PodId::new("shop", "far")))]);
    let [Step::Remove(from, _, entries)] = &goes.steps[..] else { panic!("{goes}") };
    assert_eq!((into, entries.len()), (from, 1), "{goes}");
}

/// Whether a chain belongs to a pod or a policy.
fn is_about(desired: &ChainsAndSets, chain: &str, word: &str) -> bool {
    let mut ours = desired.chains.iter().filter(|((_, name), _)| &**name == chain);
    ours.all(|(_, rules)| rules.iter().any(|rule| rule.comment.contains(word)))
}

#[test]
fn a_policy_change_touches_only_its_chains() {
    let mut node = Node::new();
    let before = node.planner.desired().clone();
    let policy = CLUSTER
        .split("---")
        .find(|text| text.contains("name: web, namespace: shop}, spec: {podSelector"))
        .expect("the policy");
    let plan = node.plan(&changes(&policy.replace("endPort: 89", "endPort: 99")));
    let after = node.planner.desired();
    assert_eq!(after.sets, before.sets, "the policy uses no set");
    assert_eq!(plan.steps.len(), 2, "rules of two families:\n{plan}");
    for step in &plan.steps {
        let Step::Restore(script) = step else { panic!("{plan}") };
        assert!(script.jumps.is_empty(), "{plan}");
        assert_eq!((script.chains.len(), script.gone.len()), (3, 1), "with its signpost:\n{plan}");
        assert!(script.chains.keys().all(|name| is_about(after, name, "shop/web")), "{plan}");
        assert!(script.gone.iter().all(|name| is_about(&before, name, "shop/web")), "{plan}");
    }
}

#[test]
fn a_policy_that_selects_no_local_pod_touches_nothing() {
    let mut node = Node::new();
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: other, namespace: shop}, spec: {podSelector: {matchLabels: {app: elsewhere}}}}";
    let plan = node.plan(&changes(policy));
    assert_eq!(plan.steps, [], "{plan}");
}
