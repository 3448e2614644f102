//! Findings, as text.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use weir_model::Finding;
use weir_view::findings::is_relevant;
pub(crate) use weir_view::findings::{FindingJson, to_json};

use super::plain::Plain;
use super::style::{FAINT, Painted, STRONG, of_severity};

/// The message of a finding and its hint.
pub(crate) fn sentence(finding: &Finding) -> String {
    let Finding { message, hint, .. } = finding;
    let text = if hint.is_empty() { message.clone() } else { format!("{message}; {hint}") };
    Plain(&text).to_string()
}

/// Writes findings as text, each with its hint.
pub(crate) fn write<'a>(
    out: &mut dyn Write,
    findings: impl IntoIterator<Item = &'a Finding>,
) -> io::Result<()> {
    for finding in findings {
        let Finding { location, code, severity, field, message, hint, .. } = finding;
        let location =
            location.as_ref().map(|location| format!("{location}: ")).unwrap_or_default();
        let severity = Painted(of_severity(*severity), severity);
        writeln!(out, "{}{severity}: {} [{code}]", Painted(STRONG, location), Plain(message))?;
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

/// Writes the relevant findings to standard error, each once.
pub(crate) fn print_relevant<'a>(findings: impl Iterator<Item = &'a Finding>) {
    let relevant: BTreeSet<&Finding> = findings.filter(|f| is_relevant(f)).collect();
    // Standard error may be closed, which is no reason to fail.
    drop(write(&mut anstream::stderr().lock(), relevant));
}

/// The maximum number of notes about synthetic addresses to print beside an answer.
const MAX_NOTES: usize = 5;

/// Writes some notes to standard error.
pub(crate) fn print_some(notes: &[Finding]) {
    print_relevant(notes.iter().take(MAX_NOTES));
    if notes.len() > MAX_NOTES {
        let more = notes.len() - MAX_NOTES;
        // Standard error may be closed, which is no reason to fail.
        drop(writeln!(anstream::stderr(), "and {more} more; `weir lint` and -o json list all"));
    }
}
