//! A matrix of pods: which source reaches which destination.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use weir_model::{Attachments, NamedPort, PodId, PortRange};

use crate::{
    NamedSource, PortQuery, ReachState,
    evaluator::{EndClass, Evaluator},
    fold,
    name::PodNames,
    networks::{LineNetworks, OtherNetworks},
    partition::{Partition, ReachEnd},
    port::union,
    port_numbering::{NumberedPorts, PortNumbering},
    port_set::PortSetId,
};

/// The name of the row for all pods that are not selected.
pub const OTHER_NAMESPACES: &str = "other namespaces";

/// Which ends reach which.
pub struct Matrix {
    /// The evaluated ports, as text.
    pub ports: String,
    /// The names of the rows. Ends that are only sources are the last ones, and have no column.
    pub ends: Vec<String>,
    /// The number of pods in all rows.
    pub pods: usize,
    /// The number of rows for them.
    pub rows: usize,
    /// The number of host network pods, which have no row.
    pub host_network_pods: usize,
    /// Row by row; `None` where there is no connection to evaluate.
    pub cells: Vec<Vec<Option<Rc<Cell>>>>,
    /// The pods of the rows whose names list only the first one, by the name of the row.
    pub members: BTreeMap<String, Vec<String>>,
}

/// The ports that pass from one end to another.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The open ports.
    pub allowed: Vec<PortRange>,
    /// The closed ports.
    pub denied: Vec<PortRange>,
    /// The ports that are open for some addresses or pods and closed for others.
    pub partly: Vec<PortRange>,
    /// The open ports that are not evaluated, if all evaluated ports are closed.
    pub other: Vec<PortRange>,
    /// Whether the ends can connect over networks that are not judged.
    pub other_networks: OtherNetworks,
}

/// The share of the evaluated ports that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// All of them.
    All,
    /// Some of them, or only other ports.
    Some,
    /// No port at all.
    None,
    /// It is unknown: an end has another primary network than the cluster network.
    Unknown,
}

impl Cell {
    /// The share of the evaluated ports that pass.
    pub fn coverage(&self) -> Coverage {
        if self.other_networks == OtherNetworks::Only {
            return Coverage::Unknown;
        }
        let is_mixed = self.allowed.is_empty() == self.denied.is_empty();
        if is_mixed || !self.partly.is_empty() || !self.other.is_empty() {
            Coverage::Some
        } else if self.denied.is_empty() {
            Coverage::All
        } else {
            Coverage::None
        }
    }
}

impl Matrix {
    /// The names of the columns: the ends that can be destinations.
    pub fn destinations(&self) -> &[String] {
        &self.ends[..self.cells.first().map_or(0, Vec::len)]
    }

    /// All evaluated cells, row by row: source, destination, cell.
    pub fn connections(&self) -> impl Iterator<Item = (&str, &str, &Cell)> {
        self.ends.iter().zip(&self.cells).flat_map(|(from, row)| {
            self.ends.iter().zip(row).filter_map(move |(to, cell)| {
                cell.as_deref().map(|cell| (from.as_str(), to.as_str(), cell))
            })
        })
    }
}

/// The input of a matrix.
pub struct MatrixQuery<'a> {
    /// The state to evaluate.
    pub state: &'a ReachState,
    /// The ports at the destination; empty for those that each destination declares.
    pub ports: &'a [PortQuery],
    /// The declared ports of the containers of each pod.
    pub declared: &'a BTreeMap<PodId, Vec<PortRange>>,
    /// The workloads of pods, as `namespace/deployment/name`.
    pub owners: &'a BTreeMap<PodId, String>,
    /// The pods with networks other than the cluster network.
    pub attachments: &'a BTreeMap<PodId, Attachments>,
    /// Further sources, each with a row.
    pub sources: &'a [NamedSource],
}

/// Limits for the rows of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct RowLimits {
    /// The maximum number of pods with a row each. Above it, pods that are alike share a row.
    pub single: usize,
    /// The maximum number of rows to evaluate, before rows with equal cells are joined.
    pub evaluated: usize,
}

/// A row and column: ends that rules do not distinguish, all pods that are not selected, or all that
/// is outside.
pub(crate) struct Line<'a> {
    /// The selected pods; empty for the other lines.
    pub(crate) pods: Vec<&'a PodId>,
    pub(crate) classes: Vec<EndClass<'a>>,
    pub(crate) ports: NumberedPorts,
    /// The ports that each named source connects to.
    pub(crate) targets: Vec<Option<NumberedPorts>>,
    pub(crate) networks: LineNetworks<'a>,
    /// The index of the named source, which is no destination.
    pub(crate) source: Option<usize>,
}

