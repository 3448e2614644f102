//! Presentation: text for people, JSON and YAML for programs, pictures for documents.

pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod dot;
pub(crate) mod drops;
pub(crate) mod explanation;
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
pub(crate) use weir_view::{explanation_view, schema::Schema};

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
