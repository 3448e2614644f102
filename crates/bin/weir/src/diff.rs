use std::{collections::BTreeSet, io::Write, net::IpAddr, path::PathBuf};

use clap::Args;
use serde::Serialize;
use weir_kube::ClusterKinds;
use weir_model::{Finding, IpFamily, Pod, PodId, PortRange, Verdict, World};
use weir_reach::{Comparison, Connection, ConnectionChange, Reach, ReachState, spell};
use weir_source::manifests::ManifestInput;

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
                let old = self.pod_network.apply(self.load_staged()?.complete()?)?;
                is_staged = old.world.policies.values().any(|policy| policy.staged);
                let world = old.world.with_staged_enforced();
                let new = Loaded { world, ..old.clone() };
                (old, new)
            }
            Some(path) => {
                let (old, new) = self.load_sides(path)?;
                // Print the findings of both sides before failing.
                let (old, new) = (old.complete(), new.complete());
                (self.pod_network.apply(old?)?, self.pod_network.apply(new?)?)
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
        let mut findings = self.pod_network.findings(after, new);
        let key = |finding: &Finding| {
            (finding.object.clone(), finding.field.clone(), finding.message.clone())
        };
        let known: BTreeSet<_> = findings.iter().map(key).collect();
        let gone = self.pod_network.findings(before, old);
        findings.extend(gone.into_iter().filter(|finding| !known.contains(&key(finding))));
        findings
    }
}

/// The effect of a change.
pub(crate) struct PolicyDiff {
    /// The changed connections, openings first.
    pub(crate) changes: Vec<ConnectionChange>,
    /// The pods that only the new side has.
    pub(crate) added: PodsOfOneSide,
    /// The pods that only the old side has.
    pub(crate) removed: PodsOfOneSide,
    /// The pods that are not on the cluster network.
    pub(crate) not_judged: NotJudged,
    /// The findings from reading both sides.
    findings: Vec<Finding>,
}

impl PolicyDiff {
    /// A change of policies alone.
    pub(crate) fn from_changes(changes: Vec<ConnectionChange>) -> Self {
        let (added, removed) = (PodsOfOneSide::default(), PodsOfOneSide::default());
        PolicyDiff {
            changes,
            added,
            removed,
            not_judged: NotJudged::default(),
            findings: Vec::new(),
        }
    }

    /// The same effect, with the findings from reading both sides.
    pub(crate) fn with_findings(self, findings: Vec<Finding>) -> Self {
        PolicyDiff { findings, ..self }
    }

    /// The diff for programs.
    pub(crate) fn output(&self) -> impl Serialize {
        DiffOutput::from(self)
    }

    /// Whether no connection is opened or closed.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.added.is_closed()
            && self.removed.is_closed()
            && !self.not_judged.is_changed
    }
}

/// The pods that are not on the cluster network, on any side. Their connections are not compared.
#[derive(Default)]
pub(crate) struct NotJudged {
    /// The pods.
    pub(crate) pods: BTreeSet<PodId>,
    /// Whether such a pod, or its network, differs between the sides.
    is_changed: bool,
}

impl NotJudged {
    fn new(old: &Loaded, new: &Loaded) -> Self {
        let primary = |side: &Loaded, id: &PodId| side.attachments.get(id)?.primary.clone();
        let ids = old.attachments.keys().chain(new.attachments.keys());
        let is_on_another = |id: &&PodId| [old, new].iter().any(|side| primary(side, id).is_some());
        let pods: BTreeSet<PodId> = ids.filter(is_on_another).cloned().collect();
        let is_changed = pods.iter().any(|id| primary(old, id) != primary(new, id));
        NotJudged { pods, is_changed }
    }
}

/// The pods that only one side has.
#[derive(Default)]
pub(crate) struct PodsOfOneSide {
    /// The pods with an address of their own.
    pub(crate) pods: BTreeSet<PodId>,
    /// The pods in the network of their node. Policies apply to the node and not to them.
    pub(crate) host_network: BTreeSet<PodId>,
    /// The open connections from and to the pods, on the side that has them.
    pub(crate) connections: Vec<Connection>,
}

impl PodsOfOneSide {
    /// The pods of a world that another world does not have, without their connections.
    fn new(world: &World, other: &World) -> Self {
        let only_here = |is_there: fn(&Pod) -> bool| -> BTreeSet<PodId> {
            let here = world.pods.values().filter(|pod| is_there(pod));
            let here = here.filter(|pod| !other.pods.get(&pod.id).is_some_and(is_there));
            here.map(|pod| pod.id.clone()).collect()
        };
        PodsOfOneSide {
            pods: only_here(|pod| !pod.own_addresses().is_empty()),
            host_network: only_here(|pod| !pod.node_addresses().is_empty()),
            connections: Vec::new(),
        }
    }

    /// Whether the pods have no connections. Policies never close those of host network pods.
    fn is_closed(&self) -> bool {
        self.connections.is_empty() && self.host_network.is_empty()
    }
}

/// The effect of a change as JSON.
#[derive(Serialize)]
pub(crate) struct DiffOutput<'a> {
    opened: Vec<Entry<'a>>,
    closed: Vec<Entry<'a>>,
    added: AddedOutput<'a>,
    removed: RemovedOutput<'a>,
    #[serde(rename = "notJudged", skip_serializing_if = "Vec::is_empty")]
    not_judged: Vec<String>,
    findings: Vec<present::findings::FindingJson>,
}

#[derive(Serialize)]
struct AddedOutput<'a> {
    #[serde(flatten)]
    pods: PodsOutput,
    opened: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct RemovedOutput<'a> {
    #[serde(flatten)]
    pods: PodsOutput,
    closed: Vec<Entry<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodsOutput {
    pods: Vec<String>,
    host_network_pods: Vec<String>,
}

impl From<&PodsOfOneSide> for PodsOutput {
    fn from(side: &PodsOfOneSide) -> Self {
        let names = |pods: &BTreeSet<PodId>| pods.iter().map(PodId::to_string).collect();
        PodsOutput { pods: names(&side.pods), host_network_pods: names(&side.host_network) }
    }
}

#[derive(Serialize)]
struct Entry<'a> {
    from: &'a [String],
    to: &'a [String],
    ports: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<String>,
}

impl<'a> Entry<'a> {
    fn new(
        from: &'a [String],
        to: &'a [String],
        ports: &[PortRange],
        family: Option<IpFamily>,
    ) -> Self {
        Entry { from, to, ports: spell(ports), family: family.map(|family| family.to_string()) }
    }
}

impl<'a> From<&'a PolicyDiff> for DiffOutput<'a> {
    fn from(diff: &'a PolicyDiff) -> Self {
        let changed = |verdict| {
            let some = diff.changes.iter().filter(move |change| change.now == verdict);
            some.map(|c| Entry::new(&c.from, &c.to, &c.ports, c.family)).collect()
        };
        let connections = |side: &'a PodsOfOneSide| {
            let all = side.connections.iter();
            all.map(|c| Entry::new(&c.from, &c.to, &c.ports, c.family)).collect()
        };
        let PolicyDiff { added, removed, .. } = diff;
        DiffOutput {
            opened: changed(Verdict::Allow),
            closed: changed(Verdict::Deny),
            added: AddedOutput { pods: added.into(), opened: connections(added) },
            removed: RemovedOutput { pods: removed.into(), closed: connections(removed) },
            not_judged: diff.not_judged.pods.iter().map(PodId::to_string).collect(),
            findings: present::findings::to_json(&diff.findings),
        }
    }
}
