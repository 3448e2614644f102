//! Connections that are established when policies change.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use weir_datapath::{DropCause, Mode};
use weir_engine::{Locality, compile};
use weir_lab::{Conversation, LabError};
use weir_model::{Flow, Protocol, Verdict};

use crate::{
    Backend,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, flow, policy, world},
    node,
};

pub(crate) fn on_one_node<B: Backend>(backend: B) {
    is_cut(backend, &Scene { client: "2", server: "3", beside: "1", policy: DB });
}

pub(crate) fn from_another_node<B: Backend>(backend: B) {
    is_cut(backend, &Scene { client: "4", server: "3", beside: "1", policy: DB });
}

pub(crate) fn to_another_node<B: Backend>(backend: B) {
    is_cut(backend, &Scene { client: "2", server: "4", beside: "1", policy: WEB });
}

/// `db` allows ingress from `api` only, and all egress.
const DB: &str = "podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";

/// `web` allows no egress, and all ingress.
const WEB: &str = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]";

/// Pods by the last digit of their addresses: the connections before the policy, and those that it still
/// allows.
struct Scene {
    client: &'static str,
    server: &'static str,
    beside: &'static str,
    policy: &'static str,
}

/// All kinds of connections between two pods.
fn flows(from: &str, to: &str) -> Vec<Flow> {
    let ends = ["10.0.0.", "fd00::"].map(|net| (format!("{net}{from}"), format!("{net}{to}")));
    let kinds = ends
        .each_ref()
        .map(|(from, to)| Protocol::ALL.map(|protocol| flow(from, to, protocol, 80)));
    kinds.concat()
}

fn converse<B: Backend>(cluster: &TrialCluster<B>, from: &str, to: &str) -> Vec<Conversation> {
    let open = |flow| cluster.lab.converse(flow, ARRIVAL_TIMEOUT).unwrap();
    flows(from, to).into_iter().map(open).collect()
}

/// Checks that all conversations get the same verdict when the near end sends.
#[track_caller]
fn exchange(all: &mut [Conversation], expected: Verdict) {
    each(all, expected, Conversation::exchange);
}

/// The same when the far end sends.
#[track_caller]
fn call_back(all: &mut [Conversation], expected: Verdict) {
    each(all, expected, Conversation::call_back);
}

#[track_caller]
fn each(
    all: &mut [Conversation],
    expected: Verdict,
    speak: fn(&mut Conversation, Duration) -> Result<Verdict, LabError>,
) {
    let patience = if expected == Verdict::Allow { ARRIVAL_TIMEOUT } else { DROP_TIMEOUT };
    thread::scope(|scope| {
        let started: Vec<_> =
            all.iter_mut().map(|one| scope.spawn(move || speak(one, patience))).collect();
        for one in started {
            assert_eq!(one.join().unwrap().unwrap(), expected);
        }
    });
}

fn is_cut<B: Backend>(backend: B, scene: &Scene) {
    let mut cluster = TrialCluster::with(backend, &[]);
    let mut forbidden = converse(&cluster, scene.client, scene.server);
    let mut allowed = converse(&cluster, scene.beside, scene.server);
    thread::scope(|scope| {
        let steps = scope.spawn(|| {
            cluster.put(&policy("tight", scene.policy));
            exchange(&mut forbidden, Verdict::Allow);
            cluster.assert_cut([forbidden.len(), 0], "only the denied connections are cut");
            // The far end must not get through as if it had opened the connection, neither before nor after
            // the near end sends.
            call_back(&mut forbidden, Verdict::Deny);
            exchange(&mut forbidden, Verdict::Deny);
            call_back(&mut forbidden, Verdict::Deny);
            exchange(&mut forbidden, Verdict::Deny);
            cluster.assert_cut([0, 0], "no cut connection was recorded again");
        });
        while !steps.is_finished() {
            exchange(&mut allowed, Verdict::Allow);
            call_back(&mut allowed, Verdict::Allow);
        }
    });
    let denied: Vec<_> =
        flows(scene.client, scene.server).into_iter().map(|flow| (flow, Verdict::Deny)).collect();
    cluster.probe(&denied);
    cluster.remove("tight");
    let mut revived = without_sctp(forbidden, scene);
    exchange(&mut revived, Verdict::Allow);
    call_back(&mut revived, Verdict::Allow);
    // Their ports are free again.
    drop(revived);
    exchange(&mut converse(&cluster, scene.client, scene.server), Verdict::Allow);
}

/// The conversations without those of SCTP: conntrack does not pick up an association, so its ends have
/// to open a new one.
fn without_sctp(all: Vec<Conversation>, scene: &Scene) -> Vec<Conversation> {
    let flows = flows(scene.client, scene.server);
    let others = all.into_iter().zip(flows).filter(|(_, flow)| flow.protocol != Protocol::Sctp);
    others.map(|(one, _)| one).collect()
}

pub(crate) fn stays_cut<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[]);
    let mut forbidden = converse(&cluster, "2", "3");
    cluster.put(&policy("tight", DB));
    cluster.assert_cut([forbidden.len(), 0], "connections that are cut");
    let world = world(&format!("{PODS}policies:\n{}", policy("tight", DB)));
    let program = compile(&world, Locality::Node("n1".into()));
    // The second restart has something to repair.
    for disturbance in [None, backend.disturbances().first()] {
        disturbance.iter().for_each(|command| _ = node::does(&cluster.lab, command));
        node::sync(&mut node::open(backend, &cluster.lab, "n1", Mode::Enforce), &program);
        call_back(&mut forbidden, Verdict::Deny);
        exchange(&mut forbidden, Verdict::Deny);
    }
}

/// An answer on a cut connection is reported with its cause.
pub(crate) fn answers_are_reported<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[]);
    let mut forbidden = converse(&cluster, "2", "3");
    let mut log = cluster.lab.on_node("n1", || backend.reports()).unwrap();
    cluster.put(&policy("tight", DB));
    cluster.assert_cut([forbidden.len(), 0], "connections that are cut");
    call_back(&mut forbidden, Verdict::Deny);
    let all: BTreeSet<Flow> = flows("2", "3").into_iter().collect();
    let (mut reported, end) = (BTreeSet::new(), Instant::now() + ARRIVAL_TIMEOUT);
    while reported != all && Instant::now() < end {
        log.receive(DROP_TIMEOUT, &mut |dropped| {
            assert_eq!(dropped.cause, DropCause::Answer);
            reported.extend(dropped.flow());
        });
    }
    assert_eq!(reported, all);
}
