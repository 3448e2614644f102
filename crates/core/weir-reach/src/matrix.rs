//! A matrix of pods: which source reaches which destination.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use weir_model::{NamedPort, PodId, PortRange};

use crate::{
    PortQuery, ReachState,
    evaluator::{EndClass, Evaluator},
    fold,
    name::PodNames,
    partition::{Partition, ReachEnd},
    port::union,
    port_set::PortSetId,
};

/// Which ends reach which.
pub struct Matrix {
    /// The evaluated ports, as text.
    pub ports: String,
    /// The names of the rows, which are also those of the columns.
    pub ends: Vec<String>,
    /// The number of pods in all rows.
    pub pods: usize,
    /// The number of host network pods, which have no row.
    pub host_network_pods: usize,
    /// Row by row; `None` where there is no connection to evaluate.
    pub cells: Vec<Vec<Option<Rc<Cell>>>>,
}

/// The ports that pass from one end to another.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The open ports.
    pub allowed: Vec<PortRange>,
    /// The closed ports.
    pub denied: Vec<PortRange>,
    /// The ports that are open for some addresses and closed for others.
    pub partly: Vec<PortRange>,
}

/// The share of the evaluated ports that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// All of them.
    All,
    /// Some of them.
    Some,
    /// None of them.
    None,
}

impl Cell {
    /// The share of the evaluated ports that pass.
    pub fn coverage(&self) -> Coverage {
        if self.allowed.is_empty() == self.denied.is_empty() || !self.partly.is_empty() {
            Coverage::Some
        } else if self.denied.is_empty() {
            Coverage::All
        } else {
            Coverage::None
        }
    }
}

impl Matrix {
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
    /// The ports at the destination; empty for those that each destination names.
    pub ports: &'a [PortQuery],
    /// The workloads of pods, as `namespace/deployment/name`.
    pub owners: &'a BTreeMap<PodId, String>,
}

/// A row and column: ends that rules do not distinguish, or all that is outside.
struct Line<'a> {
    /// The pods; empty for the line of what is outside.
    pods: Vec<&'a PodId>,
    classes: Vec<EndClass<'a>>,
    ports: NumberedPorts,
}

/// Ports to evaluate, each with the index of its slice; equal lists have one number.
type NumberedPorts = (usize, Rc<[(PortRange, usize)]>);

