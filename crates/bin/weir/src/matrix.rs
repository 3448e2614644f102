use std::{collections::BTreeSet, io::Write};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_model::{Pod, PodId};
use weir_reach::{Coverage, MatrixQuery, PortQuery, spell};

use crate::{
    clusters::Clusters,
    exit::Exit,
    failure::{Failure, nearest},
    present::{self, Structured, findings::Report, progress::Progress},
    source::{self, Source},
};

/// Show who reaches whom
///
/// Pods as rows (from) and columns (to), and everyone outside the cluster. Without --port, the ports that each
/// destination names in its containers are asked about, and every port where it names none.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir matrix -f examples/shop/manifests\n  weir matrix -f examples/shop/manifests --port 5432 -o svg > shop.svg\n  weir matrix --cluster east=examples/clusterset/east --cluster west=examples/clusterset/west"
)]
pub(crate) struct Matrix {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    clusters: Clusters,
    /// A port at the destination: a number or the name of a container port [repeatable]
    #[arg(long, value_name = "PORT[/PROTOCOL]")]
    port: Vec<PortQuery>,
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
        let loaded = self.source.load_clusters(&self.clusters)?;
        let findings = present::findings::reports(&loaded.findings);
        let in_namespace = |id: &PodId| self.source.namespace().is_none_or(|n| *id.namespace == *n);
        self.known_ports(loaded.world.pods.values().filter(|pod| in_namespace(&pod.id)))?;
        let state = source::compile(loaded.world);
        let query = MatrixQuery { state: &state, ports: &self.port, owners: &loaded.owners };
        let per_pod = matches!(self.output, MatrixFormat::Json | MatrixFormat::Yaml);
        let mut progress = Progress::new("asking who reaches whom");
        let many = if per_pod { usize::MAX } else { MANY };
        let reach = query.evaluate(in_namespace, many, |done, all| progress.at(done, all));
        drop(progress);
        if !per_pod && reach.ends.len() > DRAWN {
            let rows = present::count(reach.ends.len(), "row");
            let hint = "choose a namespace with -n NAME, or take everything with -o json";
            return Err(
                Failure::new(format!("a matrix of {rows} is too large to look at"), hint).into()
            );
        }
        match self.output {
            MatrixFormat::Text => present::matrix::write(out, &reach)?,
            MatrixFormat::Json => {
                present::value(out, Structured::Json, &Answer::new(&reach, findings))?;
            }
            MatrixFormat::Yaml => {
                present::value(out, Structured::Yaml, &Answer::new(&reach, findings))?;
            }
            MatrixFormat::Dot => out.write_all(present::dot::graph(&reach).as_bytes())?,
            MatrixFormat::Svg => out.write_all(present::svg::picture(&reach).as_bytes())?,
        }
        Ok(Exit::Yes)
    }
}

impl Matrix {
    /// Fails for the name of a port that no pod has: a matrix about it would be empty.
    fn known_ports<'a>(&self, pods: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), Failure> {
        let is_a_name = |port: &&PortQuery| port.at(None).is_empty();
        let is_known = |port: &PortQuery| pods.clone().any(|pod| !port.at(Some(pod)).is_empty());
        let Some(port) = self.port.iter().filter(is_a_name).find(|port| !is_known(port)) else {
            return Ok(());
        };
        let all: BTreeSet<&str> = pods.flat_map(|pod| &pod.ports).map(|port| &*port.name).collect();
        let all: Vec<&str> = all.into_iter().collect();
        let hint = match nearest(&port.to_string(), &all).as_slice() {
            [] => "no pod names its ports; give a number".to_owned(),
            near => format!("did you mean {}? or give a number", near.join(" or ")),
        };
        let whose = self.source.namespace().map(|name| format!(" of namespace {name}"));
        Err(Failure::new(format!("no pod{} has a port {port}", whose.unwrap_or_default()), hint))
    }
}

/// More pods than this, and those that are alike share a row.
const MANY: usize = 24;

/// More rows than this are not drawn.
const DRAWN: usize = 200;

#[derive(Serialize)]
struct Answer<'a> {
    asked: &'a str,
    ends: &'a [String],
    connections: Vec<Connection<'a>>,
    /// What reading the input found.
    findings: Vec<Report>,
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

impl<'a> Answer<'a> {
    fn new(reach: &'a weir_reach::Matrix, findings: Vec<Report>) -> Self {
        let connections = reach.connections().map(|(from, to, cell)| Connection {
            from,
            to,
            reach: match cell.coverage() {
                Coverage::All => "all",
                Coverage::Some => "some",
                Coverage::None => "none",
            },
            allowed: spell(&cell.allowed),
            denied: spell(&cell.denied),
            partly: spell(&cell.partly),
        });
        let connections = connections.collect();
        Answer { asked: &reach.ports, ends: &reach.ends, connections, findings }
    }
}
