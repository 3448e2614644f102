use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_api::{Case, CaseObjects, ProbeEnd};
use weir_model::{Finding, Flow, Location, Verdict};

use crate::{
    clusters::ClustersArgs,
    datapath::{DatapathKind, Testing},
    exit::Exit,
    failure::Failure,
    live::LiveTestArgs,
    pod_network::{PodCidrs, PodNetworkArgs},
    present::{
        self, Schema, Structured,
        review::{self, RemarkFormat},
    },
    probing::Prober,
    source,
    test_case::evaluate,
};

/// Run policy tests
///
/// Evaluates every probe with the compiled rules and with a second, independent implementation of
/// the API semantics. The two must agree. The last line is `N passed, M failed`. Exit status 1 if a
/// probe fails.
///
/// With `--datapath nftables`, `iptables` or `ebpf`, weir builds the pods as network namespaces on
/// this machine and tries real connections. This needs root or unprivileged user namespaces;
/// `iptables` also needs its programs, and `ebpf` needs root and Linux 6.6.
///
/// With `--datapath hcn`, weir also evaluates the ACLs of Windows nodes, on any machine. A probe
/// that they cannot express fails. With `--datapath opflex`, weir also evaluates the files for
/// opflex-agent.
///
/// With `--live`, weir tries the probes between the running pods of a cluster: it adds an ephemeral
/// container to each pod that sends, and takes all other objects from the cluster. A port that nothing
/// listens on counts as reached; a UDP server that never answers counts as denied.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir test examples/shop/tests.yaml\n  weir test --datapath nftables examples/shop/tests.yaml\n  weir test --datapath hcn examples/shop/tests.yaml\n  kubectl weir test --live --probe-image REGISTRY/weir:0.1.0 examples/shop/tests.yaml"
)]
pub(crate) struct TestCommand {
    /// Files or folders with policy tests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The datapath to evaluate the probes with
    #[arg(long, value_name = "NAME", value_enum, default_value_t = DatapathKind::Sim)]
    datapath: DatapathKind,
    #[command(flatten)]
    live: LiveTestArgs,
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
        if let Testing::InKernel(filter) = testing {
            (filter.enter)()?;
        }
        let live = self.live.connect()?;
        if live.is_some() && (!self.clusters.is_empty() || self.datapath != DatapathKind::Sim) {
            let what = "--live cannot be combined with --cluster or --datapath";
            return Err(Failure::new(what, "the cluster has its own objects and datapath").into());
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
                if let Some(live) = &live {
                    case.manifests.clear();
                    case.replace_objects(live.objects.clone());
                }
                syntax_failure = syntax_failure.or_else(|| syntax_error(&case));
                all.push(case);
            }
        }
        let mut run = Run::default();
        let prober = live.as_ref().map_or(Prober::Datapath(testing), Prober::Live);
        for case in evaluate_all(all, prober, self.pod_network.cidrs()) {
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
    /// The source: `namespace/pod`, a workload or an address.
    pub(crate) from: String,
    /// The destination.
    pub(crate) to: String,
    /// The destination port; 0 for a name that the destination does not have.
    pub(crate) port: u16,
    /// The name of the port, if the probe gives one.
    #[serde(rename = "portName", skip_serializing_if = "Option::is_none")]
    pub(crate) port_name: Option<String>,
    /// The transport protocol.
    pub(crate) protocol: String,
    /// The expected verdict.
    pub(crate) expect: String,
    /// The actual verdict.
    pub(crate) verdict: String,
    /// The reason for the verdict.
    pub(crate) why: String,
    /// The connections that the probe stands for, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) connections: Vec<ConnectionResult>,
    /// The synthetic addresses that the verdict depends on, and the networks that are not judged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) assumptions: Vec<String>,
    /// The rules that decide about an unexpected verdict, in several lines.
    #[serde(skip)]
    pub(crate) detail: String,
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

/// The result of one connection of a probe.
#[derive(Serialize)]
pub(crate) struct ConnectionResult {
    /// The source: a pod or an address.
    pub(crate) from: String,
    /// The destination: a pod or an address.
    pub(crate) to: String,
    /// The port at the destination.
    pub(crate) port: u16,
    /// The verdict.
    pub(crate) verdict: String,
    /// The reason for the verdict.
    pub(crate) why: String,
    /// The verdict.
    #[serde(skip)]
    pub(crate) decision: Verdict,
}

impl ConnectionResult {
    /// The result for a flow.
    pub(crate) fn new(
        from: &ProbeEnd,
        to: &ProbeEnd,
        flow: &Flow,
        decision: Verdict,
        why: String,
    ) -> Self {
        let (from, to, verdict) = (from.to_string(), to.to_string(), decision.to_string());
        ConnectionResult { from, to, port: flow.port, verdict, why, decision }
    }
}

impl ProbeResult {
    /// The connection, in one line.
    pub(crate) fn about(&self) -> String {
        let ProbeResult { from, to, port, port_name, protocol, .. } = self;
        match port_name {
            None => format!("{from} → {to} {port}/{protocol}"),
            Some(name) if *port == 0 => format!("{from} → {to} port {name}"),
            Some(name) => format!("{from} → {to} {port}/{protocol} ({name})"),
        }
    }
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
fn put_into_clusters(case: &mut Case, objects: &CaseObjects) -> Result<(), Failure> {
    if !case.objects.is_empty() || !case.manifests.is_empty() {
        let what = format!("{}: with --cluster, a test may contain only probes", case.location);
        return Err(Failure::new(
            what,
            "move its objects and manifests to the folder of a cluster",
        ));
    }
    case.replace_objects(objects.clone());
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
fn evaluate_all(cases: Vec<Case>, prober: Prober<'_>, pod_cidrs: PodCidrs<'_>) -> Vec<CaseResult> {
    if !matches!(prober, Prober::Datapath(Testing::InKernel(_))) {
        return cases.into_iter().map(|case| evaluate(case, prober, pod_cidrs)).collect();
    }
    let waiting = Mutex::new(cases.into_iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..MAX_CONCURRENT_CASES {
            scope.spawn(|| {
                while let Some((at, case)) = next() {
                    let result = evaluate(case, prober, pod_cidrs);
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(at, result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}
