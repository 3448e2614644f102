//! Findings, as lines to read and as data.

use std::io::{self, Write};

use serde::Serialize;
use weir_model::{Finding, Severity};

use super::style::{FAINT, Painted, STRONG, of_severity};

/// A finding as it is printed for programs.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    code: &'a str,
    severity: String,
    file: &'a str,
    line: u32,
    object: &'a str,
    field: &'a str,
    message: &'a str,
    hint: &'a str,
}

impl<'a> From<&'a Finding> for Report<'a> {
    fn from(finding: &'a Finding) -> Self {
        let place = finding.place.as_ref();
        Report {
            code: finding.code,
            severity: finding.severity.to_string(),
            file: place.map_or("", |place| &place.file),
            line: place.map_or(0, |place| place.line),
            object: &finding.object,
            field: &finding.field,
            message: &finding.message,
            hint: &finding.hint,
        }
    }
}

/// Writes findings for people, with what to do about each.
pub(crate) fn write(out: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    for finding in findings {
        let Finding { place, code, severity, object, field, message, hint } = finding;
        let place = place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
        let severity = Painted(of_severity(*severity), severity);
        writeln!(out, "{}{severity}: {message} [{code}]", Painted(STRONG, place))?;
        let about = [object.as_str(), field.as_str()].join(" ");
        if !about.trim().is_empty() {
            writeln!(out, "  {}", Painted(FAINT, about.trim()))?;
        }
        if !hint.is_empty() {
            writeln!(out, "  hint: {hint}")?;
        }
    }
    Ok(())
}

/// Says on standard error what reading the input found, if it matters.
pub(crate) fn mention(findings: &[Finding]) {
    let grave: Vec<Finding> =
        findings.iter().filter(|f| f.severity > Severity::Info).cloned().collect();
    // Standard error may be closed; then there is no one to tell.
    drop(write(&mut anstream::stderr().lock(), &grave));
}
