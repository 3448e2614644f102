//! The connections that a change opens and closes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_model::{IpFamily, PodId, PortRange, Verdict, World};

use crate::{
    ReachState,
    evaluator::{EndClass, Evaluator},
    name::{PodNames, networks},
    outside::OutsideClass,
    partition::{Partition, ReachEnd},
    port::union,
    port_set::PortSetId,
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
}

/// Two states and everything that their rules distinguish.
pub struct Comparison<'a> {
    old: &'a ReachState,
    new: &'a ReachState,
    partition: Partition,
}

/// The index of a pod group, or of an outside class after all groups.
type EndIndex = u32;

/// A way to change: the new verdict, the family, the ports.
type FlowChange = (Verdict, Option<IpFamily>, Vec<PortRange>);

impl<'a> Comparison<'a> {
    /// Computes what the rules of the two states distinguish.
    pub fn new(old: &'a ReachState, new: &'a ReachState) -> Self {
        Comparison { old, new, partition: Partition::new(&[old, new]) }
    }

    /// Everything that the change opens and closes, openings first. Reports the progress as `(done,
    /// all)`.
    pub fn changes(
        &self,
        owners: &BTreeMap<PodId, String>,
        mut progress: impl FnMut(usize, usize),
    ) -> Vec<ConnectionChange> {
        let Partition { groups, outside, slices } = &self.partition;
        let mut evaluator = Evaluator::new(&[self.old, self.new], slices);
        let classes = self.classes(&mut evaluator);
        let differs = |at: usize| {
            if at < groups.len() { groups[at].differs } else { outside[at - groups.len()].differs }
        };
        // First group the sources that change alike towards one destination, then the destinations
        // that the same sources change towards.
        let mut kinds = FlowChanges::default();
        let mut sources: BTreeMap<(usize, EndIndex), Vec<EndIndex>> = BTreeMap::new();
        for (from, source) in classes.iter().enumerate() {
            progress(from, classes.len());
            for (to, target) in classes.iter().enumerate() {
                let has_pod = from < groups.len() || to < groups.len();
                if !has_pod || !(differs(from) || differs(to)) {
                    continue;
                }
                let Some(open) = evaluator.open(source, target) else { continue };
                for kind in kinds.between(&evaluator, open) {
                    sources.entry((*kind, to as EndIndex)).or_default().push(from as EndIndex);
                }
            }
        }
        progress(classes.len(), classes.len());
        let mut merged: BTreeMap<(usize, Vec<EndIndex>), Vec<EndIndex>> = BTreeMap::new();
        for ((kind, to), from) in sources {
            merged.entry((kind, from)).or_default().push(to);
        }
        let names = PodNames::new(groups.iter().flat_map(|group| &group.pods), owners);
        let mut changes: Vec<ConnectionChange> = merged
            .into_iter()
            .map(|((kind, from), to)| {
                let (now, family, ports) = kinds.all[kind].clone();
                let (from, to) = (self.names(&names, &from), self.names(&names, &to));
                ConnectionChange { now, from, to, ports, family }
            })
            .collect();
        changes.sort_by(|one, two| {
            (one.now, &one.to, &one.from, &one.ports, one.family)
                .cmp(&(two.now, &two.to, &two.from, &two.ports, two.family))
        });
        changes
    }

    /// All ends: pod groups first, then the outside classes.
    fn classes<'s>(&'s self, evaluator: &mut Evaluator<'s>) -> Vec<EndClass<'s>> {
        let groups = self.partition.groups.iter();
        let groups = groups.map(|group| group.pods.iter().map(ReachEnd::Pod).collect());
        let outside = self.partition.outside.iter().map(|class| vec![ReachEnd::Outside(class)]);
        groups.chain(outside).map(|ends: Vec<ReachEnd<'s>>| evaluator.class(ends)).collect()
    }

    fn names(&self, names: &PodNames<'_>, ends: &[EndIndex]) -> Vec<String> {
        let Partition { groups, outside, .. } = &self.partition;
        let ends: Vec<usize> = ends.iter().map(|at| *at as usize).collect();
        let pods: BTreeSet<&PodId> =
            ends.iter().filter_map(|at| groups.get(*at)).flat_map(|group| &group.pods).collect();
        let classes: Vec<&OutsideClass> =
            ends.iter().filter_map(|at| outside.get(at.checked_sub(groups.len())?)).collect();
        let mut words = if pods.is_empty() { Vec::new() } else { names.pods(&pods) };
        words.extend(networks(&classes, outside));
        words
    }
}

/// The ways to change, each computed once.
#[derive(Default)]
struct FlowChanges {
    all: Vec<FlowChange>,
    numbers: HashMap<FlowChange, usize>,
    cache: HashMap<[Option<Vec<PortSetId>>; 2], Vec<usize>>,
}

impl FlowChanges {
    /// The numbers of the changes between the open ports before and after, per family.
    fn between(
        &mut self,
        evaluator: &Evaluator<'_>,
        open: [Option<Vec<PortSetId>>; 2],
    ) -> &[usize] {
        let is_unchanged = |states: &Vec<PortSetId>| states[0] == states[1];
        if open.iter().flatten().all(is_unchanged) {
            return &[];
        }
        if !self.cache.contains_key(&open) {
            let kinds = self.compute(evaluator, &open);
            self.cache.insert(open.clone(), kinds);
        }
        &self.cache[&open]
    }

    fn compute(
        &mut self,
        evaluator: &Evaluator<'_>,
        open: &[Option<Vec<PortSetId>>; 2],
    ) -> Vec<usize> {
        let changed: Vec<(IpFamily, [Vec<PortRange>; 2])> = IpFamily::BOTH
            .into_iter()
            .zip(open)
            .filter_map(|(family, states)| {
                let states = states.as_ref()?;
                let opened = evaluator.difference(states[1], states[0]);
                let closed = evaluator.difference(states[0], states[1]);
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

/// Adds the pods that only the new world has to the old one, with their namespaces. Returns the
/// added pods too.
pub fn with_pods_of(mut old: World, new: &World) -> (World, Vec<PodId>) {
    let added: Vec<PodId> =
        new.pods.keys().filter(|id| !old.pods.contains_key(*id)).cloned().collect();
    for pod in added.iter().filter_map(|id| new.pods.get(id)) {
        old.pods.insert(pod.id.clone(), pod.clone());
        if let Some(namespace) = new.namespaces.get(&pod.id.namespace) {
            old.namespaces.entry(namespace.name.clone()).or_insert_with(|| namespace.clone());
        }
    }
    (old, added)
}