impl MatrixQuery<'_> {
    /// Evaluates the matrix of the selected pods. Reports the progress as `(done, all)`. Fails
    /// before the evaluation if there are too many rows, and returns their number.
    pub fn evaluate(
        &self,
        selected: impl Fn(&PodId) -> bool,
        limits: RowLimits,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Matrix, usize> {
        let partition = Partition::new(&[self.state]);
        let mut evaluator = Evaluator::new(&[self.state], &partition.slices);
        let mut numbering = PortNumbering::default();
        let world = &self.state.world;
        let all = (0..).zip(&partition.groups);
        let all = all.flat_map(|(at, group)| group.pods.iter().map(move |id| (at, id)));
        let (pods, others) = all.partition::<Vec<(usize, &PodId)>, _>(|(_, id)| selected(id));
        let names = PodNames::new(pods.iter().map(|(_, id)| *id), self.owners);
        // Pods of one group share a row if they also have the same namespace and the same ports.
        type RowKey<'a> = (
            Option<&'a PodId>,
            (usize, &'a str, Option<&'a Attachments>),
            (&'a [NamedPort], &'a [PortRange], Vec<Option<&'a Vec<PortRange>>>),
        );
        let mut rows: BTreeMap<RowKey<'_>, Vec<&PodId>> = BTreeMap::new();
        for (group, id) in &pods {
            let own = (pods.len() <= limits.single).then_some(*id);
            let ports = world.pods.get(*id).map(|pod| pod.ports.as_slice()).unwrap_or_default();
            let declared = self.declared.get(*id).map(Vec::as_slice).unwrap_or_default();
            let kind = (*group, &*id.namespace, self.attachments.get(*id));
            let targets = self.sources.iter().map(|source| source.targets.get(*id)).collect();
            rows.entry((own, kind, (ports, declared, targets))).or_default().push(id);
        }
        let mut lines: Vec<Line<'_>> = rows
            .into_iter()
            .map(|((_, _, (_, _, targets)), pods)| {
                let classes = vec![evaluator.class(pods.iter().copied().map(ReachEnd::Pod))];
                let ports = self.ports_at(pods.first().copied());
                let networks = LineNetworks::new(self.attachments, pods.first().copied());
                let ports = numbering.list(&evaluator, ports);
                let mut list = |ports: &Vec<_>| numbering.list(&evaluator, Some(ports.clone()));
                let targets = targets.into_iter().map(|ports| ports.map(&mut list)).collect();
                Line { pods, classes, ports, targets, networks, source: None }
            })
            .collect();
        lines.sort_by(|one, two| one.pods.cmp(&two.pods));
        if !others.is_empty() {
            let mut groups: BTreeMap<usize, Vec<&PodId>> = BTreeMap::new();
            others.iter().for_each(|(group, id)| groups.entry(*group).or_default().push(id));
            let class = |pods: Vec<_>| evaluator.class(pods.into_iter().map(ReachEnd::Pod));
            let classes = groups.into_values().map(class).collect();
            let ports = numbering.list(&evaluator, self.ports_at(None));
            let networks = LineNetworks::new(self.attachments, others.iter().map(|(_, id)| *id));
            lines.push(Line::without_pods(classes, ports, networks));
        }
        let ports = numbering.list(&evaluator, self.ports_at(None));
        let classes = outside_classes(&mut evaluator, &partition);
        lines.push(Line::without_pods(classes, ports.clone(), LineNetworks::outside()));
        for (at, source) in self.sources.iter().enumerate() {
            let line = self.source_line(&mut evaluator, &partition, source, ports.clone());
            lines.push(Line { source: Some(at), ..line });
        }
        if lines.len() > limits.evaluated {
            return Err(lines.len());
        }
        let mut cache = CellCache::new();
        let mut cells: Vec<Vec<Option<Rc<Cell>>>> = Vec::with_capacity(lines.len());
        for (at, from) in lines.iter().enumerate() {
            progress(at, lines.len());
            let row = lines.iter().map(|to| {
                let cell = cell(&mut evaluator, &mut cache, from, to)?;
                Some(match from.networks.between(&to.networks) {
                    OtherNetworks::None => cell,
                    other_networks @ OtherNetworks::Only => {
                        Rc::new(Cell { other_networks, ..Cell::default() })
                    }
                    other_networks @ OtherNetworks::Also => {
                        Rc::new(Cell { other_networks, ..Cell::clone(&cell) })
                    }
                })
            });
            cells.push(row.collect());
        }
        progress(lines.len(), lines.len());
        let mut members: Vec<Vec<&PodId>> = lines.into_iter().map(|line| line.pods).collect();
        if pods.len() > limits.single {
            (members, cells) = fold::fold(members, cells);
        }
        let destinations = members.len() - self.sources.len();
        cells.iter_mut().for_each(|row| row.truncate(destinations));
        let rows = members.iter().filter(|pods| !pods.is_empty()).count();
        let name = |(at, pods): (usize, &Vec<&PodId>)| match at.checked_sub(rows) {
            None => names.row(pods),
            Some(0) if others.is_empty() => "outside".to_owned(),
            Some(0) => OTHER_NAMESPACES.to_owned(),
            Some(1) if !others.is_empty() => "outside the cluster".to_owned(),
            Some(at) => self.sources[at - 1 - usize::from(!others.is_empty())].name.clone(),
        };
        let ends: Vec<String> = members.iter().enumerate().map(name).collect();
        let listed = |pods: &[&PodId]| names.pods(&pods.iter().copied().collect());
        let shared = members[..rows].iter().filter(|pods| pods.len() > 1 && listed(pods).len() > 1);
        let shared = shared.map(|pods| (names.row(pods), listed(pods))).collect();
        let on_host = world.pods.values().filter(|pod| pod.host_network && selected(&pod.id));
        Ok(Matrix {
            ports: self.describe_ports(),
            ends,
            pods: pods.len(),
            rows,
            host_network_pods: on_host.count(),
            cells,
            members: shared,
        })
    }

    fn describe_ports(&self) -> String {
        match self.ports {
            [] => {
                "the ports that the destination's containers declare, every port if there are none"
                    .to_owned()
            }
            ports => {
                let list: Vec<String> = ports.iter().map(PortQuery::to_string).collect();
                list.join(", ")
            }
        }
    }

    /// The ports to evaluate at a destination; `None` for all ports.
    pub(crate) fn ports_at(&self, to: Option<&PodId>) -> Option<Vec<PortRange>> {
        let pod = to.and_then(|id| self.state.world.pods.get(id));
        if self.ports.is_empty() {
            return to
                .and_then(|id| self.declared.get(id))
                .filter(|list| !list.is_empty())
                .cloned();
        }
        Some(self.ports.iter().flat_map(|port| port.at(pod)).collect())
    }
}

