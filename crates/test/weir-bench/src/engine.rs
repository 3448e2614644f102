//! `cargo xtask bench engine`: the cost of a full compile and of one change, by cluster size.

mod tables;

use std::{process::Command, sync::Arc};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_engine::{Engine, Locality};
use weir_model::{
    Change, Delta, Key, Object, Pod, Policy, PolicyId, PolicyKind, Requirement, Scope, Selector,
    SetDelta, Who,
};

pub(crate) use self::tables::write_docs;
use super::{
    bound,
    measure::{Spread, cpu, resident},
    workload::{ClusterShape, NODE, address, spec},
};

/// Rounds of a full compile; each is interleaved with the bound.
const COMPILE_ROUNDS: usize = 5;
/// Single changes of one kind per world.
const CHANGES_PER_KIND: usize = 400;
/// The figure with the number of pods that a new policy selects as peers.
const MEMBERS: &str = "members of its new set";

/// One measured figure.
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) world: String,
    pub(crate) unit: &'static str,
    pub(crate) spread: Spread,
    /// The figure as a multiple of the lower bound, which is measured in between.
    pub(crate) bound: Option<Spread>,
}

impl Figure {
    /// A figure without a lower bound.
    pub(crate) fn new(
        what: impl Into<String>,
        world: &str,
        unit: &'static str,
        values: Vec<f64>,
    ) -> Self {
        let spread = Spread::from_values(values);
        Figure { what: what.into(), world: world.to_owned(), unit, spread, bound: None }
    }

    pub(crate) fn json(&self) -> Value {
        json!({"what": self.what, "world": self.world, "unit": self.unit, "value": self.spread.json(), "times_bound": self.bound.as_ref().map(Spread::json)})
    }
}

fn engine() -> Engine {
    Engine::new(Locality::Node(NODE.into()))
}

/// Full compiles, compared with the lower bound.
pub(crate) fn compile(shape: ClusterShape) -> Result<Vec<Figure>> {
    let changes: Vec<Change> = shape.changes().collect();
    let (mut ours, mut ratio) = (Vec::new(), Vec::new());
    for _ in 0..COMPILE_ROUNDS {
        let (bare, visited) = cpu(|| bound::index_only(&changes, NODE));
        ensure!(visited > 0, "the bound found nothing to visit in {shape}");
        let mut engine = engine();
        let (full, delta) = cpu(|| engine.apply(&changes));
        ensure!(!delta.endpoints.is_empty(), "the engine found no endpoint in {shape}");
        ours.push(full.as_secs_f64() * 1e3);
        ratio.push(full.as_secs_f64() / bare.as_secs_f64());
    }
    let bound = Some(Spread::from_values(ratio));
    Ok(vec![Figure { bound, ..Figure::new("full compile", &describe(shape), "ms", ours) }])
}

/// Memory after a full compile, in a separate process that never holds the whole input.
pub(crate) fn memory(shape: ClusterShape) -> Result<Figure> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut values = Vec::new();
    for _ in 0..3 {
        let output = Command::new(&program)
            .args(["engine-child", &shape.to_string()])
            .output()
            .context("cannot start the measurement")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let bytes: f64 =
            text.trim().parse().with_context(|| format!("the measurement printed `{text}`"))?;
        values.push(bytes / 1e6);
    }
    Ok(Figure::new("memory after a full compile", &describe(shape), "MB", values))
}

/// The work of the process that `memory` starts. Returns the resident bytes.
pub(crate) fn memory_child(shape: ClusterShape) -> Result<u64> {
    let mut engine = engine();
    let mut endpoints = 0;
    let mut changes = shape.changes().peekable();
    while changes.peek().is_some() {
        endpoints += engine.apply(changes.by_ref().take(1000)).endpoints.len();
    }
    ensure!(endpoints > 0, "the engine found no endpoint in {shape}");
    let bytes = resident()?;
    drop(engine);
    Ok(bytes)
}

/// Single changes in a compiled cluster.
pub(crate) fn events(shape: ClusterShape, selectors: usize) -> Result<Vec<Figure>> {
    let mut engine = engine();
    engine.apply(shape.changes());
    let crowd: Vec<Change> = unrelated(shape, selectors).collect();
    engine.apply(&crowd);
    let world = match selectors {
        0 => describe(shape),
        more => format!("{}, {more} more selectors", describe(shape)),
    };
    let mut rows = Vec::new();
    // A remote pod that is a peer of local rules, and a local pod.
    let elsewhere = shape.pod(shape.peer_of_first());
    rows.extend(pod_events(&mut engine, elsewhere.clone(), "pod", &world)?);
    let here = Pod { node: Some(NODE.into()), ..elsewhere };
    rows.extend(pod_events(&mut engine, here, "local pod", &world)?);
    rows.extend(namespace_events(&mut engine, shape, &world));
    rows.extend(policy_events(&mut engine, shape, &world)?);
    Ok(rows)
}

