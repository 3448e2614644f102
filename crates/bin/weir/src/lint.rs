use std::{io::Write, mem, path::PathBuf};

use clap::{Args, ValueEnum};
use weir_model::{Direction, Finding, Policy, Severity, Who};
use weir_view::lint_view::LintOutput;

use crate::{
    baseline::Baseline,
    exit::Exit,
    lint_config::{self, LintConfig},
    present::{
        self, ReviewFormat, Schema, Structured,
        review::{self, Remark, RemarkFormat, markdown::Page},
    },
    source::{self, SourceArgs, is_about},
    suppression::suppress,
};

/// Find mistakes in policies
///
/// Reports policies that select no pod, rules that never match, ports that no pod has, egress rules
/// that block DNS, and objects that the API server would reject. Exit status 1 if there is a
/// warning or an error.
///
/// The annotation `ignore-lint.weir.dev/CODE: REASON` of an object, or an entry of weir.yaml,
/// suppresses findings.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir lint -f examples/shop/manifests\n  weir lint -f examples/shop/manifests --fail-on error -o github\n  weir lint -f examples/shop/manifests -o json > known.json\n  weir lint -f examples/shop/manifests --unselected-pods"
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
    /// The findings to ignore [default: weir.yaml beside the manifests or in the current folder]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Also report pods that no policy selects
    #[arg(long)]
    unselected_pods: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: ReviewFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Warning,
    Error,
}

impl LintCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let baseline = self.baseline.as_deref().map(Baseline::read).transpose()?;
        let config = LintConfig::find(self.config.as_deref(), self.source.paths())?;
        let mut loaded = self.source.load()?;
        let mut findings = Vec::new();
        // A large cluster takes much memory, so nothing is copied, and compiled only if it matters.
        if loaded.world.policies.values().any(has_block) && !loaded.synthetic.is_empty() {
            let state = source::compile(mem::take(&mut loaded.world));
            findings = self.source.pod_network.cidrs().findings(&state, &loaded.synthetic);
            loaded.world = state.world;
        }
        loaded.drop_synthetic();
        findings.extend(source::lint(&loaded));
        if self.unselected_pods {
            findings.extend(weir_lint::unselected(&loaded.world));
        }
        findings.extend(loaded.findings);
        findings.sort();
        findings.dedup();
        let (mut findings, mut suppressed) =
            suppress(findings, &loaded.ignores, &config.ignore, lint_config::today());
        if let Some(namespace) = self.source.namespace() {
            findings.retain(|finding| is_in(finding, namespace));
            suppressed.retain(|one| is_in(&one.finding, namespace));
        }
        let all = findings.len();
        if let Some(baseline) = &baseline {
            findings.retain(|finding| !baseline.contains(finding));
        }
        let json = || LintOutput::new(&findings, &suppressed);
        let remarks = || -> Vec<Remark> {
            findings.iter().map(Remark::from).chain(suppressed.iter().map(Remark::from)).collect()
        };
        match self.output {
            ReviewFormat::Json => present::value(out, Structured::Json, Schema::Lint, &json())?,
            ReviewFormat::Yaml => present::value(out, Structured::Yaml, Schema::Lint, &json())?,
            ReviewFormat::Sarif => review::write(out, RemarkFormat::Sarif, &remarks())?,
            ReviewFormat::Github => review::write(out, RemarkFormat::Github, &remarks())?,
            ReviewFormat::Markdown => {
                let mut page = Page::default();
                review::findings::table(&mut page, &findings);
                page.paragraph(&summary(&findings, all, suppressed.len()));
                out.write_all(page.finish().as_bytes())?;
            }
            ReviewFormat::Text => {
                present::findings::write(out, &findings)?;
                writeln!(out, "{}", summary(&findings, all, suppressed.len()))?;
            }
        }
        let allowed = match self.fail_on {
            FailOn::Warning => Severity::Info,
            FailOn::Error => Severity::Warning,
        };
        Ok(Exit::when(findings.iter().all(|finding| finding.severity <= allowed)))
    }
}

/// Whether a rule of the policy names addresses.
fn has_block(policy: &Policy) -> bool {
    let rules = Direction::BOTH.into_iter().filter_map(|direction| policy.rules(direction));
    let mut peers = rules.flatten().flat_map(|rule| rule.peers.iter().flatten());
    peers.any(|peer| matches!(peer.who, Who::Block(_)))
}

/// Whether a finding is about an object of the namespace, or about no object.
fn is_in(finding: &Finding, namespace: &str) -> bool {
    finding.object.is_none() || is_about(finding, namespace)
}

/// The number of findings, of `all` with those of the baseline, and of those that are suppressed.
fn summary(findings: &[Finding], all: usize, suppressed: usize) -> String {
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
    let hidden = [(all - findings.len(), "of the baseline"), (suppressed, "suppressed")];
    let hidden = hidden.into_iter().filter(|(number, _)| *number > 0);
    let hidden: Vec<String> = hidden.map(|(number, why)| format!("{number} {why}")).collect();
    if hidden.is_empty() { found } else { format!("{found}; not reported: {}", hidden.join(", ")) }
}