impl MatrixQuery<'_> {
    /// Evaluates the matrix of the selected pods. If there are more than `max_rows`, pods that are
    /// alike share a row. Reports the progress as `(done, all)`.
    pub fn evaluate(
        &self,
        selected: impl Fn(&PodId) -> bool,
        max_rows: usize,
        mut progress: impl FnMut(usize, usize),
    ) -> Matrix {
        let partition = Partition::new(&[self.state]);
        let mut evaluator = Evaluator::new(&[self.state], &partition.slices);
        let mut numbering = PortNumbering::default();
        let world = &self.state.world;
        let pods: Vec<(usize, &PodId)> = (0..)
            .zip(&partition.groups)
            .flat_map(|(at, group)| group.pods.iter().map(move |id| (at, id)))
            .filter(|(_, id)| selected(id))
            .collect();
        let names = PodNames::new(pods.iter().map(|(_, id)| *id), self.owners);
        // Pods of one group share a row if they also have the same namespace and the same named
        // ports.
        type RowKey<'a> = (Option<&'a PodId>, usize, &'a str, &'a [NamedPort]);
        let mut rows: BTreeMap<RowKey<'_>, Vec<&PodId>> = BTreeMap::new();
        for (group, id) in &pods {
            let own = (pods.len() <= max_rows).then_some(*id);
            let ports = world.pods.get(*id).map(|pod| pod.ports.as_slice()).unwrap_or_default();
            rows.entry((own, *group, &id.namespace, ports)).or_default().push(id);
        }
        let mut lines: Vec<Line<'_>> = rows
            .into_values()
            .map(|pods| {
                let classes = vec![evaluator.class(pods.iter().copied().map(ReachEnd::Pod))];
                let ports = self.ports_at(pods.first().copied());
                Line { pods, classes, ports: numbering.list(&evaluator, ports) }
            })
            .collect();
        lines.sort_by(|one, two| one.pods.cmp(&two.pods));
        let outside = partition.outside.iter().filter(|class| class.name.is_none());
        let classes = outside.map(|class| evaluator.class([ReachEnd::Outside(class)])).collect();
        let ports = numbering.list(&evaluator, self.ports_at(None));
        lines.push(Line { pods: Vec::new(), classes, ports });
        let mut cache = CellCache::new();
        let mut cells: Vec<Vec<Option<Rc<Cell>>>> = Vec::with_capacity(lines.len());
        for (at, from) in lines.iter().enumerate() {
            progress(at, lines.len());
            let row = lines.iter().map(|to| cell(&mut evaluator, &mut cache, from, to));
            cells.push(row.collect());
        }
        progress(lines.len(), lines.len());
        let mut members: Vec<Vec<&PodId>> = lines.into_iter().map(|line| line.pods).collect();
        if pods.len() > max_rows {
            (members, cells) = fold::fold(members, cells);
        }
        let name = |pods: &Vec<&PodId>| {
            if pods.is_empty() { "outside".to_owned() } else { names.row(pods) }
        };
        let ends = members.iter().map(name).collect();
        let on_host = world.pods.values().filter(|pod| pod.host_network && selected(&pod.id));
        Matrix {
            ports: self.describe_ports(),
            ends,
            pods: pods.len(),
            host_network_pods: on_host.count(),
            cells,
        }
    }

    fn describe_ports(&self) -> String {
        match self.ports {
            [] => "the named ports of the destination's containers, every port if it has none"
                .to_owned(),
            ports => {
                let list: Vec<String> = ports.iter().map(PortQuery::to_string).collect();
                list.join(", ")
            }
        }
    }

    /// The ports to evaluate at a destination; `None` for all ports.
    fn ports_at(&self, to: Option<&PodId>) -> Option<Vec<PortRange>> {
        let pod = to.and_then(|id| self.state.world.pods.get(id));
        match (self.ports, pod) {
            ([], Some(pod)) if !pod.ports.is_empty() => {
                let ports = pod.ports.iter();
                Some(ports.map(|port| PortRange::one(port.protocol, port.port)).collect())
            }
            ([], _) => None,
            (ports, pod) => Some(ports.iter().flat_map(|port| port.at(pod)).collect()),
        }
    }
}

/// All lists of ports that are evaluated.
#[derive(Default)]
struct PortNumbering {
    lists: HashMap<Option<Vec<PortRange>>, NumberedPorts>,
}

impl PortNumbering {
    fn list(&mut self, evaluator: &Evaluator<'_>, ports: Option<Vec<PortRange>>) -> NumberedPorts {
        let number = self.lists.len();
        let list = self.lists.entry(ports).or_insert_with_key(|ports| {
            let mut ports = ports.clone().unwrap_or_else(|| evaluator.slices().to_vec());
            ports.sort();
            ports.dedup();
            (number, ports.into_iter().map(|port| (port, evaluator.slice(port))).collect())
        });
        list.clone()
    }
}

/// Cells by the open port sets and the number of the port list.
type CellCache = HashMap<(Vec<PortSetId>, usize), Option<Rc<Cell>>>;

fn cell<'a>(
    evaluator: &mut Evaluator<'a>,
    cache: &mut CellCache,
    from: &Line<'a>,
    to: &Line<'a>,
) -> Option<Rc<Cell>> {
    if from.pods.is_empty() && to.pods.is_empty() {
        return None;
    }
    let mut open: Vec<PortSetId> = Vec::new();
    for from in &from.classes {
        for to in &to.classes {
            let by_family = evaluator.open(from, to);
            open.extend(by_family.into_iter().flatten().flatten().flatten());
        }
    }
    open.sort_unstable();
    open.dedup();
    let (number, ports) = &to.ports;
    if let Some(cell) = cache.get(&(open.clone(), *number)) {
        return cell.clone();
    }
    let (mut allowed, mut denied, mut partly) = (Vec::new(), Vec::new(), Vec::new());
    let [in_all, in_any] = evaluator.in_all_and_any(&open);
    for (port, slice) in &**ports {
        match (in_any.contains(*slice), in_all.contains(*slice)) {
            (false, _) => denied.push(*port),
            (true, true) => allowed.push(*port),
            (true, false) => partly.push(*port),
        }
    }
    let cell = (!open.is_empty() && !ports.is_empty()).then(|| {
        Rc::new(Cell { allowed: union(allowed), denied: union(denied), partly: union(partly) })
    });
    cache.insert((open, *number), cell.clone());
    cell
}
