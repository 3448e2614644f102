//! What the policies of a cluster would deny, before an agent enforces them.

use std::{collections::BTreeSet, io::Write};

use weir_kube::{Access, ClusterKinds};
use weir_model::{Finding, Severity};
use weir_reach::Comparison;

use crate::{
    diff::PolicyDiff,
    present::{self, progress::Progress},
    source::{self, load_cluster},
};

/// Writes the errors in policies, and the connections of running pods that policies deny.
pub(crate) fn write(access: &Access, out: &mut dyn Write) -> anyhow::Result<()> {
    let loaded = load_cluster(access, ClusterKinds::Policies, "give a kubeconfig")?;
    let lint = source::lint(&loaded);
    let errors: BTreeSet<&Finding> = lint
        .iter()
        .chain(&loaded.findings)
        .chain(&loaded.missing)
        .filter(|finding| finding.severity == Severity::Error)
        .collect();
    if !errors.is_empty() {
        writeln!(out, "errors in policies:")?;
        present::findings::write(out, errors)?;
    }
    let mut without = loaded.world.clone();
    without.policies.clear();
    let (before, after) = (source::compile(without), source::compile(loaded.world));
    let mut progress = Progress::new("comparing");
    let changes = Comparison::new(&before, &after)
        .changes(&loaded.owners, |done, all| progress.report(done, all));
    drop(progress);
    writeln!(out, "connections that the policies of the cluster deny:")?;
    Ok(present::diff::write(out, &PolicyDiff::from_changes(changes))?)
}
