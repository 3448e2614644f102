//! Presentation: text for people, JSON and YAML for programs, pictures for documents.

pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod dot;
pub(crate) mod drops;
pub(crate) mod explanation;
pub(crate) mod explanation_view;
pub(crate) mod exposure;
pub(crate) mod findings;
pub(crate) mod flows;
pub(crate) mod junit;
pub(crate) mod matrix;
pub(crate) mod plain;
pub(crate) mod program;
pub(crate) mod progress;
pub(crate) mod recommendation;
pub(crate) mod review;
pub(crate) mod service_view;
pub(crate) mod status;
pub(crate) mod style;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod tests;
pub(crate) mod wrap;
pub(crate) mod yaml;

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;
use weir_model::{Peers, Ports, Rule};

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// An output format of commands whose result belongs to lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReviewFormat {
    /// Text for people
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// SARIF 2.1.0, for code hosts
    Sarif,
    /// Workflow commands of GitHub Actions
    Github,
    /// Markdown, for a comment on a pull request
    Markdown,
}

/// A format that needs no code per answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Structured {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

impl Format {
    /// The structured format, if it is one.
    pub(crate) fn structured(self) -> Option<Structured> {
        match self {
            Format::Text => None,
            Format::Json => Some(Structured::Json),
            Format::Yaml => Some(Structured::Yaml),
        }
    }
}

/// The schema of an output. docs/reference/schemas has a file for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schema {
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has eBPF"))]
    DatapathDump,
    Diff,
    Drop,
    Drops,
    Explain,
    Exposure,
    Lint,
    Matrix,
    Names,
    PoliciesUnused,
    Recommend,
    Render,
    RenderCluster,
    RenderHcn,
    RenderLive,
    RenderOpflex,
    StatusNodes,
    StatusPolicy,
    Test,
    Version,
}

impl Schema {
    /// The schema with its version. The version grows when a field is removed or changes its meaning.
    fn version(self) -> &'static str {
        match self {
            Schema::DatapathDump => "weir.dev/datapath-dump/v1",
            Schema::Diff => "weir.dev/diff/v1",
            Schema::Drop => "weir.dev/drop/v1",
            Schema::Drops => "weir.dev/drops/v1",
            Schema::Explain => "weir.dev/explain/v1",
            Schema::Exposure => "weir.dev/exposure/v1",
            Schema::Lint => "weir.dev/lint/v1",
            Schema::Matrix => "weir.dev/matrix/v1",
            Schema::Names => "weir.dev/names/v1",
            Schema::PoliciesUnused => "weir.dev/policies-unused/v1",
            Schema::Recommend => "weir.dev/recommend/v1",
            Schema::Render => "weir.dev/render/v1",
            Schema::RenderCluster => "weir.dev/render-cluster/v1",
            Schema::RenderHcn => "weir.dev/render-hcn/v1",
            Schema::RenderLive => "weir.dev/render-live/v1",
            Schema::RenderOpflex => "weir.dev/render-opflex/v1",
            Schema::StatusNodes => "weir.dev/status-nodes/v1",
            Schema::StatusPolicy => "weir.dev/status-policy/v1",
            Schema::Test => "weir.dev/test/v1",
            Schema::Version => "weir.dev/version/v1",
        }
    }

    /// The value as JSON, with the version of its schema. The value must serialize as a map.
    pub(crate) fn tag_value<T: Serialize>(self, value: &T) -> serde_json::Value {
        serde_json::to_value(self.tag(value)).unwrap_or_default()
    }

    /// Adds the version to a value, which must serialize as a map.
    pub(crate) fn tag<T: Serialize>(self, value: &T) -> impl Serialize {
        #[derive(Serialize)]
        struct Tagged<'a, T> {
            #[serde(rename = "schemaVersion")]
            version: &'static str,
            #[serde(flatten)]
            value: &'a T,
        }
        Tagged { version: self.version(), value }
    }
}

/// Writes a value as JSON or YAML, with the version of its schema.
pub(crate) fn value(
    out: &mut dyn Write,
    form: Structured,
    schema: Schema,
    value: &impl Serialize,
) -> anyhow::Result<()> {
    document(out, form, &schema.tag(value))
}

/// Writes a value as JSON or YAML, as it is.
pub(crate) fn document(
    out: &mut dyn Write,
    form: Structured,
    value: &impl Serialize,
) -> anyhow::Result<()> {
    match form {
        Structured::Json => {
            serde_json::to_writer_pretty(&mut *out, value).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        Structured::Yaml => out.write_all(yaml::text(&serde_json::to_value(value)?).as_bytes())?,
    }
    Ok(())
}

/// `1 pod`, `2 pods`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = match noun.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{noun}s"),
    };
    if number == 1 { format!("1 {noun}") } else { format!("{number} {plural}") }
}

/// The most ports that the text of a rule lists. All peers of a rule have its ports, so longer lists
/// would multiply.
const MAX_PORTS: usize = 100;

/// The ports of a rule. Empty for a set of named ports, which contains the ports itself.
pub(crate) fn ports(rule: &Rule) -> String {
    match (&rule.peers, &rule.ports) {
        (Peers::PortSet(_), _) => String::new(),
        (_, Ports::Of(list)) => join(list.iter(), ", "),
        (_, ports) => ports.to_string(),
    }
}

/// Joins ports, or the names of ports, up to a limit.
pub(crate) fn join(list: impl ExactSizeIterator<Item = impl ToString>, separator: &str) -> String {
    let more = list.len().saturating_sub(MAX_PORTS);
    let some: Vec<String> = list.take(MAX_PORTS).map(|one| one.to_string()).collect();
    match more {
        0 => some.join(separator),
        more => format!("{} and {more} more", some.join(separator)),
    }
}

#[cfg(test)]
mod cost {
    use super::*;

    #[test]
    fn a_long_list_of_ports_is_cut() {
        assert_eq!(join((1..4).map(|port| port * 10), ", "), "10, 20, 30");
        let long = join(0..250, " or ");
        assert!(long.starts_with("0 or 1 or ") && long.ends_with(" or 99 and 150 more"), "{long}");
    }
}
