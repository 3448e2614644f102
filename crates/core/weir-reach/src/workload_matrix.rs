//! A matrix of workloads: one row for the pods of a workload that are alike.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    rc::Rc,
};

use weir_model::{Attachments, NamedPort, PodId, PortRange};

use crate::{
    Cell, MatrixQuery, OtherNetworks,
    evaluator::Evaluator,
    matrix::{CellCache, Line, cell, outside_classes},
    name::{self, PodNames},
    networks::LineNetworks,
    partition::{Partition, ReachEnd},
    port_numbering::PortNumbering,
};

/// Which workloads reach which.
pub struct WorkloadMatrix {
    /// The rows: the workloads, then everything outside the cluster, then the named sources, which
    /// have no column.
    pub ends: Vec<WorkloadEnd>,
    /// The number of columns.
    pub columns: usize,
    /// The different cells.
    pub cells: Vec<Cell>,
    /// Row by row, the index of the cell; `None` where there is no connection to evaluate.
    pub indexes: Vec<Option<u32>>,
    /// The addresses outside the cluster that rules distinguish.
    pub outside: Vec<OutsideNetworks>,
}

/// A row of a matrix of workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadEnd {
    /// The name.
    pub name: String,
    /// The pods; none for what is outside the cluster and for a named source.
    pub pods: Vec<PodId>,
}

/// Addresses outside the cluster that every rule treats alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideNetworks {
    /// The networks, as a list of words.
    pub name: String,
    /// One of the addresses.
    pub example: IpAddr,
}

impl WorkloadMatrix {
    /// The cell of two ends; `None` where there is no connection to evaluate.
    pub fn cell(&self, from: usize, to: usize) -> Option<&Cell> {
        if to >= self.columns {
            return None;
        }
        let index = *self.indexes.get(from * self.columns + to)?;
        self.cells.get(index? as usize)
    }
}

impl MatrixQuery<'_> {
    /// Evaluates the matrix of the workloads of the selected pods. Pods without a workload have
    /// their own row, and so have the pods of a workload that rules distinguish. Reports the
    /// progress as `(done, all)`.
    pub fn evaluate_workloads(
        &self,
        selected: impl Fn(&PodId) -> bool,
        mut progress: impl FnMut(usize, usize),
    ) -> WorkloadMatrix {
        let partition = Partition::new(&[self.state]);
        let mut evaluator = Evaluator::new(&[self.state], &partition.slices);
        let mut numbering = PortNumbering::default();
        let groups = (0..).zip(&partition.groups);
        let pods = groups.flat_map(|(at, group)| group.pods.iter().map(move |id| (at, id)));
        let pods: Vec<(usize, &PodId)> = pods.filter(|(_, id)| selected(id)).collect();
        let names = PodNames::new(pods.iter().map(|(_, id)| *id), self.owners);
        type RowKey<'a> = (
            (&'a str, Option<&'a String>, Option<&'a PodId>),
            (usize, Option<&'a Attachments>),
            (&'a [NamedPort], &'a [PortRange], Vec<Option<&'a Vec<PortRange>>>),
        );
        let mut rows: BTreeMap<RowKey<'_>, Vec<&PodId>> = BTreeMap::new();
        for (group, id) in &pods {
            let pod = self.state.world.pods.get(*id);
            let ports = pod.map(|pod| pod.ports.as_slice()).unwrap_or_default();
            let declared = self.declared.get(*id).map(Vec::as_slice).unwrap_or_default();
            let owner = self.owners.get(*id);
            let own = owner.is_none().then_some(*id);
            let targets = self.sources.iter().map(|source| source.targets.get(*id)).collect();
            let key = (
                (&*id.namespace, owner, own),
                (*group, self.attachments.get(*id)),
                (ports, declared, targets),
            );
            rows.entry(key).or_default().push(id);
        }
        let mut ends = Vec::with_capacity(rows.len());
        let mut lines: Vec<Line<'_>> = Vec::with_capacity(rows.len());
        for (((_, owner, _), _, (_, _, targets)), pods) in rows {
            let classes = vec![evaluator.class(pods.iter().copied().map(ReachEnd::Pod))];
            let ports = numbering.list(&evaluator, self.ports_at(pods.first().copied()));
            let mut list = |ports: &Vec<_>| numbering.list(&evaluator, Some(ports.clone()));
            let targets = targets.into_iter().map(|ports| ports.map(&mut list)).collect();
            let networks = LineNetworks::new(self.attachments, pods.first().copied());
            let name = match owner {
                Some(owner) if names.is_whole(owner, pods.len()) => owner.clone(),
                _ => names.row(&pods),
            };
            ends.push(WorkloadEnd { name, pods: pods.iter().map(|id| (*id).clone()).collect() });
            lines.push(Line { pods, classes, ports, targets, networks, source: None });
        }
        let every_port = numbering.list(&evaluator, self.ports_at(None));
        let classes = outside_classes(&mut evaluator, &partition);
        let networks = LineNetworks::outside();
        lines.push(Line::without_pods(classes, every_port.clone(), networks));
        ends.push(WorkloadEnd { name: "outside".to_owned(), pods: Vec::new() });
        let columns = lines.len();
        for (at, source) in self.sources.iter().enumerate() {
            let line = self.source_line(&mut evaluator, &partition, source, every_port.clone());
            lines.push(Line { source: Some(at), ..line });
            ends.push(WorkloadEnd { name: source.name.clone(), pods: Vec::new() });
        }
        let mut cells = DistinctCells::default();
        let mut cache = CellCache::new();
        let mut indexes = Vec::with_capacity(lines.len() * columns);
        for (at, from) in lines.iter().enumerate() {
            progress(at, lines.len());
            for to in &lines[..columns] {
                let networks = from.networks.between(&to.networks);
                let cell = cell(&mut evaluator, &mut cache, from, to);
                indexes.push(cell.map(|cell| cells.index(&cell, networks)));
            }
        }
        progress(lines.len(), lines.len());
        let unnamed = partition.outside.iter().filter(|class| class.name.is_none());
        let whole = name::unnamed(&partition.outside);
        let outside = unnamed.map(|class| OutsideNetworks {
            name: name::networks(&[class], &whole).join(", "),
            example: class.example,
        });
        let outside = outside.collect();
        WorkloadMatrix { ends, columns, cells: cells.all, indexes, outside }
    }
}

/// Cells without repetition.
#[derive(Default)]
struct DistinctCells {
    all: Vec<Cell>,
    by_value: HashMap<Cell, u32>,
    /// The cells of the cache live as long as this value, so their addresses identify them.
    by_address: HashMap<(*const Cell, OtherNetworks), u32>,
}

impl DistinctCells {
    fn index(&mut self, cell: &Rc<Cell>, other_networks: OtherNetworks) -> u32 {
        let address = (Rc::as_ptr(cell), other_networks);
        if let Some(index) = self.by_address.get(&address) {
            return *index;
        }
        let value = match other_networks {
            OtherNetworks::Only => Cell { other_networks, ..Cell::default() },
            _ => Cell { other_networks, ..Cell::clone(cell) },
        };
        let next = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let index = *self.by_value.entry(value.clone()).or_insert(next);
        if index == next {
            self.all.push(value);
        }
        self.by_address.insert(address, index);
        index
    }
}
