use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_api::{Case, Probe};
use weir_model::{Finding, Flow, Location, Object, Severity, Verdict, World};
use weir_reach::ReachState;

use crate::{
    clusters::ClustersArgs,
    datapath::{DatapathKind, Probed, Testing},
    exit::Exit,
    failure::Failure,
    kernel,
    pod_network::PodNetworkArgs,
    present::{
        self, Schema, Structured,
        review::{self, RemarkFormat},
    },
    service, source, why,
};

/// Run policy tests
///
/// Evaluates every probe with the compiled rules and with a second, independent implementation of
/// the API semantics. The two must agree. The last line is `N passed, M failed`. Exit status 1 if a
/// probe fails.
///
/// With `--datapath nftables` or `iptables`, weir builds the pods as network namespaces on this
/// machine and tries real connections. This needs root or unprivileged user namespaces; `iptables`
/// also needs its programs.
///
/// With `--datapath hcn`, weir also evaluates the ACLs of Windows nodes, on any machine. A probe
/// that they cannot express fails. With `--datapath opflex`, weir also evaluates the files for
/// opflex-agent.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir test examples/shop/tests.yaml\n  weir test --datapath nftables examples/shop/tests.yaml\n  weir test --datapath hcn examples/shop/tests.yaml"
)]
pub(crate) struct TestCommand {
    /// Files or folders with policy tests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The datapath to evaluate the probes with
    #[arg(long, value_name = "NAME", value_enum, default_value_t = DatapathKind::Sim)]
    datapath: DatapathKind,
    #[command(flatten)]
    clusters: ClustersArgs,
    #[command(flatten)]
    pod_network: PodNetworkArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: TestFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TestFormat {
    /// Failures with their reasons, and the totals
    Text,
    /// JSON
    Json,
    /// JUnit XML, for CI systems
    Junit,
    /// SARIF 2.1.0, for code hosts
    Sarif,
    /// Workflow commands of GitHub Actions
    Github,
    /// A Markdown table of failures, for a comment on a pull request
    Markdown,
}

impl TestCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let testing = self.datapath.profile().testing;
        if let Testing::InKernel(_) = testing {
            kernel::enter()?;
        }
        let clusters = if self.clusters.is_empty() { None } else { Some(self.clusters.objects()?) };
        let mut all = Vec::new();
        let mut syntax_failure = None;
        for file in &source::case_files(&self.files)? {
            let cases = read_cases(file)?;
            if !self.files.contains(file) && has_no_tests(&cases) {
                continue;
            }
            if cases.is_empty() {
                return Err(without_tests(std::slice::from_ref(file)).into());
            }
            for mut case in cases {
                if let Some((objects, findings)) = &clusters {
                    put_into_clusters(&mut case, objects)?;
                    case.findings.extend_from_slice(findings);
                }
                syntax_failure = syntax_failure.or_else(|| syntax_error(&case));
                all.push(case);
            }
        }
        let mut run = Run::default();
        for case in evaluate_all(all, testing, &self.pod_network) {
            run.add(case);
        }
        if run.cases.is_empty() {
            return Err(without_tests(&self.files).into());
        }
        match self.output {
            TestFormat::Text => present::tests::write(out, &run)?,
            TestFormat::Json => present::value(out, Structured::Json, Schema::Test, &run)?,
            TestFormat::Junit => out.write_all(present::junit::report(&run).as_bytes())?,
            TestFormat::Sarif => {
                review::write(out, RemarkFormat::Sarif, &review::tests::remarks(&run))?;
            }
            TestFormat::Github => {
                review::write(out, RemarkFormat::Github, &review::tests::remarks(&run))?;
            }
            TestFormat::Markdown => out.write_all(review::tests::page(&run).as_bytes())?,
        }
        out.flush()?;
        match syntax_failure {
            Some(error) => Err(error.into()),
            None => Ok(Exit::when(run.failed == 0)),
        }
    }
}

/// The error for files and folders without tests.
pub(crate) fn without_tests(paths: &[PathBuf]) -> Failure {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let hint = "a test is a .yaml or .json file with `manifests: [FOLDER]` and `probes: [{from: {pod: shop/web}, to: {pod: shop/db}, port: 5432, expect: deny}]`; \
        see docs/reference/policy-tests.md, and examples/shop/tests.yaml for an example";
    Failure::new(format!("there are no tests in {}", paths.join(", ")), hint)
}

