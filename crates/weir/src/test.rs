use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_api::Case;
use weir_model::{Finding, Severity, Verdict};

use crate::{
    exit::Exit,
    failure::Failure,
    present::{self, Structured},
    reach::State,
    source, why,
};

/// Run policy tests
///
/// Every probe is asked of the compiled rules, and of a second, slower reading of the API's text; the two must agree.
/// The closing line is `N passed, M failed`. Exit status 1 if anything failed.
#[derive(Args)]
#[command(after_help = "Example:\n  weir test examples/shop/tests.yaml")]
pub(crate) struct Test {
    /// Files with policy tests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What decides: the compiled rules in memory, or a kernel
    #[arg(long, value_name = "NAME", default_value = "sim")]
    datapath: String,
    /// How to print the results
    #[arg(short, long, value_enum, default_value = "text")]
    output: TestFormat,
}

/// The forms of test results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TestFormat {
    /// What failed and why, and how many
    Text,
    /// For programs
    Json,
    /// For CI systems
    Junit,
}

impl Test {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        source::known_datapath(&self.datapath, &["sim"])?;
        let mut run = Run::default();
        let mut unreadable = None;
        for file in &source::case_files(&self.files)? {
            let cases = read(file)?;
            if !self.files.contains(file) && is_no_test(&cases) {
                continue;
            }
            if cases.is_empty() {
                let hint = "a policy test has `probes:`; name a file that has some";
                return Err(Failure::new(format!("no tests in {}", file.display()), hint).into());
            }
            for case in cases {
                unreadable = unreadable.or_else(|| syntax_error(&case));
                run.add(judge(case));
            }
        }
        if run.cases.is_empty() {
            let hint = "a policy test has `probes:`; name a file that has some";
            return Err(Failure::new("there are no tests in these folders", hint).into());
        }
        match self.output {
            TestFormat::Text => present::tests::write(out, &run)?,
            TestFormat::Json => present::value(out, Structured::Json, &run)?,
            TestFormat::Junit => out.write_all(present::junit::report(&run).as_bytes())?,
        }
        out.flush()?;
        match unreadable {
            Some(error) => Err(error.into()),
            None => Ok(Exit::when(run.failed == 0)),
        }
    }
}

/// All results. The shape of `-o json` is a contract.
#[derive(Default, Serialize)]
pub(crate) struct Run {
    /// How many probes were as expected.
    pub(crate) passed: usize,
    /// How many were not, or could not be tried.
    pub(crate) failed: usize,
    /// The cases, in order.
    pub(crate) cases: Vec<CaseResult>,
}

/// The result of one case.
#[derive(Serialize)]
pub(crate) struct CaseResult {
    /// Its name.
    pub(crate) name: String,
    /// The probes, in order.
    pub(crate) probes: Vec<ProbeResult>,
    /// Why the case as a whole has failed, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Where it was written.
    #[serde(skip)]
    pub(crate) place: String,
    /// What reading it found.
    #[serde(skip)]
    pub(crate) findings: Vec<Finding>,
}

/// The result of one probe.
#[derive(Serialize)]
pub(crate) struct ProbeResult {
    /// Who connects: `namespace/pod` or an address.
    pub(crate) from: String,
    /// To whom.
    pub(crate) to: String,
    /// The port at the destination.
    pub(crate) port: u16,
    /// The transport.
    pub(crate) protocol: String,
    /// What should happen.
    pub(crate) expect: String,
    /// What would happen.
    pub(crate) verdict: String,
    /// What decided.
    pub(crate) why: String,
    /// Where it was written.
    #[serde(skip)]
    pub(crate) place: String,
    /// Whether it counts as passed.
    #[serde(skip)]
    pub(crate) passed: bool,
    /// Whether there was a connection to ask about.
    #[serde(skip)]
    pub(crate) tried: bool,
    /// What its author says about it.
    #[serde(skip)]
    pub(crate) note: Option<String>,
}

impl CaseResult {
    /// How many probes passed and failed; a case with an error has failed in all of them, and at least once.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let passed = self.probes.iter().filter(|probe| probe.passed).count();
        match self.error {
            Some(_) => (0, self.probes.len().max(1)),
            None => (passed, self.probes.len() - passed),
        }
    }
}

impl Run {
    fn add(&mut self, case: CaseResult) {
        let (passed, failed) = case.counts();
        self.passed += passed;
        self.failed += failed;
        self.cases.push(case);
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<Case>> {
    let bytes = source::read(file)?;
    Ok(weir_api::cases(file.display().to_string().into(), &bytes))
}

/// Whether a file that was found in a folder has no tests in it: the manifests of tests may lie beside them.
fn is_no_test(cases: &[Case]) -> bool {
    cases.iter().all(|case| case.probes.is_empty() && syntax_error(case).is_none())
}

fn syntax_error(case: &Case) -> Option<Failure> {
    let finding = case.findings.iter().find(|finding| finding.code == "syntax")?;
    let place = finding.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
    Some(Failure::new(format!("{place}{}", finding.message), finding.hint.clone()))
}

/// Tries every probe of a case.
fn judge(mut case: Case) -> CaseResult {
    let mut error = None;
    if !case.manifests.is_empty() {
        match source::manifests_of(&case) {
            Ok(manifests) => case.join(manifests),
            Err(cause) => error = Some(format!("{}: {cause:#}", case.place)),
        }
    }
    let Case { name, place, objects, probes, findings, .. } = case;
    let grave: Vec<&Finding> =
        findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    if let Some(first) = grave.first() {
        error.get_or_insert_with(|| match grave.len() {
            1 => describe(first),
            many => format!("{}, and {} more", describe(first), many - 1),
        });
    }
    let state = State::new(objects.into_iter().collect());
    let mut results = Vec::with_capacity(probes.len());
    for probe in probes {
        let (verdict, why) = match probe.flow(&state.world) {
            Ok(flow) => {
                let verdict = state.program.verdict(&flow);
                let oracle = weir_oracle::verdict(&state.world, &flow);
                if verdict != oracle {
                    error.get_or_insert_with(|| {
                        format!(
                            "weir contradicts itself about {flow}: the rules say {verdict}, the oracle {oracle}; please report this"
                        )
                    });
                }
                (Some(verdict), why::line(&weir_engine::explain(&state.program, &flow)))
            }
            Err(problem) => {
                error.get_or_insert_with(|| format!("{}:{}: {problem}", place.file, probe.line));
                (None, problem.to_string())
            }
        };
        results.push(ProbeResult {
            from: probe.from.to_string(),
            to: probe.to.to_string(),
            port: probe.port,
            protocol: probe.protocol.to_string(),
            expect: probe.expect.to_string(),
            // What cannot be tried does not pass.
            verdict: verdict.unwrap_or(Verdict::Deny).to_string(),
            why,
            place: format!("{}:{}", place.file, probe.line),
            passed: verdict == Some(probe.expect),
            tried: verdict.is_some(),
            note: probe.note,
        });
    }
    CaseResult { name, probes: results, error, place: place.to_string(), findings }
}

fn describe(finding: &Finding) -> String {
    let place = finding.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
    let object = match finding.object.is_empty() {
        true => String::new(),
        false => format!("{} ", finding.object),
    };
    let field = match finding.field.is_empty() {
        true => String::new(),
        false => format!("{}: ", finding.field),
    };
    format!("{place}{object}{field}{}", finding.message)
}
