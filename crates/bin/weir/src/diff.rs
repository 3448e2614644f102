use std::{collections::BTreeSet, io::Write, net::IpAddr, path::PathBuf};

use clap::Args;
use weir_kube::ClusterKinds;
use weir_model::{Finding, PodId, World};
use weir_reach::{Comparison, Reach, ReachState};
use weir_source::manifests::ManifestInput;
use weir_view::diff::{DiffOutput, NotJudged};
pub(crate) use weir_view::diff::{PodsOfOneSide, PolicyDiff};

use crate::{
    clusters::ClustersArgs,
    diff_sides::DiffSides,
    exit::Exit,
    pod_network::PodNetworkArgs,
    present::{
        self, ReviewFormat, Schema, Structured,
        progress::Progress,
        review::{self, RemarkFormat},
    },
    source::{self, LiveArgs, Loaded},
};

/// Show which connections a change of manifests opens and closes
///
/// Compares the pods that both sides have, by namespace and name, for every address and port that a
/// rule of either side distinguishes. For pods that only NEW has, it lists what they can reach and
/// what can reach them; for pods that only OLD has, what they could reach and what could reach
/// them. Exit status 1 if any connection is opened or closed, in any of these lists, or if a pod
/// changed whose connections weir does not judge, because it is not on the cluster network.
///
/// `git:REVISION` reads manifests of a commit, without a checkout: those in the current folder, or
/// at the paths after `--`. `weir diff git:REVISION -- PATH` compares it with the working tree.
///
/// With `--cluster NAME=PATH`, both sides are folders or revisions with the manifests of several
/// clusters, and PATH is relative to them: `weir diff git:main --cluster east=deploy/east --cluster
/// west=deploy/west`.
///
/// To compare kustomizations, render them first:
/// `weir diff <(kubectl kustomize OLD) <(kubectl kustomize NEW)`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir diff -f examples/shop/manifests/apps examples/shop/manifests/policies examples/shop/repaired\n  weir diff -f examples/shop/manifests/apps examples/shop/manifests/policies examples/shop/repaired -o markdown\n  weir diff --staged -f examples/shop/manifests"
)]
pub(crate) struct DiffCommand {
    /// The old manifests: a file, a directory, `-`, or `git:REVISION`
    #[arg(required_unless_present = "staged")]
    old: Option<PathBuf>,
    /// The new manifests. Without NEW, a revision is compared with the working tree, and other
    /// manifests are applied to the current cluster and compared with it
    new: Option<PathBuf>,
    /// The paths to read in a revision, and in the working tree
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Show what opens and closes when all staged policies (`weir.dev/mode: audit`) are enforced, in
    /// the manifests of -f or in the current cluster
    #[arg(long, conflicts_with_all = ["old", "new", "paths", "clusters"])]
    staged: bool,
    /// Manifests that both sides share, for example the workloads [repeatable]
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    live: LiveArgs,
    #[command(flatten)]
    clusters: ClustersArgs,
    #[command(flatten)]
    pod_network: PodNetworkArgs,
    /// The namespace of manifests without one, as with `kubectl apply -n`
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: ReviewFormat,
}

impl DiffCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let mut is_staged = true;
        let (old, new) = match &self.old {
            None => {
                let old = self.pod_network.cidrs().apply(source::complete(self.load_staged()?)?)?;
                is_staged = old.world.policies.values().any(|policy| policy.staged);
                let world = old.world.with_staged_enforced();
                let new = Loaded { world, ..old.clone() };
                (old, new)
            }
            Some(path) => {
                let (old, new) = self.load_sides(path)?;
                // Print the findings of both sides before failing.
                let (old, new) = (source::complete(old), source::complete(new));
                (self.pod_network.cidrs().apply(old?)?, self.pod_network.cidrs().apply(new?)?)
            }
        };
        let not_judged = NotJudged::new(&old, &new);
        let mut findings: BTreeSet<Finding> =
            old.findings.into_iter().chain(new.findings).collect();
        let (mut before, mut after) = (old.world, new.world);
        for world in [&mut before, &mut after] {
            world.pods.retain(|id, _| !not_judged.pods.contains(id));
        }
        let (before, after) = (source::compile(before), source::compile(after));
        let assumptions = self.assumptions((&before, &old.synthetic), (&after, &new.synthetic));
        present::findings::print_some(&assumptions);
        findings.extend(assumptions);
        let mut owners = old.owners;
        owners.extend(new.owners);
        let mut progress = Progress::new("comparing");
        let changes = Comparison::new(&before, &after)
            .changes(&owners, |done, all| progress.report(done, all));
        let mut only_in = |state: &ReachState, other: &World| {
            let mut pods = PodsOfOneSide::new(&state.world, other);
            if !pods.pods.is_empty() {
                let selected = |id: &PodId| pods.pods.contains(id);
                let report = |done, all| progress.report(done, all);
                pods.connections = state.connections(selected, Reach::Any, &owners, report);
            }
            pods
        };
        let added = only_in(&after, &before.world);
        let removed = only_in(&before, &after.world);
        drop(progress);
        let findings = Vec::from_iter(findings);
        let diff = PolicyDiff { changes, added, removed, not_judged, findings };
        let states = [&before, &after];
        let json = || DiffOutput::from(&diff);
        let remarks = || review::diff::remarks(&diff, states);
        match self.output {
            ReviewFormat::Text if !is_staged => writeln!(out, "no policy is staged")?,
            ReviewFormat::Text => present::diff::write(out, &diff)?,
            ReviewFormat::Json => present::value(out, Structured::Json, Schema::Diff, &json())?,
            ReviewFormat::Yaml => present::value(out, Structured::Yaml, Schema::Diff, &json())?,
            ReviewFormat::Sarif => review::write(out, RemarkFormat::Sarif, &remarks())?,
            ReviewFormat::Github => review::write(out, RemarkFormat::Github, &remarks())?,
            ReviewFormat::Markdown => {
                out.write_all(review::diff::page(&diff, states).as_bytes())?;
            }
        }
        Ok(Exit::when(diff.is_empty()))
    }
}

impl DiffCommand {
    fn load_sides(&self, old: &PathBuf) -> anyhow::Result<(Loaded, Loaded)> {
        let sides = DiffSides {
            old,
            new: self.new.as_ref(),
            shared: &self.files,
            paths: &self.paths,
            live: &self.live,
            namespace: self.namespace.as_deref(),
            clusters: &self.clusters,
        };
        sides.load()
    }

    /// The manifests or the cluster whose staged policies are compared.
    fn load_staged(&self) -> anyhow::Result<Loaded> {
        if self.files.is_empty() {
            return self.live.load(ClusterKinds::Policies, "give manifests with -f PATH");
        }
        source::load_manifests(ManifestInput {
            paths: &self.files,
            namespace: self.namespace.as_deref(),
            ..ManifestInput::default()
        })
    }

    /// The blocks of both sides that decide about synthetic addresses. A block that both sides have
    /// is listed once.
    fn assumptions(
        &self,
        (before, old): (&ReachState, &BTreeSet<IpAddr>),
        (after, new): (&ReachState, &BTreeSet<IpAddr>),
    ) -> Vec<Finding> {
        let mut findings = self.pod_network.cidrs().findings(after, new);
        let key = |finding: &Finding| {
            (finding.object.clone(), finding.field.clone(), finding.message.clone())
        };
        let known: BTreeSet<_> = findings.iter().map(key).collect();
        let gone = self.pod_network.cidrs().findings(before, old);
        findings.extend(gone.into_iter().filter(|finding| !known.contains(&key(finding))));
        findings
    }
}
