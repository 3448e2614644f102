//! The ends of connections by index, and connections merged for display.

use std::{collections::BTreeMap, net::IpAddr, ops::Range};

use ipnet::IpNet;
use weir_model::PodId;

use crate::{
    evaluator::{EndClass, Evaluator},
    name::{PodNames, networks, unnamed},
    outside::OutsideClass,
    partition::ReachEnd,
};

/// The index of a pod group, or of an outside class after all groups.
pub(crate) type EndIndex = u32;

/// One end of an example of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExampleEnd {
    /// A pod.
    Pod(PodId),
    /// An address that belongs to no pod.
    Address(IpAddr),
}

/// Pod groups, and the outside classes after them.
pub(crate) struct Ends<'a> {
    /// Pods that no rule distinguishes; no group is empty.
    pub(crate) groups: Vec<Vec<&'a PodId>>,
    /// Addresses that belong to no pod.
    pub(crate) outside: &'a [OutsideClass],
}

impl<'a> Ends<'a> {
    /// The classes to evaluate, by index.
    pub(crate) fn classes(&self, evaluator: &mut Evaluator<'a>) -> Vec<EndClass<'a>> {
        let mut classes = Vec::with_capacity(self.groups.len() + self.outside.len());
        for group in &self.groups {
            classes.push(evaluator.class(group.iter().copied().map(ReachEnd::Pod)));
        }
        for class in self.outside {
            classes.push(evaluator.class([ReachEnd::Outside(class)]));
        }
        classes
    }

    /// One of the merged connections, with two different pods.
    pub(crate) fn example(&self, from: &[EndIndex], to: &[EndIndex]) -> Option<[ExampleEnd; 2]> {
        let (from, to) = (*from.first()?, *to.first()?);
        Some([self.member(from, 0)?, self.member(to, usize::from(from == to))?])
    }

    fn member(&self, end: EndIndex, at: usize) -> Option<ExampleEnd> {
        let end = end as usize;
        match self.groups.get(end) {
            Some(group) => group.get(at).map(|id| ExampleEnd::Pod((*id).clone())),
            None => {
                let class = self.outside.get(end.checked_sub(self.groups.len())?)?;
                Some(ExampleEnd::Address(class.example))
            }
        }
    }

    /// Prepares to name ends.
    pub(crate) fn names<'n>(&'n self, names: &'n PodNames<'n>) -> EndNames<'n> {
        let indexes = |group: &Vec<&PodId>| group.iter().filter_map(|id| names.index(id)).collect();
        let groups = self.groups.iter().map(indexes).collect();
        EndNames { names, groups, outside: self.outside, whole: unnamed(self.outside) }
    }
}

/// The names of ends.
pub(crate) struct EndNames<'n> {
    names: &'n PodNames<'n>,
    /// The indexes of the pods of each group.
    groups: Vec<Vec<usize>>,
    outside: &'n [OutsideClass],
    /// The networks of all outside classes without a name.
    whole: Vec<IpNet>,
}

impl EndNames<'_> {
    /// Short names for some ends.
    pub(crate) fn of(&self, ends: &[EndIndex]) -> Vec<String> {
        let ends = || ends.iter().map(|at| *at as usize);
        let mut pods: Vec<usize> =
            ends().filter_map(|at| self.groups.get(at)).flatten().copied().collect();
        pods.sort_unstable();
        let outside = ends().filter_map(|at| self.outside.get(at.checked_sub(self.groups.len())?));
        let outside: Vec<&OutsideClass> = outside.collect();
        let mut words = if pods.is_empty() { Vec::new() } else { self.names.by_index(&pods) };
        if !outside.is_empty() {
            words.extend(networks(&outside, &self.whole));
        }
        words
    }
}

/// Connections of several kinds. It merges the sources that have one kind of connection to a
/// destination, then the destinations with the same sources.
#[derive(Default)]
pub(crate) struct MergedConnections {
    sources: BTreeMap<(usize, EndIndex), Vec<EndIndex>>,
}

impl MergedConnections {
    /// Adds connections from all of these sources to all of these destinations. The sources of a
    /// destination must arrive in order.
    pub(crate) fn add(&mut self, kind: usize, from: Range<usize>, to: Range<usize>) {
        for to in to {
            let sources = self.sources.entry((kind, to as EndIndex)).or_default();
            sources.extend(from.clone().map(|from| from as EndIndex));
        }
    }

    /// The merged connections: kind, sources, destinations.
    pub(crate) fn finish(self) -> impl Iterator<Item = (usize, Vec<EndIndex>, Vec<EndIndex>)> {
        let mut merged: BTreeMap<(usize, Vec<EndIndex>), Vec<EndIndex>> = BTreeMap::new();
        for ((kind, to), from) in self.sources {
            merged.entry((kind, from)).or_default().push(to);
        }
        merged.into_iter().map(|((kind, from), to)| (kind, from, to))
    }
}
