//! Findings, as lines to read and as data.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use serde::Serialize;
use weir_model::{Finding, Severity};

use super::plain::Plain;
use super::style::{FAINT, Painted, STRONG, of_severity};

/// A finding as it is printed for programs.
#[derive(Serialize)]
pub(crate) struct Report {
    code: &'static str,
    severity: String,
    file: String,
    line: u32,
    object: String,
    field: String,
    message: String,
    hint: String,
}

impl From<&Finding> for Report {
    fn from(finding: &Finding) -> Self {
        let object = finding.object_text();
        let Finding { location, code, severity, field, message, hint, .. } = finding.clone();
        let (file, line) = location.map_or((String::new(), 0), |p| (p.file.to_string(), p.line));
        Report { code, severity: severity.to_string(), file, line, object, field, message, hint }
    }
}

/// Writes findings for people, with what to do about each.
pub(crate) fn write<'a>(
    out: &mut dyn Write,
    findings: impl IntoIterator<Item = &'a Finding>,
) -> io::Result<()> {
    for finding in findings {
        let Finding { location, code, severity, field, message, hint, .. } = finding;
        let place = location.as_ref().map(|location| format!("{location}: ")).unwrap_or_default();
        let severity = Painted(of_severity(*severity), severity);
        writeln!(out, "{}{severity}: {} [{code}]", Painted(STRONG, place), Plain(message))?;
        let about = format!("{} {field}", finding.object_text());
        if !about.trim().is_empty() {
            writeln!(out, "  {}", Painted(FAINT, about.trim()))?;
        }
        if !hint.is_empty() {
            writeln!(out, "  hint: {}", Plain(hint))?;
        }
    }
    Ok(())
}

/// Says on standard error what reading the input found, if it matters, each finding once.
pub(crate) fn mention<'a>(findings: impl Iterator<Item = &'a Finding>) {
    let grave: BTreeSet<&Finding> = findings.filter(|finding| matters(finding)).collect();
    // Standard error may be closed; then there is no one to tell.
    drop(write(&mut anstream::stderr().lock(), grave));
}

/// What reading the input found, if it matters, as data.
pub(crate) fn reports(findings: &[Finding]) -> Vec<Report> {
    findings.iter().filter(|finding| matters(finding)).map(Report::from).collect()
}

/// Whether an answer should not go without it: what is wrong, and what was left out.
fn matters(finding: &Finding) -> bool {
    finding.severity > Severity::Info || finding.code == "unknown-kind"
}
