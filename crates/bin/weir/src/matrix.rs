use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_kube::ClusterKinds;
use weir_model::{Pod, PodId};
use weir_reach::{Connection, MatrixQuery, PortQuery, Reach, ReachState, RowLimits, spell};
use weir_view::matrix_view::ConnectionJson;

use crate::{
    clusters::ClustersArgs,
    exit::Exit,
    failure::{Failure, nearest},
    ingress::{IngressArgs, RouteSources},
    other_networks,
    present::{
        self, Schema, Structured,
        findings::FindingJson,
        progress::Progress,
        review::{self, RemarkFormat, matrix::EndLocations},
    },
    source::{self, SourceArgs},
};

/// Show which pods reach which
///
/// Rows are sources and columns are destinations: the pods, and everything outside the cluster.
/// With -n, a row stands for the pods of all other namespaces. Without --port, the matrix covers
/// the ports that the containers of each destination declare, or every port if there are none. A
/// cell is closed only if no port at all is open. A question mark stands for connections over
/// networks other than the cluster network, which weir does not judge.
///
/// If the input has Ingresses or Gateway routes, the row `ingress` stands for the pods that serve
/// them. It covers the ports that the routes lead to. If these pods are unknown, everything outside
/// the cluster stands for them.
///
/// With --exposure, it lists for each pod what is open to pods and namespaces that do not exist
/// yet, because a rule selects them by labels or selects every pod.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir matrix -f examples/shop/manifests\n  weir matrix -f examples/shop/manifests --port any\n  weir matrix -f examples/shop/manifests --port 5432 -o svg > shop.svg\n  weir matrix -f examples/shop/manifests -n shop --exposure\n  weir matrix --cluster east=examples/clusterset/east --cluster west=examples/clusterset/west"
)]
pub(crate) struct MatrixCommand {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    clusters: ClustersArgs,
    #[command(flatten)]
    ingress: IngressArgs,
    /// A destination port: a number, the name of a container port, or `any` [repeatable]
    #[arg(long, value_name = "PORT[/PROTOCOL]")]
    port: Vec<PortQuery>,
    /// List what is open to pods and namespaces that do not exist yet
    #[arg(long, conflicts_with = "port")]
    exposure: bool,
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
    /// SARIF 2.1.0: who reaches each pod, at its manifest
    Sarif,
    /// Workflow commands of GitHub Actions, with the same content
    Github,
    /// A Markdown table, for a comment on a pull request
    Markdown,
}

impl MatrixCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let kinds = ClusterKinds::DestinationsAndRoutes;
        let loaded = self.source.load_clusters(&self.clusters, kinds)?;
        let in_namespace = |id: &PodId| self.source.namespace().is_none_or(|n| *id.namespace == *n);
        self.check_port_names(loaded.world.pods.values().filter(|pod| in_namespace(&pod.id)))?;
        let namespace = self.source.namespace();
        let RouteSources { sources, notes } =
            self.ingress.controllers().sources(namespace, &loaded, in_namespace)?;
        let state = source::compile(loaded.world);
        let assumptions = self.source.pod_network.cidrs().findings(&state, &loaded.synthetic);
        present::findings::print_some(&assumptions);
        let has_unjudged = loaded.attachments.values().any(|one| one.primary.is_some());
        // The lists of connections contain only those that are judged.
        let judged = has_unjudged
            .then(|| source::compile(other_networks::judged(&state.world, &loaded.attachments)));
        let listed = judged.as_ref().unwrap_or(&state);
        let mut findings = present::findings::to_json(&loaded.findings);
        findings.extend(present::findings::to_json(&assumptions));
        if self.exposure {
            return self.write_exposure(out, listed, in_namespace, &loaded.owners);
        }
        let query = MatrixQuery {
            state: &state,
            ports: &self.port,
            declared: &loaded.declared,
            owners: &loaded.owners,
            attachments: &loaded.attachments,
            sources: &sources,
        };
        let per_pod = matches!(self.output, MatrixFormat::Json | MatrixFormat::Yaml);
        let mut progress = Progress::new("evaluating connections");
        let limits = if per_pod { NO_LIMITS } else { PRINTED };
        let matrix = query.evaluate(in_namespace, limits, |done, all| progress.report(done, all));
        let matrix = matrix.map_err(too_large)?;
        if !per_pod && matrix.ends.len() > MAX_ROWS {
            return Err(too_large(matrix.ends.len()).into());
        }
        let elsewhere = match self.source.namespace() {
            None => Vec::new(),
            Some(_) => {
                let report = |done, all| progress.report(done, all);
                listed.connections(in_namespace, Reach::OtherPods, &loaded.owners, report)
            }
        };
        drop(progress);
        let remarks = review::matrix::remarks;
        let locations = EndLocations { world: &state.world, owners: &loaded.owners };
        match self.output {
            MatrixFormat::Text => present::matrix::write(out, &matrix, &elsewhere, &notes)?,
            MatrixFormat::Json => {
                let output = MatrixOutput::new(&matrix, &elsewhere, &notes, findings);
                present::value(out, Structured::Json, Schema::Matrix, &output)?;
            }
            MatrixFormat::Yaml => {
                let output = MatrixOutput::new(&matrix, &elsewhere, &notes, findings);
                present::value(out, Structured::Yaml, Schema::Matrix, &output)?;
            }
            MatrixFormat::Dot => out.write_all(present::dot::graph(&matrix).as_bytes())?,
            MatrixFormat::Svg => out.write_all(present::svg::picture(&matrix).as_bytes())?,
            MatrixFormat::Sarif => {
                review::write(out, RemarkFormat::Sarif, &remarks(&matrix, &locations))?;
            }
            MatrixFormat::Github => {
                review::write(out, RemarkFormat::Github, &remarks(&matrix, &locations))?;
            }
            MatrixFormat::Markdown => {
                out.write_all(review::matrix::page(&matrix, &elsewhere, &notes).as_bytes())?;
            }
        }
        Ok(Exit::Yes)
    }
}