impl<'a> Line<'a> {
    /// A line for ends that are not selected pods.
    pub(crate) fn without_pods(
        classes: Vec<EndClass<'a>>,
        ports: NumberedPorts,
        networks: LineNetworks<'a>,
    ) -> Self {
        let (pods, targets) = (Vec::new(), Vec::new());
        Line { pods, classes, ports, targets, networks, source: None }
    }
}

/// The classes of all addresses outside the cluster.
pub(crate) fn outside_classes<'p>(
    evaluator: &mut Evaluator<'p>,
    partition: &'p Partition,
) -> Vec<EndClass<'p>> {
    let outside = partition.outside.iter().filter(|class| class.name.is_none());
    outside.map(|class| evaluator.class([ReachEnd::Outside(class)])).collect()
}

/// Cells by the open port sets, the number of the port list, and whether other ports count.
pub(crate) type CellCache = HashMap<(Vec<PortSetId>, usize, bool), Option<Rc<Cell>>>;

pub(crate) fn cell<'a>(
    evaluator: &mut Evaluator<'a>,
    cache: &mut CellCache,
    from: &Line<'a>,
    to: &Line<'a>,
) -> Option<Rc<Cell>> {
    if (from.pods.is_empty() && to.pods.is_empty()) || to.source.is_some() {
        return None;
    }
    let (number, ports) = match from.source {
        Some(at) => to.targets.get(at)?.as_ref()?,
        None => &to.ports,
    };
    let mut open: Vec<PortSetId> = Vec::new();
    for from in &from.classes {
        for to in &to.classes {
            let by_family = evaluator.open(from, to);
            open.extend(by_family.into_iter().flatten().flatten().map(|[only, _]| only));
        }
    }
    open.sort_unstable();
    open.dedup();
    // A named source connects to no other ports.
    let others_count = from.source.is_none();
    let key = (open, *number, others_count);
    if let Some(cell) = cache.get(&key) {
        return cell.clone();
    }
    let open = &key.0;
    let (mut allowed, mut denied, mut partly) = (Vec::new(), Vec::new(), Vec::new());
    let [in_all, in_any] = evaluator.in_all_and_any(open);
    for (port, slice) in &**ports {
        match (in_any.contains(*slice), in_all.contains(*slice)) {
            (false, _) => denied.push(*port),
            (true, true) => allowed.push(*port),
            (true, false) => partly.push(*port),
        }
    }
    let other = match allowed.is_empty() && partly.is_empty() && others_count {
        true => union(in_any.iter().map(|at| evaluator.slices()[at])),
        false => Vec::new(),
    };
    let cell = (!open.is_empty() && !ports.is_empty()).then(|| {
        let [allowed, denied, partly] = [allowed, denied, partly].map(union);
        Rc::new(Cell { allowed, denied, partly, other, ..Cell::default() })
    });
    cache.insert(key, cell.clone());
    cell
}
