use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_api::Case;
use weir_model::{Finding, Flow, Object, Severity, Verdict};

use crate::{
    clusters::Clusters,
    datapath::{DatapathKind, Probed, Testing},
    exit::Exit,
    failure::Failure,
    kernel,
    present::{self, Structured},
    source, why,
};

/// Run policy tests
///
/// Every probe is asked of the compiled rules, and of a second, slower reading of the API's text; the two must agree.
/// With `--datapath nftables` or `iptables` the pods are network namespaces on this machine, and real connections are tried between
/// them; this needs root, or a kernel that lets everyone make user namespaces, and for `iptables` its programs.
/// With `--datapath hcn` the ACLs that Windows nodes would get are read, too, on any machine; what they cannot express fails.
/// With `--datapath opflex` the files for opflex-agent are written, and read back as it reads them.
/// The closing line is `N passed, M failed`. Exit status 1 if anything failed.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir test examples/shop/tests.yaml\n  weir test --datapath nftables examples/shop/tests.yaml\n  weir test --datapath hcn examples/shop/tests.yaml"
)]
pub(crate) struct Test {
    /// Files with policy tests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What decides: `sim`, the compiled rules in memory, `nftables` or `iptables`, a real kernel with real packets, `hcn`, the ACLs of Windows,
    /// or `opflex`, the files for opflex-agent
    #[arg(long, value_name = "NAME", value_enum, default_value_t = DatapathKind::Sim)]
    datapath: DatapathKind,
    #[command(flatten)]
    clusters: Clusters,
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
        let testing = self.datapath.backend().testing;
        if let Testing::InKernel(_) = testing {
            kernel::enter()?;
        }
        let clusters = match self.clusters.is_empty() {
            true => None,
            false => Some(self.clusters.objects()?),
        };
        let mut all = Vec::new();
        let mut unreadable = None;
        for file in &source::case_files(&self.files)? {
            let cases = read(file)?;
            if !self.files.contains(file) && is_no_test(&cases) {
                continue;
            }
            if cases.is_empty() {
                return Err(without_tests(std::slice::from_ref(file)).into());
            }
            for mut case in cases {
                if let Some((objects, findings)) = &clusters {
                    in_clusters(&mut case, objects)?;
                    case.findings.extend_from_slice(findings);
                }
                unreadable = unreadable.or_else(|| syntax_error(&case));
                all.push(case);
            }
        }
        let mut run = Run::default();
        judge_all(all, testing).into_iter().for_each(|case| run.add(case));
        if run.cases.is_empty() {
            return Err(without_tests(&self.files).into());
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

/// There is nothing to test in files or folders.
pub(crate) fn without_tests(paths: &[PathBuf]) -> Failure {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let hint = "a test is a .yaml or .json file with `probes: [{from: {pod: shop/web}, to: {pod: shop/db}, port: 5432, expect: deny}]`, and `manifests: [FOLDER]` that they are about; \
        docs/reference/policy-tests.md describes it, and examples/shop/tests.yaml has some";
    Failure::new(format!("there are no tests in {}", paths.join(", ")), hint)
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
    /// The family it asks for.
    #[serde(skip)]
    pub(crate) family: Option<String>,
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

/// Puts a case into the clusters that were named.
fn in_clusters(case: &mut Case, objects: &[Object]) -> Result<(), Failure> {
    if !case.objects.is_empty() || !case.manifests.is_empty() {
        let what = format!("{}: with --cluster, a test has probes and nothing else", case.location);
        return Err(Failure::new(
            what,
            "put its objects and manifests into the folder of a cluster",
        ));
    }
    case.put_into(objects.to_vec());
    Ok(())
}

/// Whether a file that was found in a folder has no tests in it: the manifests of tests may lie beside them.
fn is_no_test(cases: &[Case]) -> bool {
    cases.iter().all(|case| case.probes.is_empty() && syntax_error(case).is_none())
}

fn syntax_error(case: &Case) -> Option<Failure> {
    let finding = case.findings.iter().find(|finding| finding.code == "syntax")?;
    let place = finding.location.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
    Some(Failure::new(format!("{place}{}", finding.message), finding.hint.clone()))
}

/// Cases that run in kernels at once.
const AT_ONCE: usize = 6;

/// Tries every probe of all cases; the results in order. In a kernel most of the time is spent waiting for packets that do
/// not come, so there several cases run at once.
fn judge_all(cases: Vec<Case>, testing: Testing) -> Vec<CaseResult> {
    if let Testing::InMemory(_) = testing {
        return cases.into_iter().map(|case| judge(case, testing)).collect();
    }
    let waiting = Mutex::new(cases.into_iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((at, case)) = next() {
                    let result = judge(case, testing);
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(at, result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// Tries every probe of a case.
fn judge(mut case: Case, testing: Testing) -> CaseResult {
    let mut error = None;
    if !case.manifests.is_empty() {
        match source::manifests_of(&case) {
            Ok(manifests) => {
                error = manifests.missing().next().map(describe);
                case.join(manifests);
            }
            Err(cause) => error = Some(format!("{}: {cause:#}", case.location)),
        }
    }
    let Case { name, location: place, objects, probes, findings, .. } = case;
    let grave: Vec<&Finding> =
        findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    if let Some(first) = grave.first() {
        error.get_or_insert_with(|| match grave.len() {
            1 => describe(first),
            many => format!("{}, and {} more", describe(first), many - 1),
        });
    }
    let state = source::compile(objects.into_iter().collect());
    let flows: Vec<_> = probes.iter().map(|probe| probe.flow(&state.world)).collect();
    let known: Vec<Flow> = flows.iter().flatten().copied().collect();
    let probed = match testing {
        Testing::InMemory(probe) => probe(&state, &known),
        // The pods of a broken case may not be buildable.
        Testing::InKernel(_) if error.is_some() => Ok(Vec::new()),
        Testing::InKernel(filter) => kernel::verdicts(&state.world, &known, filter)
            .map(|verdicts| verdicts.into_iter().map(Probed::from).collect()),
    };
    let mut probed = match probed {
        Ok(probed) => probed.into_iter(),
        Err(cause) => {
            error.get_or_insert(format!("{place}: {:#}", anyhow::Error::from(cause)));
            Vec::new().into_iter()
        }
    };
    let mut results = Vec::with_capacity(probes.len());
    for (probe, flow) in probes.into_iter().zip(flows) {
        let (verdict, why) = match flow {
            Ok(flow) => {
                let compiled = state.program.verdict(&flow);
                let oracle = weir_oracle::verdict(&state.world, &flow);
                let Probed { verdict: real, shortfall } = probed.next().unwrap_or(compiled.into());
                let short =
                    shortfall.filter(|_| real == Verdict::Deny && compiled == Verdict::Allow);
                if compiled != oracle || (compiled != real && short.is_none()) {
                    error.get_or_insert_with(|| {
                        format!(
                            "weir contradicts itself about {flow}: the rules say {compiled}, the oracle {oracle}, the datapath {real}; please report this"
                        )
                    });
                }
                let why = match short {
                    Some(short) => format!("allowed by policy, but not expressed: {short}"),
                    None => why::line(&weir_engine::explain(&state.program, &flow)),
                };
                (Some(real), why)
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
            family: probe.family.map(|family| family.to_string()),
            note: probe.note,
        });
    }
    CaseResult { name, probes: results, error, place: place.to_string(), findings }
}

fn describe(finding: &Finding) -> String {
    let place = finding.location.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
    let object = finding.object.as_ref().map(|object| format!("{object} ")).unwrap_or_default();
    let field = match finding.field.is_empty() {
        true => String::new(),
        false => format!("{}: ", finding.field),
    };
    format!("{place}{object}{field}{}", finding.message)
}