/// All results. The shape of `-o json` is a contract.
#[derive(Default, Serialize)]
pub(crate) struct Run {
    /// The number of probes that passed.
    pub(crate) passed: usize,
    /// The number of probes that failed or could not be tried.
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
    /// Why the whole case failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The file and line.
    #[serde(skip)]
    pub(crate) location: Location,
    /// The findings from reading it.
    #[serde(skip)]
    pub(crate) findings: Vec<Finding>,
}

/// The result of one probe.
#[derive(Serialize)]
pub(crate) struct ProbeResult {
    /// The source: `namespace/pod` or an address.
    pub(crate) from: String,
    /// The destination.
    pub(crate) to: String,
    /// The destination port.
    pub(crate) port: u16,
    /// The transport protocol.
    pub(crate) protocol: String,
    /// The expected verdict.
    pub(crate) expect: String,
    /// The actual verdict.
    pub(crate) verdict: String,
    /// The reason for the verdict.
    pub(crate) why: String,
    /// The synthetic addresses that the verdict depends on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) assumptions: Vec<String>,
    /// The file and line.
    #[serde(skip)]
    pub(crate) location: Location,
    /// Whether the verdict is the expected one.
    #[serde(skip)]
    pub(crate) passed: bool,
    /// Whether the probe names a connection that can be evaluated.
    #[serde(skip)]
    pub(crate) tried: bool,
    /// The requested IP family.
    #[serde(skip)]
    pub(crate) family: Option<String>,
    /// The note of its author.
    #[serde(skip)]
    pub(crate) note: Option<String>,
}

