//! The open connections of some pods.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{IpFamily, PodId, PortRange};

use crate::{
    ReachState,
    ends::{Ends, ExampleEnd, MergedConnections},
    evaluator::Evaluator,
    name::PodNames,
    pairs,
    partition::Partition,
    port::union,
    port_set::PortSetId,
    small_hash::IdMap,
};

/// Open connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// The destinations.
    pub to: Vec<String>,
    /// The sources.
    pub from: Vec<String>,
    /// The open ports at the destinations.
    pub ports: Vec<PortRange>,
    /// The only family that these ports are open for; `None` if both are alike.
    pub family: Option<IpFamily>,
    /// The source and the destination of one of them.
    pub example: Option<[ExampleEnd; 2]>,
}

/// The connections to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All connections from and to the selected pods.
    Any,
    /// Only those between a selected pod and a pod that is not selected.
    OtherPods,
}

impl ReachState {
    /// The open connections from and to the selected pods, merged. Reports the progress as `(done,
    /// all)`.
    pub fn connections(
        &self,
        selected: impl Fn(&PodId) -> bool,
        reach: Reach,
        owners: &BTreeMap<PodId, String>,
        progress: impl FnMut(usize, usize),
    ) -> Vec<Connection> {
        let partition = Partition::new(&[self]);
        let mut evaluator = Evaluator::new(&[self], &partition.slices);
        let (mut groups, mut rest) = (Vec::new(), Vec::new());
        for group in &partition.groups {
            let (inside, others): (Vec<&PodId>, Vec<&PodId>) =
                group.pods.iter().partition(|id| selected(id));
            groups.extend(Some(inside).filter(|pods| !pods.is_empty()));
            rest.extend(Some(others).filter(|pods| !pods.is_empty()));
        }
        let count = groups.len();
        groups.append(&mut rest);
        let pods = groups.len();
        let ends = Ends { groups, outside: &partition.outside };
        let is_listed = |from: usize, to: usize| match reach {
            Reach::Any => from < count || to < count,
            Reach::OtherPods => (from < count) != (to < count) && from.max(to) < pods,
        };
        let mut kinds = OpenPorts::default();
        let mut merged = MergedConnections::default();
        pairs::visit(&mut evaluator, &ends, is_listed, progress, |evaluator, pair| {
            let open = pair.open.map(|states| states.map(|[only, _]| only));
            for kind in kinds.of(evaluator, open) {
                merged.add(*kind, pair.from.clone(), pair.to.clone());
            }
        });
        let all: BTreeSet<&PodId> = ends.groups.iter().flatten().copied().collect();
        let names = PodNames::new(all, owners);
        let names = ends.names(&names);
        let name = |(kind, from, to): (usize, Vec<u32>, Vec<u32>)| {
            let (family, ports) = kinds.all[kind].clone();
            let example = ends.example(&from, &to);
            Connection { to: names.of(&to), from: names.of(&from), ports, family, example }
        };
        let mut connections: Vec<Connection> = merged.finish().map(name).collect();
        connections.sort();
        connections
    }
}

/// Families and their open ports, each computed once.
#[derive(Default)]
struct OpenPorts {
    all: Vec<(Option<IpFamily>, Vec<PortRange>)>,
    cache: IdMap<[Option<PortSetId>; 2], Vec<usize>>,
}

impl OpenPorts {
    /// The numbers of the entries for the open ports per family.
    fn of(&mut self, evaluator: &Evaluator<'_>, open: [Option<PortSetId>; 2]) -> &[usize] {
        let all = &mut self.all;
        self.cache.entry(open).or_insert_with(|| {
            let alike = matches!(open, [Some(one), Some(two)] if one == two)
                || open.iter().flatten().count() < 2;
            let families = IpFamily::BOTH.into_iter().zip(open);
            let mut kinds = Vec::new();
            for (family, ports) in families.filter_map(|(family, set)| Some((family, set?))) {
                let ports = union(evaluator.slices_in(ports));
                let entry = ((!alike).then_some(family), ports);
                if entry.1.is_empty() || (alike && !kinds.is_empty()) {
                    continue;
                }
                let known = all.iter().position(|known| *known == entry);
                kinds.push(known.unwrap_or_else(|| {
                    all.push(entry);
                    all.len() - 1
                }));
            }
            kinds
        })
    }
}
