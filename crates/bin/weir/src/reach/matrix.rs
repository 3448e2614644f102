//! Who reaches whom, as rows and columns.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use weir_model::{NamedPort, PodId, PortRange};

use super::{
    End, Field, Names, State, fold,
    judge::{Judge, Party},
    shelf::Open,
    union,
};
use crate::port::PortArg;

/// Who reaches whom.
pub(crate) struct Reach {
    /// What was asked, in words.
    pub(crate) asked: String,
    /// The names of the rows and of the columns.
    pub(crate) ends: Vec<String>,
    /// How many pods there are in all rows.
    pub(crate) pods: usize,
    /// How many pods are left out, for they have the network of their node.
    pub(crate) hosts: usize,
    /// Row by row; `None` where there is no connection to ask about.
    pub(crate) cells: Vec<Vec<Option<Rc<Cell>>>>,
}

/// What passes from one end to another.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cell {
    /// The ports that are open.
    pub(crate) allowed: Vec<PortRange>,
    /// The ports that are closed.
    pub(crate) denied: Vec<PortRange>,
    /// The ports that are open for some addresses and closed for others.
    pub(crate) partly: Vec<PortRange>,
}

impl Cell {
    /// One word for the whole cell.
    pub(crate) fn word(&self) -> Word {
        match (self.allowed.is_empty(), self.denied.is_empty(), self.partly.is_empty()) {
            (false, true, true) => Word::All,
            (true, false, true) => Word::None,
            _ => Word::Some,
        }
    }
}

/// How much of what was asked passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// All of it.
    All,
    /// Some of it.
    Some,
    /// None of it.
    None,
}

impl Reach {
    /// All cells that there is something to say about, row by row.
    pub(crate) fn connections(&self) -> impl Iterator<Item = (&str, &str, &Cell)> {
        self.ends.iter().zip(&self.cells).flat_map(|(from, row)| {
            self.ends.iter().zip(row).filter_map(move |(to, cell)| {
                cell.as_deref().map(|cell| (from.as_str(), to.as_str(), cell))
            })
        })
    }
}

/// What a matrix is asked for.
pub(crate) struct Question<'a> {
    /// The state.
    pub(crate) state: &'a State,
    /// The ports at the destination; none for those that each destination names.
    pub(crate) ports: &'a [PortArg],
    /// The workloads of pods, as `namespace/deployment/name`.
    pub(crate) owners: &'a BTreeMap<PodId, String>,
}

/// A row and column: ends that are alike, or several such if they share a name.
struct Line<'a> {
    /// The pods; none for what is outside.
    pods: Vec<&'a PodId>,
    parties: Vec<Party<'a>>,
    /// The ports to ask about there.
    asked: Asked,
}

/// Ports to ask about, each with the slice it is in; by number, so that those that are the same are known to be.
type Asked = (usize, Rc<[(PortRange, usize)]>);

