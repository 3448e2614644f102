use std::{io::Write, path::PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_model::{Finding, Severity};

use crate::{
    baseline::Baseline,
    exit::Exit,
    present::{
        self, ReviewFormat, Schema, Structured,
        findings::FindingJson,
        review::{self, Remark, RemarkFormat, markdown::Page},
    },
    source::{self, SourceArgs, is_about},
};

/// Find mistakes in policies
///
/// Reports policies that select no pod, rules that never match, ports that no pod has, egress rules
/// that block DNS, and objects that the API server would reject. Exit status 1 if there is a
/// warning or an error.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir lint -f examples/shop/manifests\n  weir lint -f examples/shop/manifests --fail-on error -o github\n  weir lint -f examples/shop/manifests -o json > known.json"
)]
pub(crate) struct LintCommand {
    #[command(flatten)]
    source: SourceArgs,
    /// The lowest severity for exit status 1
    #[arg(long, value_name = "SEVERITY", value_enum, default_value = "warning")]
    fail_on: FailOn,
    /// Do not report the findings of an earlier `-o json`: same code, file, object and field
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: ReviewFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Warning,
    Error,
}

#[derive(Serialize)]
struct LintOutput {
    findings: Vec<FindingJson>,
}

impl From<&[Finding]> for LintOutput {
    fn from(findings: &[Finding]) -> Self {
        LintOutput { findings: findings.iter().map(FindingJson::from).collect() }
    }
}

impl LintCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let baseline = self.baseline.as_deref().map(Baseline::read).transpose()?;
        let loaded = self.source.load()?;
        let mut findings = loaded.lint();
        let state = source::compile(loaded.world);
        findings.extend(self.source.pod_network.findings(&state, &loaded.synthetic));
        findings.extend(loaded.findings);
        if let Some(namespace) = self.source.namespace() {
            findings.retain(|finding| is_in(finding, namespace));
        }
        findings.sort();
        findings.dedup();
        let all = findings.len();
        if let Some(baseline) = &baseline {
            findings.retain(|finding| !baseline.contains(finding));
        }
        let json = || LintOutput::from(&*findings);
        let remarks = || findings.iter().map(Remark::from).collect::<Vec<_>>();
        match self.output {
            ReviewFormat::Json => present::value(out, Structured::Json, Schema::Lint, &json())?,
            ReviewFormat::Yaml => present::value(out, Structured::Yaml, Schema::Lint, &json())?,
            ReviewFormat::Sarif => review::write(out, RemarkFormat::Sarif, &remarks())?,
            ReviewFormat::Github => review::write(out, RemarkFormat::Github, &remarks())?,
            ReviewFormat::Markdown => {
                let mut page = Page::default();
                review::findings::table(&mut page, &findings);
                page.paragraph(&summary(&findings, all));
                out.write_all(page.finish().as_bytes())?;
            }
            ReviewFormat::Text => {
                present::findings::write(out, &findings)?;
                writeln!(out, "{}", summary(&findings, all))?;
            }
        }
        let allowed = match self.fail_on {
            FailOn::Warning => Severity::Info,
            FailOn::Error => Severity::Warning,
        };
        Ok(Exit::when(findings.iter().all(|finding| finding.severity <= allowed)))
    }
}

/// Whether a finding is about an object of the namespace, or about no object.
fn is_in(finding: &Finding, namespace: &str) -> bool {
    finding.object.is_none() || is_about(finding, namespace)
}

/// The number of findings, of `all` with those of the baseline.
fn summary(findings: &[Finding], all: usize) -> String {
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
    let found = if counts.is_empty() { "nothing found".to_owned() } else { counts.join(", ") };
    match all - findings.len() {
        0 => found,
        known => format!("{found}; not reported: {known} of the baseline"),
    }
}
