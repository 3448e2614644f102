use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_model::{NamedPort, PodId, PortRange, Verdict, World};

use crate::{
    exit::Exit,
    fold,
    port::PortArg,
    present::{self, Structured},
    reach::{End, Family, Field, Names, State, representatives, spell, union},
    source::Source,
};

/// Show who reaches whom
///
/// Pods as rows (from) and columns (to), and everyone outside the cluster. Without --port, the ports that each
/// destination names in its containers are asked about, and every port where it names none.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir matrix -f examples/shop/manifests\n  weir matrix -f examples/shop/manifests --port 5432 -o svg > shop.svg"
)]
pub(crate) struct Matrix {
    #[command(flatten)]
    source: Source,
    /// A port at the destination: a number or the name of a container port [repeatable]
    #[arg(long, value_name = "PORT[/PROTOCOL]")]
    port: Vec<PortArg>,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "text")]
    output: MatrixFormat,
}

/// The forms of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MatrixFormat {
    /// A table
    Text,
    /// For programs
    Json,
    /// For people and programs
    Yaml,
    /// A graph for Graphviz
    Dot,
    /// A picture
    Svg,
}

impl Matrix {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let loaded = self.source.load_and_mention()?;
        let state = State::new(loaded.world);
        let in_namespace = |id: &PodId| self.source.namespace().is_none_or(|n| *id.namespace == *n);
        let question = Question { state: &state, ports: &self.port, owners: &loaded.owners };
        let per_pod = matches!(self.output, MatrixFormat::Json | MatrixFormat::Yaml);
        let reach = question.answer(in_namespace, if per_pod { usize::MAX } else { MANY });
        match self.output {
            MatrixFormat::Text => present::matrix::write(out, &reach)?,
            MatrixFormat::Json => present::value(out, Structured::Json, &Answer::from(&reach))?,
            MatrixFormat::Yaml => present::value(out, Structured::Yaml, &Answer::from(&reach))?,
            MatrixFormat::Dot => out.write_all(present::dot::graph(&reach).as_bytes())?,
            MatrixFormat::Svg => out.write_all(present::svg::picture(&reach).as_bytes())?,
        }
        Ok(Exit::Yes)
    }
}

/// More pods than this, and those that are alike share a row.
const MANY: usize = 24;

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

struct Question<'a> {
    state: &'a State,
    ports: &'a [PortArg],
    owners: &'a BTreeMap<PodId, String>,
}

/// A row and column: ends that are alike, or several such if they share a name.
struct Line<'a> {
    /// The pods; none for what is outside.
    pods: Vec<&'a PodId>,
    alike: Vec<Vec<End<'a>>>,
}

impl Question<'_> {
    fn answer(&self, wanted: impl Fn(&PodId) -> bool, many: usize) -> Reach {
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

#[derive(Serialize)]
struct Answer<'a> {
    asked: &'a str,
    ends: &'a [String],
    connections: Vec<Connection<'a>>,
}

#[derive(Serialize)]
struct Connection<'a> {
    from: &'a str,
    to: &'a str,
    reach: &'static str,
    allowed: Vec<String>,
    denied: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    partly: Vec<String>,
}

impl<'a> From<&'a Reach> for Answer<'a> {
    fn from(reach: &'a Reach) -> Self {
        let connections = reach.connections().map(|(from, to, cell)| Connection {
            from,
            to,
            reach: match cell.word() {
                Word::All => "all",
                Word::Some => "some",
                Word::None => "none",
            },
            allowed: spell(&cell.allowed),
            denied: spell(&cell.denied),
            partly: spell(&cell.partly),
        });
        Answer { asked: &reach.asked, ends: &reach.ends, connections: connections.collect() }
    }
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
