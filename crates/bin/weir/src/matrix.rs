use std::{collections::BTreeSet, io::Write};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_model::{Pod, PodId};
use weir_reach::{Coverage, MatrixQuery, PortQuery, spell};

use crate::{
    clusters::ClustersArgs,
    exit::Exit,
    failure::{Failure, nearest},
    present::{self, Structured, findings::FindingJson, progress::Progress},
    source::{self, SourceArgs},
};

/// Show which pods reach which
///
/// Rows are sources and columns are destinations: the pods, and everything outside the cluster.
/// Without --port, the matrix covers the named container ports of each destination, or every port
/// if it names none.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir matrix -f examples/shop/manifests\n  weir matrix -f examples/shop/manifests --port 5432 -o svg > shop.svg\n  weir matrix --cluster east=examples/clusterset/east --cluster west=examples/clusterset/west"
)]
pub(crate) struct MatrixCommand {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    clusters: ClustersArgs,
    /// A destination port: a number or the name of a container port [repeatable]
    #[arg(long, value_name = "PORT[/PROTOCOL]")]
    port: Vec<PortQuery>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: MatrixFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MatrixFormat {
    /// A table
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// A graph for Graphviz
    Dot,
    /// An SVG picture
    Svg,
}

impl MatrixCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let loaded = self.source.load_clusters(&self.clusters)?;
        let in_namespace = |id: &PodId| self.source.namespace().is_none_or(|n| *id.namespace == *n);
        self.check_port_names(loaded.world.pods.values().filter(|pod| in_namespace(&pod.id)))?;
        let state = source::compile(loaded.world);
        let assumptions = self.source.pod_network.findings(&state, &loaded.synthetic);
        present::findings::print_some(&assumptions);
        let mut findings = present::findings::to_json(&loaded.findings);
        findings.extend(present::findings::to_json(&assumptions));
        let query = MatrixQuery { state: &state, ports: &self.port, owners: &loaded.owners };
        let per_pod = matches!(self.output, MatrixFormat::Json | MatrixFormat::Yaml);
        let mut progress = Progress::new("evaluating connections");
        let max_rows = if per_pod { usize::MAX } else { MAX_SINGLE_ROWS };
        let matrix = query.evaluate(in_namespace, max_rows, |done, all| progress.report(done, all));
        drop(progress);
        if !per_pod && matrix.ends.len() > MAX_ROWS {
            let rows = present::count(matrix.ends.len(), "row");
            let hint = "select a namespace with -n NAME, or use -o json for everything";
            return Err(
                Failure::new(format!("a matrix of {rows} is too large to print"), hint).into()
            );
        }
        match self.output {
            MatrixFormat::Text => present::matrix::write(out, &matrix)?,
            MatrixFormat::Json => {
                present::value(out, Structured::Json, &MatrixOutput::new(&matrix, findings))?;
            }
            MatrixFormat::Yaml => {
                present::value(out, Structured::Yaml, &MatrixOutput::new(&matrix, findings))?;
            }
            MatrixFormat::Dot => out.write_all(present::dot::graph(&matrix).as_bytes())?,
            MatrixFormat::Svg => out.write_all(present::svg::picture(&matrix).as_bytes())?,
        }
        Ok(Exit::Yes)
    }
}

impl MatrixCommand {
    /// Fails for a port name that no pod defines: its matrix would be empty.
    fn check_port_names<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod> + Clone,
    ) -> Result<(), Failure> {
        let is_a_name = |port: &&PortQuery| port.at(None).is_empty();
        let is_known = |port: &PortQuery| pods.clone().any(|pod| !port.at(Some(pod)).is_empty());
        let Some(port) = self.port.iter().filter(is_a_name).find(|port| !is_known(port)) else {
            return Ok(());
        };
        let all: BTreeSet<&str> = pods.flat_map(|pod| &pod.ports).map(|port| &*port.name).collect();
        let all: Vec<&str> = all.into_iter().collect();
        let hint = match nearest(&port.to_string(), &all).as_slice() {
            [] => "no pod has named ports; give a number".to_owned(),
            near => format!("did you mean {}? A number works too", near.join(" or ")),
        };
        let whose = self.source.namespace().map(|name| format!(" of namespace {name}"));
        Err(Failure::new(format!("no pod{} has a port {port}", whose.unwrap_or_default()), hint))
    }
}

/// The maximum number of pods with a row each; above it, pods that are alike share a row.
const MAX_SINGLE_ROWS: usize = 24;

/// The maximum number of rows to print.
const MAX_ROWS: usize = 200;

#[derive(Serialize)]
struct MatrixOutput<'a> {
    asked: &'a str,
    ends: &'a [String],
    connections: Vec<ConnectionJson<'a>>,
    /// The findings from reading the input.
    findings: Vec<FindingJson>,
}

#[derive(Serialize)]
struct ConnectionJson<'a> {
    from: &'a str,
    to: &'a str,
    reach: &'static str,
    allowed: Vec<String>,
    denied: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    partly: Vec<String>,
}

impl<'a> MatrixOutput<'a> {
    fn new(matrix: &'a weir_reach::Matrix, findings: Vec<FindingJson>) -> Self {
        let connections = matrix.connections().map(|(from, to, cell)| ConnectionJson {
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
        MatrixOutput { asked: &matrix.ports, ends: &matrix.ends, connections, findings }
    }
}
