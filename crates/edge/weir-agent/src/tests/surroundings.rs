//! Rules that the datapath replaces, and blind spots.

use std::{
    io,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use weir_datapath::{ApplyError, ApplyErrorKind};

use super::*;
use crate::{BlindSpot, Effect, Inspection, Leftover, LeftoverKind, Surroundings};

/// A node with rules of another datapath, and with what a test adds.
#[derive(Debug, Default)]
struct FakeNode {
    spots: Mutex<BTreeSet<BlindSpot>>,
    is_clean: Mutex<bool>,
    removals: AtomicUsize,
    /// The removals that fail.
    failures: usize,
}

impl Surroundings for FakeNode {
    fn inspect(&self, _: &Program) -> io::Result<Inspection> {
        let old = Leftover {
            owner: "weir's previous datapath",
            rules: "old rules".into(),
            hint: "wait",
            kind: LeftoverKind::Superseded,
        };
        let leftovers = if *self.is_clean.lock().unwrap() { Vec::new() } else { vec![old] };
        Ok(Inspection { leftovers, blind_spots: self.spots.lock().unwrap().clone() })
    }

    fn remove_superseded(&self) -> Result<(), ApplyError> {
        if self.removals.fetch_add(1, Ordering::Relaxed) < self.failures {
            let (kind, what) = (ApplyErrorKind::Unavailable, "it is busy".to_owned());
            return Err(ApplyError { kind, what, source: io::Error::other("busy").into() });
        }
        *self.is_clean.lock().unwrap() = true;
        Ok(())
    }
}

impl FakeNode {
    fn removals(&self) -> usize {
        self.removals.load(Ordering::Relaxed)
    }
}

fn bench(node: &Arc<FakeNode>) -> Bench {
    let node: Arc<dyn Surroundings> = node.clone();
    Bench::with(|options| AgentOptions { surroundings: Some(node), ..options })
}

/// While pods change all the time, packets of a new change are always inside the rules.
#[test]
fn old_rules_go_although_packets_are_inside_the_rules() {
    let node = Arc::new(FakeNode::default());
    let mut bench = bench(&node);
    bench.memory.machine(|machine| machine.has_packets = true);
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", &policy("api"));
    bench.turn();
    bench.turn();
    assert_eq!(node.removals(), 1);
}

#[test]
fn old_rules_go_when_all_new_ones_are_in_force() {
    let node = Arc::new(FakeNode { failures: 1, ..FakeNode::default() });
    let mut bench = bench(&node);
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", "kind: [");
    bench.turn();
    assert_eq!(node.removals(), 0, "the source is not in sync");
    assert!(bench.reasons().iter().any(|reason| reason.contains("old rules")));
    bench.write("policy.yaml", &policy("api"));
    bench.memory.machine(|machine| machine.unavailable = true);
    bench.turn();
    assert_eq!(node.removals(), 0, "the new rules are not in force");
    bench.memory.machine(|machine| {
        machine.unavailable = false;
        machine.rejects = [PodId::new("shop", "web")].into();
    });
    bench.turn();
    assert_eq!(node.removals(), 0, "the new rules of a pod are not in force");
    bench.memory.machine(|machine| machine.rejects.clear());
    bench.turn();
    assert_eq!((node.removals(), bench.passes()), (1, vec![2]), "the removal fails");
    assert!(bench.reasons().iter().any(|reason| reason.contains("old rules")));
    bench.turn();
    assert_eq!(node.removals(), 2);
    assert_eq!(bench.reasons(), [""; 0]);
    bench.turn();
    assert_eq!(node.removals(), 2, "once");
}

#[test]
fn a_blind_spot_counts_when_it_lasts() {
    let node = Arc::new(FakeNode::default());
    let mut bench = bench(&node);
    bench.write("pods.yaml", PODS);
    bench.turn();
    let spot = |effect, pod: &str| BlindSpot {
        effect,
        cause: "no rules apply".into(),
        hint: "move them",
        pod: pod.into(),
    };
    let spots = [spot(Effect::NotReady, "shop/web"), spot(Effect::Warning, "shop/job")];
    *node.spots.lock().unwrap() = spots.into();
    bench.turn();
    assert_eq!(bench.reasons(), [""; 0], "it may be a pod that starts");
    bench.turn();
    assert_eq!(bench.reasons(), ["no rules apply: shop/web; move them"]);
    let warnings = bench.report.status().warnings.clone();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    node.spots.lock().unwrap().clear();
    bench.turn();
    assert_eq!(bench.reasons(), [""; 0]);
}
