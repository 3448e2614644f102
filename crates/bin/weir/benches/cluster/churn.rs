//! Changes pods and measures the time until the kernel of a node follows.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    ops::Bound::{Excluded, Unbounded},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_cluster::Cluster;

use crate::{
    agent::Stage,
    kernel::{EventKind, Monitor},
    pace, policies,
    site::Agent,
    usage::{Usage, metric, percentiles},
    world::{self, ClusterSize, PodIndex, offset},
};

/// The number of changes per second.
pub(crate) const CHANGES_PER_SECOND: usize = 100;
/// The number of pods that change in turn: a multiple of the kinds of changes and of the threads.
const CHANGED_PODS: usize = 300;
/// The timeout of a change in the kernel.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The changes of a pod, in turn.
const STEPS: [[Step; 2]; 3] =
    [[Step::Unlabel, Step::Label], [Step::Move, Step::MoveBack], [Step::Delete, Step::Create]];

/// A change.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The pod loses its app label.
    Unlabel,
    /// The pod gets its app label back.
    Label,
    /// The pod gets another address.
    Move,
    /// The pod gets its own address back.
    MoveBack,
    Delete,
    /// The pod is created and runs. The time counts from the status update, which contains the
    /// address.
    Create,
}

/// A written change, and the event that the kernel must send.
struct Written {
    late: Duration,
    sent: Instant,
    answered: Instant,
    verb: EventKind,
    address: Ipv4Addr,
}

/// Changes pods and measures the latency of the agent.
pub(crate) fn run(
    stage: &Stage<'_>,
    agent: &Agent,
    size: ClusterSize,
    monitor: &Monitor,
    time: Duration,
) -> Value {
    let pods = policies::peers(size, CHANGED_PODS);
    assert_eq!(pods.len(), CHANGED_PODS, "too few pods are peers");
    stage.audit.since_last();
    let (before, counted) = (Usage::of_process(agent.child.id()), stage.metrics(agent));
    let start_time = Instant::now();
    let changes = CHANGES_PER_SECOND * usize::try_from(time.as_secs()).unwrap();
    let written = pace::write_all(changes, CHANGES_PER_SECOND as f64, |number, late| {
        // A pod always has the same thread and the same kind of change.
        let (pod, round) = (number % pods.len(), number / pods.len());
        STEPS[pod % STEPS.len()][round % 2].write(stage.cluster, size, pods[pod], late)
    });
    let took = start_time.elapsed();
    let events = await_all(monitor, &written);
    let (after, counts) = (Usage::of_process(agent.child.id()), stage.metrics(agent));
    let requests = stage.audit.since_last();
    let name = "weir_event_to_kernel_seconds";
    let percentile = |part| bucket(&counted, &counts, name, part);
    let milliseconds = |pick: fn(&Written, Instant) -> Duration| {
        let all = written.iter().zip(&events).map(|(written, events)| pick(written, *events));
        percentiles(all.collect())
    };
    json!({
        "changes": written.len(),
        "changes_per_second": written.len() as f64 / took.as_secs_f64(),
        "late_ms": percentiles(written.iter().map(|written| written.late).collect()),
        "request_ms": milliseconds(|written, _| written.answered - written.sent),
        // A change that takes effect before the answer arrives has no latency.
        "answer_to_kernel_ms": milliseconds(|written, events| events.saturating_duration_since(written.answered)),
        "request_to_kernel_ms": milliseconds(|written, events| events - written.sent),
        "event_to_kernel_ms_at_most": {"median": percentile(0.5), "of_100_99": percentile(0.99)},
        "cpu_percent": (after.cpu - before.cpu).as_secs_f64() / took.as_secs_f64() * 100.0,
        "resident_bytes": after.resident, "anonymous_bytes": after.anonymous,
        "file_bytes": after.file, "peak_bytes": after.peak, "requests": requests,
    })
}

impl Step {
    fn write(self, cluster: &Cluster, size: ClusterSize, pod: PodIndex, late: Duration) -> Written {
        let path = pod.path();
        let relabel = |app| json!({"metadata": {"labels": policies::labels(app)}});
        let own = size.address(pod);
        let other = offset(own, 1 << 22);
        if let Step::Create = self {
            let (collection, object) = policies::creation(size, pod);
            cluster.create(&collection, &object).unwrap();
        }
        let status = |address| cluster.patch(&format!("{path}/status"), &world::status(address));
        let sent = Instant::now();
        match self {
            Step::Unlabel => cluster.patch(&path, &relabel("none".into())).map(drop),
            Step::Label => cluster.patch(&path, &relabel(policies::app(pod.number))).map(drop),
            Step::Move => status(other).map(drop),
            Step::MoveBack | Step::Create => status(own).map(drop),
            Step::Delete => cluster.delete(&path),
        }
        .unwrap();
        let answered = Instant::now();
        let (verb, address) = match self {
            Step::Unlabel | Step::Delete => (EventKind::Delete, own),
            Step::Move => (EventKind::Add, other),
            Step::Label | Step::MoveBack | Step::Create => (EventKind::Add, own),
        };
        Written { late, sent, answered, verb, address }
    }
}

/// The time at which the kernel had each change.
fn await_all(monitor: &Monitor, written: &[Written]) -> Vec<Instant> {
    let start_time = Instant::now();
    let mut sent: BTreeMap<(EventKind, Ipv4Addr), BTreeSet<Instant>> = BTreeMap::new();
    for written in written {
        sent.entry((written.verb, written.address)).or_default().insert(written.sent);
    }
    loop {
        let mut events: BTreeMap<(EventKind, Ipv4Addr), BTreeSet<Instant>> = BTreeMap::new();
        for (time, verb, address) in monitor.events() {
            events.entry((verb, address)).or_default().insert(time);
        }
        let first = |written: &Written| {
            let key = (written.verb, written.address);
            let after = (Excluded(written.sent), Unbounded);
            let found = *events.get(&key)?.range(after).next()?;
            // An event after the next change of this kind belongs to that change.
            let next = sent[&key].range(after).next();
            next.is_none_or(|next| found < *next).then_some(found)
        };
        let found: Vec<Instant> = written.iter().filter_map(first).collect();
        let missing = written.len() - found.len();
        if missing == 0 {
            return found;
        }
        assert!(
            start_time.elapsed() < CHANGE_TIMEOUT,
            "the kernel has not followed {missing} of {} changes",
            written.len()
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// The bucket bound, in milliseconds, below which `part` of a histogram between two scrapes lies.
fn bucket(before: &str, after: &str, name: &str, part: f64) -> Option<f64> {
    let prefix = format!("{name}_bucket{{le=\"");
    let counts = |metrics: &str| -> Vec<(f64, f64)> {
        let buckets = metrics.lines().filter_map(|line| line.strip_prefix(&prefix));
        let count = |line: &str| {
            let (bound, count) = line.split_once("\"} ")?;
            Some((bound.parse().ok()?, count.parse().ok()?))
        };
        buckets.filter_map(count).collect()
    };
    let count = format!("{name}_count");
    let all = metric(after, &count, "") - metric(before, &count, "");
    assert!(all > 0.0, "no new values of {name}");
    let between = counts(before).into_iter().zip(counts(after));
    let mut bounds = between.map(|((bound, before), (_, after))| (bound, after - before));
    let (bound, _) = bounds.find(|(_, count)| *count >= part * all)?;
    bound.is_finite().then_some(bound * 1e3)
}