impl Question<'_> {
    /// The matrix of the pods that are wanted. If there are more than `many`, those that are alike share a row.
    /// Says how far it is: so many of so many.
    pub(crate) fn answer(
        &self,
        wanted: impl Fn(&PodId) -> bool,
        many: usize,
        mut progress: impl FnMut(usize, usize),
    ) -> Reach {
        let field = Field::new(&[self.state]);
        let mut judge = Judge::new(&[self.state], &field.ports);
        let mut asked = AskedAll::default();
        let world = &self.state.world;
        let pods: Vec<(usize, &PodId)> = (0..)
            .zip(&field.groups)
            .flat_map(|(at, group)| group.pods.iter().map(move |id| (at, id)))
            .filter(|(_, id)| wanted(id))
            .collect();
        let names = Names::new(pods.iter().map(|(_, id)| *id), self.owners);
        // Pods that are alike to the rules share a row if they also look alike to the reader.
        type Looks<'a> = (Option<&'a PodId>, usize, &'a str, &'a [NamedPort]);
        let mut rows: BTreeMap<Looks<'_>, Vec<&PodId>> = BTreeMap::new();
        for (group, id) in &pods {
            let own = (pods.len() <= many).then_some(*id);
            let ports = world.pods.get(*id).map(|pod| pod.ports.as_slice()).unwrap_or_default();
            rows.entry((own, *group, &id.namespace, ports)).or_default().push(id);
        }
        let mut lines: Vec<Line<'_>> = rows
            .into_values()
            .map(|pods| {
                let parties = vec![judge.party(pods.iter().copied().map(End::Pod))];
                let asked = asked.of(&judge, self.asked_at(pods.first().copied(), &field.ports));
                Line { pods, parties, asked }
            })
            .collect();
        lines.sort_by(|one, two| one.pods.cmp(&two.pods));
        let outside = field.outside.iter().filter(|outside| outside.name.is_none());
        let parties = outside.map(|outside| judge.party([End::Outside(outside)])).collect();
        let asked = asked.of(&judge, self.asked_at(None, &field.ports));
        lines.push(Line { pods: Vec::new(), parties, asked });
        let mut known = Known::new();
        let mut cells: Vec<Vec<Option<Rc<Cell>>>> = Vec::with_capacity(lines.len());
        for (at, from) in lines.iter().enumerate() {
            progress(at, lines.len());
            let row = lines.iter().map(|to| cell(&mut judge, &mut known, from, to));
            cells.push(row.collect());
        }
        progress(lines.len(), lines.len());
        let mut members: Vec<Vec<&PodId>> = lines.into_iter().map(|line| line.pods).collect();
        if pods.len() > many {
            (members, cells) = fold::fold(members, cells);
        }
        let name = |pods: &Vec<&PodId>| match pods.is_empty() {
            true => "outside".to_owned(),
            false => names.row(pods),
        };
        let ends = members.iter().map(name).collect();
        let hosts = world.pods.values().filter(|pod| pod.host_network && wanted(&pod.id)).count();
        Reach { asked: self.asked(), ends, pods: pods.len(), hosts, cells }
    }

    fn asked(&self) -> String {
        match self.ports {
            [] => "the named ports of the destination's containers, every port if it has none"
                .to_owned(),
            ports => {
                let list: Vec<String> = ports.iter().map(PortArg::to_string).collect();
                list.join(", ")
            }
        }
    }

    /// The ports to ask about at a destination.
    fn asked_at(&self, to: Option<&PodId>, slices: &[PortRange]) -> Vec<PortRange> {
        let pod = to.and_then(|id| self.state.world.pods.get(id));
        match (self.ports, pod) {
            ([], Some(pod)) if !pod.ports.is_empty() => {
                pod.ports.iter().map(|port| PortRange::one(port.protocol, port.port)).collect()
            }
            ([], _) => slices.to_vec(),
            (ports, pod) => ports.iter().flat_map(|port| port.at(pod)).collect(),
        }
    }
}

/// All lists of ports that are asked about.
#[derive(Default)]
struct AskedAll {
    numbers: HashMap<Vec<PortRange>, Asked>,
}

impl AskedAll {
    fn of(&mut self, judge: &Judge<'_>, ports: Vec<PortRange>) -> Asked {
        let number = self.numbers.len();
        let asked = self.numbers.entry(ports).or_insert_with_key(|ports| {
            let mut ports = ports.clone();
            ports.sort();
            ports.dedup();
            (number, ports.into_iter().map(|port| (port, judge.slice(port))).collect())
        });
        asked.clone()
    }
}

/// Cells by what is open and by what is asked.
type Known = HashMap<(Vec<Open>, usize), Option<Rc<Cell>>>;

fn cell<'a>(
    judge: &mut Judge<'a>,
    known: &mut Known,
    from: &Line<'a>,
    to: &Line<'a>,
) -> Option<Rc<Cell>> {
    let mut open: Vec<Open> = Vec::new();
    for from in &from.parties {
        for to in &to.parties {
            let both = judge.open(from, to);
            open.extend(both.into_iter().flatten().flatten().flatten());
        }
    }
    open.sort_unstable();
    open.dedup();
    if let Some(cell) = known.get(&(open.clone(), to.asked.0)) {
        return cell.clone();
    }
    let (mut allowed, mut denied, mut partly) = (Vec::new(), Vec::new(), Vec::new());
    for (port, slice) in &*to.asked.1 {
        let opens = open.iter().filter(|open| judge.contains(**open, *slice)).count();
        match opens {
            0 => denied.push(*port),
            all if all == open.len() => allowed.push(*port),
            _ => partly.push(*port),
        }
    }
    let cell = (!open.is_empty() && !to.asked.1.is_empty()).then(|| {
        Rc::new(Cell { allowed: union(allowed), denied: union(denied), partly: union(partly) })
    });
    known.insert((open, to.asked.0), cell.clone());
    cell
}
