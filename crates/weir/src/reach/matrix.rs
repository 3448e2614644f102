//! Who reaches whom, as rows and columns.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{NamedPort, PodId, PortRange, Verdict, World};

use super::{End, Family, Field, Names, State, fold, representatives, union};
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
    pub(crate) cells: Vec<Vec<Option<Cell>>>,
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
                cell.as_ref().map(|cell| (from.as_str(), to.as_str(), cell))
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
    alike: Vec<Vec<End<'a>>>,
}

impl Question<'_> {
    /// The matrix of the pods that are wanted. If there are more than `many`, those that are alike share a row.
    pub(crate) fn answer(&self, wanted: impl Fn(&PodId) -> bool, many: usize) -> Reach {
        let field = Field::new(&[self.state]);
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
                let alike = vec![pods.iter().copied().map(End::Pod).collect()];
                Line { pods, alike }
            })
            .collect();
        lines.sort_by(|one, two| one.pods.cmp(&two.pods));
        let outside = field.outside.iter().filter(|outside| outside.name.is_none());
        let alike = outside.map(|outside| vec![End::Outside(outside)]).collect();
        lines.push(Line { pods: Vec::new(), alike });
        let row = |from| lines.iter().map(|to| self.cell(from, to, &field.ports)).collect();
        let mut cells: Vec<Vec<Option<Cell>>> = lines.iter().map(row).collect();
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
            [] => "the ports that the destination names, every port if it names none".to_owned(),
            ports => {
                let list: Vec<String> = ports.iter().map(PortArg::to_string).collect();
                list.join(", ")
            }
        }
    }

    fn cell(&self, from: &Line<'_>, to: &Line<'_>, slices: &[PortRange]) -> Option<Cell> {
        let mut cell = Cell::default();
        let mut answers: BTreeMap<PortRange, BTreeSet<Verdict>> = BTreeMap::new();
        for from in &from.alike {
            for to in &to.alike {
                let Some((from, to)) = representatives(self.state, from, to) else { continue };
                for family in Family::BOTH {
                    let address = |end: End<'_>| end.address(self.state, family);
                    let (Some(from), Some(there)) = (address(from), address(to)) else { continue };
                    for port in self.asked_at(to, slices) {
                        let verdict = self.state.verdict(from, there, port);
                        answers.entry(port).or_default().insert(verdict);
                    }
                }
            }
        }
        for (port, verdicts) in &answers {
            let list = match (verdicts.contains(&Verdict::Allow), verdicts.contains(&Verdict::Deny))
            {
                (true, false) => &mut cell.allowed,
                (false, true) => &mut cell.denied,
                _ => &mut cell.partly,
            };
            list.push(*port);
        }
        let Cell { allowed, denied, partly } = cell;
        let cell = Cell { allowed: union(allowed), denied: union(denied), partly: union(partly) };
        (!answers.is_empty()).then_some(cell)
    }

    /// The ports to ask about at a destination.
    fn asked_at(&self, to: End<'_>, slices: &[PortRange]) -> Vec<PortRange> {
        let world: &World = &self.state.world;
        let pod = match to {
            End::Pod(id) => world.pods.get(id),
            End::Outside(_) => None,
        };
        match (self.ports, pod) {
            ([], Some(pod)) if !pod.ports.is_empty() => {
                pod.ports.iter().map(|port| PortRange::one(port.protocol, port.port)).collect()
            }
            ([], _) => slices.to_vec(),
            (ports, pod) => ports.iter().flat_map(|port| port.at(pod)).collect(),
        }
    }
}