fn pod_events(engine: &mut Engine, mut pod: Pod, who: &str, world: &str) -> Result<Vec<Figure>> {
    pod.id.name = "newcomer".into();
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut members = 0;
    for round in 0..CHANGES_PER_KIND {
        pod.addresses = vec![address(0xff_0000 - 1 - round)];
        let plain = pod.clone();
        let mut relabelled = pod.clone();
        relabelled.labels = [("app", "elsewhere"), ("tier", "backend")].into_iter().collect();
        let steps = [
            Change::Put(Object::Pod(plain)),
            Change::Put(Object::Pod(relabelled)),
            Change::Remove(Key::Pod(pod.id.clone())),
        ];
        for (step, times) in steps.iter().zip(&mut times) {
            let (time, delta) = cpu(|| engine.apply([step]));
            members += touched_members(&delta);
            times.push(time.as_secs_f64() * 1e6);
        }
    }
    ensure!(members >= CHANGES_PER_KIND, "the pod events did not reach any set in {world}");
    let row = |(what, times)| Figure::new(format!("{who} {what}"), world, "µs", times);
    Ok(["added", "relabelled", "removed"].into_iter().zip(times).map(row).collect())
}

fn touched_members(delta: &Delta) -> usize {
    let count = |set: &SetDelta| match set {
        SetDelta::Put(members) => members.len(),
        SetDelta::Change { added, removed } => added.len() + removed.len(),
        SetDelta::Gone { .. } => 0,
    };
    delta.sets.values().map(count).sum()
}

fn namespace_events(engine: &mut Engine, shape: ClusterShape, world: &str) -> Vec<Figure> {
    let (plain, mut moved) = (shape.namespace(0), shape.namespace(0));
    moved.labels = [("kubernetes.io/metadata.name", &*moved.name), ("company", "another")]
        .into_iter()
        .collect();
    let steps = [Change::Put(Object::Namespace(moved)), Change::Put(Object::Namespace(plain))];
    let mut times = Vec::new();
    for round in 0..CHANGES_PER_KIND {
        times.push(cpu(|| engine.apply([&steps[round % 2]])).0.as_secs_f64() * 1e6);
    }
    vec![Figure::new("namespace relabelled", world, "µs", times)]
}

fn policy_events(engine: &mut Engine, shape: ClusterShape, world: &str) -> Result<Vec<Figure>> {
    let namespace = shape.pod(0).id.namespace;
    let id = PolicyId { kind: PolicyKind::NetworkPolicy, namespace, name: "newcomer".into() };
    let policy = |round: usize, port: u16| {
        let spec = Arc::new(spec(Selector::everything(), Some(shape.new_peer(round)), port));
        Change::Put(Object::Policy(Policy { id: id.clone(), location: None, spec, staged: false }))
    };
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let (mut members, mut endpoints) = (0, 0);
    for round in 0..CHANGES_PER_KIND {
        let steps = [policy(round, 80), policy(round, 81), Change::Remove(Key::Policy(id.clone()))];
        for (step, times) in steps.iter().zip(&mut times) {
            let (time, delta) = cpu(|| engine.apply([step]));
            members += touched_members(&delta);
            endpoints += delta.endpoints.len();
            times.push(time.as_secs_f64() * 1e6);
        }
    }
    ensure!(
        endpoints >= 3 * CHANGES_PER_KIND,
        "the policy events did not reach any pod in {world}"
    );
    let per_policy = (members / CHANGES_PER_KIND) as f64;
    let names = ["policy added", "policy edited", "policy removed"];
    let row = |(what, times)| Figure::new(what, world, "µs", times);
    let rows = names.into_iter().zip(times).map(row);
    Ok(rows.chain([Figure::new(MEMBERS, world, "members", vec![per_policy])]).collect())
}

/// Policies in the namespace of the first local pod whose peers do not match the pods of the events.
fn unrelated(shape: ClusterShape, count: usize) -> impl Iterator<Item = Change> {
    let namespace = shape.pod(0).id.namespace;
    (0..count).map(move |at| {
        let app = Requirement::equals("tier", "backend");
        let peer =
            Selector::from_iter([app, Requirement::equals("unrelated", format!("value-{at}"))]);
        let who = Who::Pods { scope: Scope::Matching(Selector::everything()), pods: peer };
        let id = PolicyId {
            kind: PolicyKind::NetworkPolicy,
            namespace: namespace.clone(),
            name: format!("crowd-{at}").into(),
        };
        Change::Put(Object::Policy(Policy {
            id,
            location: None,
            spec: Arc::new(spec(Selector::everything(), Some(who), 80)),
            staged: false,
        }))
    })
}

fn describe(shape: ClusterShape) -> String {
    format!("{shape} ({} pods, {} policies)", shape.pods(), shape.policies())
}
