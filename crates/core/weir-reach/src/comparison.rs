//! The connections that a change opens and closes.

use std::collections::{BTreeMap, HashMap};

use weir_model::{IpFamily, PodId, PortRange, Verdict};

use crate::{
    ReachState,
    ends::{Ends, ExampleEnd, MergedConnections},
    evaluator::{Evaluator, OpenPorts},
    name::PodNames,
    pairs,
    partition::Partition,
    port::union,
    port_set::PortSetId,
    small_hash::IdMap,
};

/// Connections that a change opens or closes.
#[derive(Clone, Debug)]
pub struct ConnectionChange {
    /// The new verdict.
    pub now: Verdict,
    /// The sources.
    pub from: Vec<String>,
    /// The destinations.
    pub to: Vec<String>,
    /// The ports at the destinations.
    pub ports: Vec<PortRange>,
    /// The only family that changes in this way; `None` if both do.
    pub family: Option<IpFamily>,
    /// The source and the destination of one of them.
    pub example: Option<[ExampleEnd; 2]>,
}

/// Two states and everything that their rules distinguish.
pub struct Comparison<'a> {
    old: &'a ReachState,
    new: &'a ReachState,
    partition: Partition,
}

/// A way to change: the new verdict, the family, the ports.
type FlowChange = (Verdict, Option<IpFamily>, Vec<PortRange>);

impl<'a> Comparison<'a> {
    /// Computes what the rules of the two states distinguish.
    pub fn new(old: &'a ReachState, new: &'a ReachState) -> Self {
        Comparison { old, new, partition: Partition::new(&[old, new]) }
    }

    /// Everything that the change opens and closes for the pods that both states have, openings
    /// first. Reports the progress as `(done, all)`.
    pub fn changes(
        &self,
        owners: &BTreeMap<PodId, String>,
        progress: impl FnMut(usize, usize),
    ) -> Vec<ConnectionChange> {
        let Partition { groups, outside, slices } = &self.partition;
        let mut evaluator = Evaluator::new(&[self.old, self.new], slices);
        let pods = groups.iter().map(|group| group.pods.iter().collect()).collect();
        let ends = Ends { groups: pods, outside };
        let differs = |at: usize| {
            if at < groups.len() { groups[at].differs } else { outside[at - groups.len()].differs }
        };
        let mut kinds = FlowChanges::default();
        let mut merged = MergedConnections::default();
        let is_wanted = |from: usize, to: usize| differs(from) || differs(to);
        pairs::visit(&mut evaluator, &ends, is_wanted, progress, |evaluator, pair| {
            for kind in kinds.between(evaluator, pair.open) {
                merged.add(*kind, pair.from.clone(), pair.to.clone());
            }
        });
        let names = PodNames::new(groups.iter().flat_map(|group| &group.pods), owners);
        let names = ends.names(&names);
        let mut changes: Vec<ConnectionChange> = merged
            .finish()
            .map(|(kind, from, to)| {
                let (now, family, ports) = kinds.all[kind].clone();
                let example = ends.example(&from, &to);
                let (from, to) = (names.of(&from), names.of(&to));
                ConnectionChange { now, from, to, ports, family, example }
            })
            .collect();
        changes.sort_by(|one, two| {
            (one.now, &one.to, &one.from, &one.ports, one.family)
                .cmp(&(two.now, &two.to, &two.from, &two.ports, two.family))
        });
        changes
    }
}

/// The ways to change, each computed once.
#[derive(Default)]
struct FlowChanges {
    all: Vec<FlowChange>,
    numbers: HashMap<FlowChange, usize>,
    cache: IdMap<OpenPorts, Vec<usize>>,
}

impl FlowChanges {
    /// The numbers of the changes between the open ports before and after, per family.
    fn between(&mut self, evaluator: &Evaluator<'_>, open: OpenPorts) -> &[usize] {
        let is_unchanged = |[old, new]: &[PortSetId; 2]| old == new;
        if open.iter().flatten().all(is_unchanged) {
            return &[];
        }
        if !self.cache.contains_key(&open) {
            let kinds = self.compute(evaluator, &open);
            self.cache.insert(open, kinds);
        }
        &self.cache[&open]
    }

    fn compute(&mut self, evaluator: &Evaluator<'_>, open: &OpenPorts) -> Vec<usize> {
        let changed: Vec<(IpFamily, [Vec<PortRange>; 2])> = IpFamily::BOTH
            .into_iter()
            .zip(open)
            .filter_map(|(family, states)| {
                let [old, new] = (*states)?;
                let opened = evaluator.difference(new, old);
                let closed = evaluator.difference(old, new);
                Some((family, [union(opened), union(closed)]))
            })
            .collect();
        let alike = changed.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let distinct = if alike { &changed[..changed.len().min(1)] } else { &changed[..] };
        let mut kinds = Vec::new();
        for (family, [opened, closed]) in distinct {
            let family = (!alike).then_some(*family);
            for (now, ports) in [(Verdict::Allow, opened), (Verdict::Deny, closed)] {
                if ports.is_empty() {
                    continue;
                }
                let kind = (now, family, ports.clone());
                let next = self.all.len();
                let number = *self.numbers.entry(kind.clone()).or_insert(next);
                if number == next {
                    self.all.push(kind);
                }
                kinds.push(number);
            }
        }
        kinds
    }
}
