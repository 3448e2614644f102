use std::{collections::BTreeSet, io::Write, path::PathBuf};

use clap::Args;
use serde::Serialize;
use weir_kube::ClusterKinds;
use weir_model::{Finding, PodId, Verdict};
use weir_reach::{Comparison, ConnectionChange, spell, with_pods_of};

use crate::{
    exit::Exit,
    failure::Failure,
    present::{self, Format, progress::Progress},
    source::{self, LiveArgs},
};

/// Show which connections a change of manifests opens and closes
///
/// Pods are compared by namespace and name. The comparison covers every pod, address and port that
/// a rule of either side distinguishes. A pod that only NEW has is treated as if OLD had it too.
/// Exit status 1 if there is a difference.
#[derive(Args)]
#[command(
    after_help = "Example:\n  weir diff -f examples/shop/manifests/apps examples/shop/manifests/policies examples/shop/repaired"
)]
pub(crate) struct DiffCommand {
    /// The old manifests: a file, a directory, or `-`
    old: PathBuf,
    /// The new manifests; without NEW, compare the current cluster with OLD applied to it
    new: Option<PathBuf>,
    /// Manifests that both sides share, for example the workloads [repeatable]
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    live: LiveArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl DiffCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let is_stdin = |path: &PathBuf| path.as_os_str() == "-";
        if self.files.iter().any(is_stdin)
            || (is_stdin(&self.old) && self.new.as_ref().is_some_and(is_stdin))
        {
            let hint = "use `-` for OLD or for NEW, but not for both";
            return Err(Failure::new("standard input can be only one side", hint).into());
        }
        let side = |path: &PathBuf| {
            let paths: Vec<PathBuf> = self.files.iter().chain([path]).cloned().collect();
            source::load_paths(&paths)
        };
        let (old, new) = match &self.new {
            Some(new) => (side(&self.old)?, side(new)?),
            None if self.files.is_empty() => {
                let new = source::load_paths(std::slice::from_ref(&self.old))?;
                let cluster = self.live.load(ClusterKinds::Policies, "give both OLD and NEW")?;
                let new = cluster.with(new);
                (cluster, new)
            }
            None => {
                let hint = "give OLD and NEW, or leave out -f to compare with the current cluster";
                return Err(Failure::new("there is nothing to compare with", hint).into());
            }
        };
        // Print the findings of both sides before failing.
        let (old, new) = (old.complete(), new.complete());
        let (old, new) = (old?, new?);
        let findings: BTreeSet<Finding> = old.findings.into_iter().chain(new.findings).collect();
        let gone: Vec<PodId> =
            old.world.pods.keys().filter(|id| !new.world.pods.contains_key(*id)).cloned().collect();
        let (before, added) = with_pods_of(old.world, &new.world);
        let (before, after) = (source::compile(before), source::compile(new.world));
        let mut owners = old.owners;
        owners.extend(new.owners);
        let mut progress = Progress::new("comparing");
        let changes = Comparison::new(&before, &after)
            .changes(&owners, |done, all| progress.report(done, all));
        drop(progress);
        let findings = Vec::from_iter(findings);
        let diff = PolicyDiff { changes, added, gone, findings };
        match self.output.structured() {
            Some(form) => present::value(out, form, &DiffOutput::from(&diff))?,
            None => present::diff::write(out, &diff)?,
        }
        Ok(Exit::when(diff.changes.is_empty()))
    }
}

/// The effect of a change.
pub(crate) struct PolicyDiff {
    /// The changed connections, openings first.
    pub(crate) changes: Vec<ConnectionChange>,
    /// Pods that only the new side has.
    pub(crate) added: Vec<PodId>,
    /// Pods that only the old side has; they are not compared.
    pub(crate) gone: Vec<PodId>,
    /// The findings from reading both sides.
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct DiffOutput<'a> {
    opened: Vec<Entry<'a>>,
    closed: Vec<Entry<'a>>,
    added: Vec<String>,
    gone: Vec<String>,
    findings: Vec<present::findings::FindingJson>,
}

#[derive(Serialize)]
struct Entry<'a> {
    from: &'a [String],
    to: &'a [String],
    ports: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<String>,
}

impl<'a> From<&'a PolicyDiff> for DiffOutput<'a> {
    fn from(diff: &'a PolicyDiff) -> Self {
        let of = |verdict| {
            let some = diff.changes.iter().filter(move |change| change.now == verdict);
            let entry = |change: &'a ConnectionChange| Entry {
                from: &change.from,
                to: &change.to,
                ports: spell(&change.ports),
                family: change.family.map(|family| family.to_string()),
            };
            some.map(entry).collect()
        };
        let words = |pods: &[PodId]| pods.iter().map(PodId::to_string).collect();
        DiffOutput {
            opened: of(Verdict::Allow),
            closed: of(Verdict::Deny),
            added: words(&diff.added),
            gone: words(&diff.gone),
            findings: present::findings::to_json(&diff.findings),
        }
    }
}
