//! The cost of computing the objects and files that a pod changes.

use std::{collections::BTreeMap, sync::Arc};

use weir_aci::{AciSettings, Files, GroupNames, Hpp};
use weir_model::{
    Change, Labels, Namespace, Object, Pod, PodId, Policy, PolicyId, PolicyKind, Requirement,
    Scope, Selector, Who,
};

use super::super::{
    engine::Figure,
    measure::cpu,
    workload::{NODE, address, pod, spec},
};

/// Pods in a namespace.
const PODS_PER_NAMESPACE: usize = 50;
/// Pods for each policy.
const PODS_PER_POLICY: usize = 20;
/// Pods that change between two rounds of writing, at 100 changes a second.
const PODS_PER_BATCH: usize = 20;
/// The number of measurements for each figure.
const MEASUREMENTS: usize = 200;

/// The size of the cluster.
#[derive(Clone, Copy, Debug)]
struct HppClusterSize {
    pods: usize,
}

/// All figures.
pub(super) fn rows(pods: usize) -> Vec<Figure> {
    let shape = HppClusterSize { pods };
    let (namespaces, policies) = (shape.namespaces(), shape.policies());
    let world = format!("{pods} pods, {namespaces} namespaces, {policies} policies");
    let settings = AciSettings { prefix: "demo".into() };
    let changes: Vec<Change> = shape.changes().collect();
    let mut hpp = Hpp::new(settings.clone());
    let (full, all) = cpu(|| hpp.apply(&changes));
    let mut files = Files::new(&settings, "demo", NODE, GroupNames::Hash);
    (0..pods).filter(|at| shape.is_here(*at)).for_each(|at| files.put_pod(&shape.pod(at, 0)));
    hpp.objects().values().for_each(|object| files.put(object.clone()));
    let (first, on_disk) = cpu(|| files.drain_dirty().collect::<BTreeMap<_, _>>());
    let (mut one, mut objects, mut many, mut render, mut touched) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=MEASUREMENTS {
        let at = (round * 7_919) % pods;
        let change = [Change::Put(Object::Pod(shape.pod(at, round)))];
        let (time, changed) = cpu(|| hpp.apply(&change));
        one.push(time.as_secs_f64() * 1e6);
        objects.push(changed.len() as f64);
        changed.into_values().flatten().for_each(|object| files.put(object));
        let (time, taken) = cpu(|| files.drain_dirty().count());
        render.push(time.as_secs_f64() * 1e6);
        touched.push(taken as f64);
        let several: Vec<Change> = (0..PODS_PER_BATCH)
            .map(|n| Change::Put(Object::Pod(shape.pod((at + n * 4_001) % pods, round))))
            .collect();
        let (time, changed) = cpu(|| hpp.apply(&several));
        many.push(time.as_secs_f64() * 1e6);
        changed.into_values().flatten().for_each(|object| files.put(object));
        files.drain_dirty().for_each(drop);
    }
    let row = |what: &str, unit, values| Figure::new(what, &world, unit, values);
    vec![
        row("all objects", "ms", vec![full.as_secs_f64() * 1e3]),
        row("all objects, how many", "objects", vec![all.len() as f64]),
        row("all files of a node", "ms", vec![first.as_secs_f64() * 1e3]),
        row(
            "all files of a node, how many",
            "files",
            vec![on_disk.values().flatten().count() as f64],
        ),
        row("a pod changes its address", "µs", one),
        row("a pod changes its address: writes to the API", "objects", objects),
        row("a pod changes its address: on a node", "µs", render),
        row("a pod changes its address: on a node", "files", touched),
        row(&format!("{PODS_PER_BATCH} pods change their addresses"), "µs", many),
    ]
}

impl HppClusterSize {
    fn namespaces(self) -> usize {
        self.pods / PODS_PER_NAMESPACE
    }

    fn policies(self) -> usize {
        self.pods / PODS_PER_POLICY
    }

    fn changes(self) -> impl Iterator<Item = Change> {
        let namespaces = (0..self.namespaces()).map(|at| Object::Namespace(namespace(at)));
        let pods = (0..self.pods).map(move |at| Object::Pod(self.pod(at, 0)));
        let policies = (0..self.policies()).map(move |at| Object::Policy(self.policy(at)));
        namespaces.chain(pods).chain(policies).map(Change::Put)
    }

    /// The measured node has a hundred pods.
    fn is_here(self, at: usize) -> bool {
        at.is_multiple_of((self.pods / 100).max(1))
    }

    /// A pod by number, with a new address in each round.
    fn pod(self, at: usize, round: usize) -> Pod {
        let labels: Labels =
            [("app", format!("app-{}", at % 5)), ("tier", "backend".into())].into_iter().collect();
        let node = if self.is_here(at) { NODE.into() } else { format!("node-{}", at % 1000) };
        let id = PodId::new(format!("namespace-{}", at / PODS_PER_NAMESPACE), format!("pod-{at}"));
        pod(id, labels, address(at + round * self.pods), Some(node.into()))
    }

    /// Every second policy has peers in the namespaces of a team, the others in their own namespace.
    fn policy(self, at: usize) -> Policy {
        let app =
            |n: usize| Selector::from_iter([Requirement::equals("app", format!("app-{}", n % 5))]);
        let namespace = at % self.namespaces();
        let scope = if at.is_multiple_of(2) {
            Scope::Own
        } else {
            let team = Requirement::equals("team", format!("t{}", namespace / 10));
            Scope::Matching(Selector::from_iter([team]))
        };
        let peer = Who::Pods { scope, pods: app(at + 1) };
        let id = PolicyId {
            kind: PolicyKind::NetworkPolicy,
            namespace: format!("namespace-{namespace}").into(),
            name: format!("policy-{at}").into(),
        };
        Policy {
            id,
            location: None,
            spec: Arc::new(spec(app(at), Some(peer), 8080)),
            staged: false,
        }
    }
}

fn namespace(at: usize) -> Namespace {
    let labels = [("team", format!("t{}", at / 10))].into_iter().collect();
    Namespace { name: format!("namespace-{at}").into(), labels, location: None }
}