impl CaseResult {
    /// The numbers of passed and failed probes. In a case with an error all probes fail, and at
    /// least one.
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

fn read_cases(file: &Path) -> anyhow::Result<Vec<Case>> {
    let bytes = source::read_file(file)?;
    Ok(weir_api::cases(file.display().to_string().into(), &bytes))
}

/// Adds the objects of the given clusters to a case.
fn put_into_clusters(case: &mut Case, objects: &[Object]) -> Result<(), Failure> {
    if !case.objects.is_empty() || !case.manifests.is_empty() {
        let what = format!("{}: with --cluster, a test may contain only probes", case.location);
        return Err(Failure::new(
            what,
            "move its objects and manifests to the folder of a cluster",
        ));
    }
    case.replace_objects(objects.to_vec());
    Ok(())
}

/// Whether a file of a folder has no tests: manifests and tests can share a folder.
fn has_no_tests(cases: &[Case]) -> bool {
    cases.iter().all(|case| case.probes.is_empty() && syntax_error(case).is_none())
}

fn syntax_error(case: &Case) -> Option<Failure> {
    let finding = case.findings.iter().find(|finding| finding.code == "syntax")?;
    let location =
        finding.location.as_ref().map(|location| format!("{location}: ")).unwrap_or_default();
    Some(Failure::new(format!("{location}{}", finding.message), finding.hint.clone()))
}

/// The maximum number of cases that run concurrently in the kernel.
const MAX_CONCURRENT_CASES: usize = 6;

/// Evaluates all cases. Returns the results in order. In the kernel several cases run concurrently,
/// because most of the time is spent waiting for packets that were dropped.
fn evaluate_all(
    cases: Vec<Case>,
    testing: Testing,
    pod_network: &PodNetworkArgs,
) -> Vec<CaseResult> {
    if let Testing::InMemory(_) = testing {
        return cases.into_iter().map(|case| evaluate(case, testing, pod_network)).collect();
    }
    let waiting = Mutex::new(cases.into_iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..MAX_CONCURRENT_CASES {
            scope.spawn(|| {
                while let Some((at, case)) = next() {
                    let result = evaluate(case, testing, pod_network);
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(at, result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// Evaluates every probe of a case.
fn evaluate(mut case: Case, testing: Testing, pod_network: &PodNetworkArgs) -> CaseResult {
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
    let Case { name, location, objects, probes, findings, synthetic, .. } = case;
    let mut error = error.or_else(|| first_error(&findings));
    let mut world: World = objects.into_iter().collect();
    let synthetic = pod_network.readdress(&mut world, synthetic).unwrap_or_else(|failure| {
        error = error.take().or_else(|| Some(failure.to_string()));
        BTreeSet::new()
    });
    let state = source::compile(world);
    let flow = |probe: &Probe| {
        let flow = probe.flow(&state.world).map_err(|problem| problem.to_string())?;
        match service::at_address(&state.world, flow.to) {
            Some(service) => Err(format!(
                "{} is the address of Service {}, and policies apply to its backends; give a pod \
                 behind it, and the port of the pod",
                flow.to, service.id
            )),
            None => Ok(flow),
        }
    };
    let flows: Vec<Result<Flow, String>> = probes.iter().map(flow).collect();
    let known: Vec<Flow> = flows.iter().flatten().copied().collect();
    let probed = match testing {
        Testing::InMemory(probe) => probe(&state, &known),
        // The pods of a broken case may not be buildable.
        Testing::InKernel(_) if error.is_some() => Ok(Vec::new()),
        Testing::InKernel(filter) => kernel::verdicts(&state.world, &known, filter)
            .map(|verdicts| verdicts.into_iter().map(Probed::from).collect()),
    };
    let (probed, failure) = match probed {
        Ok(probed) => (probed, None),
        Err(cause) => (Vec::new(), Some(format!("{location}: {:#}", anyhow::Error::from(cause)))),
    };
    let mut error = error.or(failure);
    let mut probed = probed.into_iter();
    let mut results = Vec::with_capacity(probes.len());
    for (probe, flow) in probes.into_iter().zip(flows) {
        let line = Location { file: location.file.clone(), line: probe.line };
        let assumptions = match &flow {
            Ok(flow) => pod_network.notes(&state, &synthetic, flow),
            Err(_) => Vec::new(),
        };
        let (verdict, why) = match flow {
            Ok(flow) => {
                let (verdict, why, bug) = judge(&state, &flow, probed.next());
                error = error.or(bug);
                (Some(verdict), why)
            }
            Err(problem) => {
                error = error.or_else(|| Some(format!("{line}: {problem}")));
                (None, problem)
            }
        };
        results.push(ProbeResult {
            from: probe.from.to_string(),
            to: probe.to.to_string(),
            port: probe.port,
            protocol: probe.protocol.to_string(),
            expect: probe.expect.to_string(),
            // A probe that cannot be tried fails.
            verdict: verdict.unwrap_or(Verdict::Deny).to_string(),
            why,
            assumptions,
            location: line,
            passed: verdict == Some(probe.expect),
            tried: verdict.is_some(),
            family: probe.family.map(|family| family.to_string()),
            note: probe.note,
        });
    }
    CaseResult { name, probes: results, error, location, findings }
}

/// The verdict of the datapath and its reason. A third value reports a bug: the compiled rules, the
/// oracle and the datapath disagree. Without an answer of the datapath, the compiled rules decide.
fn judge(
    state: &ReachState,
    flow: &Flow,
    probed: Option<Probed>,
) -> (Verdict, String, Option<String>) {
    let compiled = state.program.verdict(flow);
    let oracle = weir_oracle::verdict(&state.world, flow);
    let Probed { verdict: real, shortfall } = probed.unwrap_or(compiled.into());
    let shortfall = shortfall.filter(|_| real == Verdict::Deny && compiled == Verdict::Allow);
    let differs = compiled != oracle || (compiled != real && shortfall.is_none());
    let bug = differs.then(|| {
        format!(
            "bug in weir, please report it: for {flow} the compiled rules {compiled}, the oracle {oracle}, the datapath {real}"
        )
    });
    let why = match shortfall {
        Some(shortfall) => {
            format!("allowed by policy, but the datapath cannot express it: {shortfall}")
        }
        None => why::line(&weir_engine::explain(&state.program, flow)),
    };
    (real, why, bug)
}

/// Describes the first finding that is an error, and the number of others.
fn first_error(findings: &[Finding]) -> Option<String> {
    let mut errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let first = describe(errors.next()?);
    Some(match errors.count() {
        0 => first,
        others => format!("{first}, and {others} more"),
    })
}

fn describe(finding: &Finding) -> String {
    let location =
        finding.location.as_ref().map(|location| format!("{location}: ")).unwrap_or_default();
    let object = finding.object.as_ref().map(|object| format!("{object} ")).unwrap_or_default();
    let field = match &*finding.field {
        "" => String::new(),
        field => format!("{field}: "),
    };
    format!("{location}{object}{field}{}", finding.message)
}
