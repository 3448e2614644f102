//! Results for code hosts: remarks beside the lines of a change, and tables for comments.
//!
//! ```text
//!  findings, connections, probes ──► Remark ──► sarif, github
//!                                └─► Page   ──► markdown
//! ```

pub(crate) mod diff;
pub(crate) mod findings;
mod github;
pub(crate) mod markdown;
pub(crate) mod matrix;
mod sarif;
pub(crate) mod tests;

use std::io::Write;

use weir_model::{Location, Severity};

use self::sarif::SarifLog;
use super::Structured;
use crate::suppression::SuppressionSource;

/// A format for remarks beside lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemarkFormat {
    /// SARIF 2.1.0.
    Sarif,
    /// Workflow commands of GitHub Actions.
    Github,
}

/// A result that belongs to a line.
#[derive(Clone, Debug)]
pub(crate) struct Remark {
    /// The code of a finding, or the kind of the result.
    pub(crate) code: &'static str,
    /// The severity.
    pub(crate) severity: Severity,
    /// The file and line.
    pub(crate) location: Option<Location>,
    /// The object, and the field in it. Empty if there is none.
    pub(crate) about: String,
    /// The text.
    pub(crate) message: String,
    /// Why the author of the manifests has decided to ignore it.
    pub(crate) suppression: Option<RemarkSuppression>,
}

/// A decision to ignore a remark.
#[derive(Clone, Debug)]
pub(crate) struct RemarkSuppression {
    /// The reason.
    pub(crate) reason: String,
    /// Where the reason is written.
    pub(crate) source: SuppressionSource,
}

/// Writes remarks.
pub(crate) fn write(
    out: &mut dyn Write,
    format: RemarkFormat,
    remarks: &[Remark],
) -> anyhow::Result<()> {
    match format {
        RemarkFormat::Sarif => {
            let SarifLog { log, note } = sarif::log(remarks);
            if let Some(note) = note {
                // Standard error may be closed, which is no reason to fail.
                drop(writeln!(anstream::stderr(), "warning: {note}"));
            }
            super::document(out, Structured::Json, &log)
        }
        RemarkFormat::Github => Ok(github::write(out, remarks)?),
    }
}

/// The path of a file in the repository. A file of a revision is `git:REVISION:PATH`.
fn path(file: &str) -> &str {
    let path = match file.strip_prefix("git:") {
        Some(named) => named.split_once(':').map_or(file, |(_, path)| path),
        None => file,
    };
    path.strip_prefix("./").unwrap_or(path)
}
