use std::io::Write;

use clap::Args;
use serde::Serialize;
use weir_model::{Finding, Severity};

use crate::{
    exit::Exit,
    present::{self, Format, findings::FindingJson},
    source::{SourceArgs, is_about},
};

/// Find mistakes in policies
///
/// Reports policies that select no pod, rules that never match, ports that no pod has, egress rules
/// that block DNS, and objects that the API server would reject. Exit status 1 if there is a
/// warning or an error.
#[derive(Args)]
#[command(after_help = "Example:\n  weir lint -f examples/shop/manifests")]
pub(crate) struct LintCommand {
    #[command(flatten)]
    source: SourceArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(Serialize)]
struct LintOutput {
    findings: Vec<FindingJson>,
}

impl LintCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let loaded = self.source.load()?;
        let mut findings = loaded.lint();
        findings.extend(loaded.findings);
        if let Some(namespace) = self.source.namespace() {
            findings.retain(|finding| is_in(finding, namespace));
        }
        findings.sort();
        findings.dedup();
        match self.output.structured() {
            Some(form) => {
                let findings = findings.iter().map(FindingJson::from).collect();
                present::value(out, form, &LintOutput { findings })?;
            }
            None => {
                present::findings::write(out, &findings)?;
                writeln!(out, "{}", summary(&findings))?;
            }
        }
        Ok(Exit::when(findings.iter().all(|finding| finding.severity == Severity::Info)))
    }
}

/// Whether a finding is about an object of the namespace, or about no object.
fn is_in(finding: &Finding, namespace: &str) -> bool {
    finding.object.is_none() || is_about(finding, namespace)
}

fn summary(findings: &[Finding]) -> String {
    let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
    let words = [
        (count(Severity::Error), "error"),
        (count(Severity::Warning), "warning"),
        (count(Severity::Info), "note"),
    ];
    let counts: Vec<String> = words
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, noun)| present::count(number, noun))
        .collect();
    if counts.is_empty() { "nothing found".to_owned() } else { counts.join(", ") }
}
