//! Pods that change, and how long the kernel of a node takes to follow.

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
    agent::{Stage, Taken, metric},
    kernel::{Monitor, Verb},
    site::Agent,
    world::{self, Place, Shape},
};

/// Changes in a second.
pub(crate) const RATE: usize = 100;
/// Those who write, so that one slow answer does not delay what is due after it. It divides the
/// number of pods.
const WRITERS: usize = 10;
/// The pods that change, one after the other. A multiple of the kinds of changes and of the
/// writers.
const PODS: usize = 300;
/// How long the kernel may take to follow.
const PATIENCE: Duration = Duration::from_secs(60);

/// What happens to a pod, by turns.
const STEPS: [[Step; 2]; 3] =
    [[Step::Unlabel, Step::Label], [Step::Move, Step::MoveBack], [Step::Delete, Step::Create]];

/// One change.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It is of no app.
    Unlabel,
    /// It is of its app again.
    Label,
    /// It has another address.
    Move,
    /// It has its own address again.
    MoveBack,
    Delete,
    /// It is created and runs; the time is that of its status, which has the address.
    Create,
}

/// A change that was written, and what the kernel has to say about it.
struct Written {
    late: Duration,
    sent: Instant,
    answered: Instant,
    verb: Verb,
    address: Ipv4Addr,
}

/// Has pods change and tells how the agent followed.
pub(crate) fn run(
    stage: &Stage<'_>,
    agent: &Agent,
    shape: Shape,
    monitor: &Monitor,
    time: Duration,
) -> Value {
    let pods = shape.peers(PODS);
    assert_eq!(pods.len(), PODS, "too few pods are peers");
    stage.audit.since_last();
    let (before, counted) = (Taken::by(agent), stage.metrics(agent));
    let begun = Instant::now();
    let written = write(stage.cluster, shape, &pods, begun, time);
    let took = begun.elapsed();
    let heard = await_all(monitor, &written);
    let (after, counts) = (Taken::by(agent), stage.metrics(agent));
    let requests = stage.audit.since_last();
    let name = "weir_event_to_kernel_seconds";
    let percentile = |part| bucket(&counted, &counts, name, part);
    let milliseconds = |pick: fn(&Written, Instant) -> Duration| {
        let all = written.iter().zip(&heard).map(|(written, heard)| pick(written, *heard));
        percentiles(all.collect())
    };
    json!({
        "changes": written.len(),
        "changes_per_second": written.len() as f64 / took.as_secs_f64(),
        "late_ms": percentiles(written.iter().map(|written| written.late).collect()),
        "request_ms": milliseconds(|written, _| written.answered - written.sent),
        // What is in force before the answer has come is in force at once.
        "answer_to_kernel_ms": milliseconds(|written, heard| heard.saturating_duration_since(written.answered)),
        "request_to_kernel_ms": milliseconds(|written, heard| heard - written.sent),
        "event_to_kernel_ms_at_most": {"median": percentile(0.5), "of_100_99": percentile(0.99)},
        "cpu_percent": (after.cpu - before.cpu).as_secs_f64() / took.as_secs_f64() * 100.0,
        "resident_bytes": after.resident, "peak_bytes": after.peak, "requests": requests,
    })
}

/// Writes changes, each when it is due.
fn write(
    cluster: &Cluster,
    shape: Shape,
    pods: &[Place],
    begun: Instant,
    time: Duration,
) -> Vec<Written> {
    let changes = RATE * usize::try_from(time.as_secs()).unwrap();
    let writer = |writer: usize| {
        let ours = (0..changes).skip(writer).step_by(WRITERS);
        let write = |number: usize| {
            let due = begun + Duration::from_secs(1) * u32::try_from(number).unwrap() / RATE as u32;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let late = due.elapsed();
            // A pod always has the same writer and the same kind of change.
            let (pod, round) = (number % pods.len(), number / pods.len());
            let step = STEPS[pod % STEPS.len()][round % 2];
            step.write(cluster, shape, pods[pod], late)
        };
        ours.map(write).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let writers: Vec<_> =
            (0..WRITERS).map(|number| scope.spawn(move || writer(number))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    })
}

impl Step {
    fn write(self, cluster: &Cluster, shape: Shape, pod: Place, late: Duration) -> Written {
        let path = pod.path();
        let relabel = |app| json!({"metadata": {"labels": world::labels(app)}});
        let (own, other) = (pod.address(), pod.other_address());
        if let Step::Create = self {
            let (collection, object) = shape.creation(pod);
            cluster.create(&collection, &object).unwrap();
        }
        let status = |address| cluster.patch(&format!("{path}/status"), &world::status(address));
        let sent = Instant::now();
        match self {
            Step::Unlabel => cluster.patch(&path, &relabel("none".into())).map(drop),
            Step::Label => cluster.patch(&path, &relabel(pod.app())).map(drop),
            Step::Move => status(other).map(drop),
            Step::MoveBack | Step::Create => status(own).map(drop),
            Step::Delete => cluster.delete(&path),
        }
        .unwrap();
        let answered = Instant::now();
        let (verb, address) = match self {
            Step::Unlabel | Step::Delete => (Verb::Delete, own),
            Step::Move => (Verb::Add, other),
            Step::Label | Step::MoveBack | Step::Create => (Verb::Add, own),
        };
        Written { late, sent, answered, verb, address }
    }
}

/// When the kernel had each of the changes.
fn await_all(monitor: &Monitor, written: &[Written]) -> Vec<Instant> {
    let begun = Instant::now();
    let mut sent: BTreeMap<(Verb, Ipv4Addr), BTreeSet<Instant>> = BTreeMap::new();
    for written in written {
        sent.entry((written.verb, written.address)).or_default().insert(written.sent);
    }
    loop {
        let mut heard: BTreeMap<(Verb, Ipv4Addr), BTreeSet<Instant>> = BTreeMap::new();
        for (time, verb, address) in monitor.heard() {
            heard.entry((verb, address)).or_default().insert(time);
        }
        let first = |written: &Written| {
            let key = (written.verb, written.address);
            let after = (Excluded(written.sent), Unbounded);
            let found = *heard.get(&key)?.range(after).next()?;
            // What comes after the next change of this kind belongs to that one.
            let next = sent[&key].range(after).next();
            next.is_none_or(|next| found < *next).then_some(found)
        };
        let found: Vec<Instant> = written.iter().filter_map(first).collect();
        let missing = written.len() - found.len();
        if missing == 0 {
            return found;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "the kernel has not followed {missing} of {} changes",
            written.len()
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// The median, 99 of 100 and the highest, in milliseconds.
fn percentiles(mut times: Vec<Duration>) -> Value {
    times.sort();
    let at = |part: f64| {
        let index = (times.len() as f64 * part) as usize;
        times[index.min(times.len() - 1)].as_secs_f64() * 1e3
    };
    json!({"median": at(0.5), "of_100_99": at(0.99), "highest": at(1.0)})
}

/// The bound, in milliseconds, that this part of what a histogram has counted in between does not
/// exceed.
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
    let all = metric(after, &count) - metric(before, &count);
    let between = counts(before).into_iter().zip(counts(after));
    let mut bounds = between.map(|((bound, before), (_, after))| (bound, after - before));
    let (bound, _) = bounds.find(|(_, count)| *count >= part * all)?;
    bound.is_finite().then_some(bound * 1e3)
}