impl MatrixCommand {
    fn write_exposure(
        &self,
        out: &mut dyn Write,
        state: &ReachState,
        selected: impl Fn(&PodId) -> bool,
        owners: &BTreeMap<PodId, String>,
    ) -> anyhow::Result<Exit> {
        let networks = self.source.pod_network.cidrs().networks();
        let exposures = state.exposures(selected, &networks, owners);
        let form = match self.output {
            MatrixFormat::Text => {
                present::exposure::write(out, &exposures)?;
                return Ok(Exit::Yes);
            }
            MatrixFormat::Json => Structured::Json,
            MatrixFormat::Yaml => Structured::Yaml,
            MatrixFormat::Sarif | MatrixFormat::Github => {
                let locations = EndLocations { world: &state.world, owners };
                let remarks = review::matrix::exposure_remarks(&exposures, &locations);
                let is_sarif = self.output == MatrixFormat::Sarif;
                let format = if is_sarif { RemarkFormat::Sarif } else { RemarkFormat::Github };
                review::write(out, format, &remarks)?;
                return Ok(Exit::Yes);
            }
            MatrixFormat::Markdown => {
                out.write_all(review::matrix::exposure_page(&exposures).as_bytes())?;
                return Ok(Exit::Yes);
            }
            MatrixFormat::Dot | MatrixFormat::Svg => {
                let hint = "use -o text, json, yaml, sarif, github or markdown";
                return Err(Failure::new("there is no picture of an exposure", hint).into());
            }
        };
        let output = present::exposure::to_json(&exposures);
        present::value(out, form, Schema::Exposure, &output)?;
        Ok(Exit::Yes)
    }

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

/// The limits for JSON and YAML.
const NO_LIMITS: RowLimits = RowLimits { single: usize::MAX, evaluated: usize::MAX };

/// The limits for formats that people look at.
const PRINTED: RowLimits = RowLimits { single: 24, evaluated: 1000 };

/// The maximum number of rows to print.
const MAX_ROWS: usize = 200;

fn too_large(rows: usize) -> Failure {
    let rows = present::count(rows, "row");
    let hint = "select a namespace with -n NAME, or use -o json for everything";
    Failure::new(format!("a matrix of {rows} is too large to print"), hint)
}

#[derive(Serialize)]
struct MatrixOutput<'a> {
    asked: &'a str,
    ends: &'a [String],
    connections: Vec<ConnectionJson<'a>>,
    /// With -n, the open connections with pods of other namespaces.
    #[serde(rename = "otherNamespaces", skip_serializing_if = "Vec::is_empty")]
    elsewhere: Vec<ElsewhereJson<'a>>,
    /// Remarks about the row `ingress`.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    notes: &'a [String],
    /// The findings from reading the input.
    findings: Vec<FindingJson>,
}

#[derive(Serialize)]
struct ElsewhereJson<'a> {
    from: &'a [String],
    to: &'a [String],
    ports: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<String>,
}

impl<'a> MatrixOutput<'a> {
    fn new(
        matrix: &'a weir_reach::Matrix,
        elsewhere: &'a [Connection],
        notes: &'a [String],
        findings: Vec<FindingJson>,
    ) -> Self {
        let connections =
            matrix.connections().map(|(from, to, cell)| ConnectionJson::new(from, to, cell));
        let connections = connections.collect();
        let elsewhere = elsewhere.iter().map(|connection| ElsewhereJson {
            from: &connection.from,
            to: &connection.to,
            ports: spell(&connection.ports),
            family: connection.family.map(|family| family.to_string()),
        });
        let elsewhere = elsewhere.collect();
        let (asked, ends) = (&matrix.ports, &matrix.ends);
        MatrixOutput { asked, ends, connections, elsewhere, notes, findings }
    }
}
