//! The effect of a change of policies, before it is applied.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weir_api::ManifestReader;
use weir_model::Finding;
use weir_reach::Comparison;

use super::{PageOptions, policies, snapshot::Snapshot};
use crate::{
    diff::{DiffOutput, PolicyDiff},
    explain::Clusters,
    failure::Failure,
    findings,
    loaded::{self, Loaded},
    other_networks,
    schema::Schema,
};

/// The name of the edited text in findings.
const FILE: &str = "what-if";

/// The effect of applying a text and deleting policies, as `weir diff -o json` writes it, and the
/// lint findings that the change adds.
pub(super) fn what_if(
    snapshot: &Snapshot,
    options: &PageOptions,
    text: &str,
    remove: &[String],
) -> Result<Value, Failure> {
    if options.clusters == Clusters::Several {
        let hint = "start `weir ui` for one of the clusters";
        return Err(Failure::new("a change of several clusters cannot be evaluated", hint));
    }
    let base = &snapshot.loaded;
    let mut after = apply(base, options.namespace.as_deref(), text)?;
    for id in remove {
        let id = policies::find(snapshot, id)?;
        after.world.policies.remove(id);
    }
    after.synthetic.extend(base.synthetic.iter().copied());
    let world = other_networks::judged(&after.world, &base.attachments);
    let (before, after_state) = (snapshot.judged(), loaded::compile(world));
    let changes = Comparison::new(before, &after_state).changes(&base.owners, |_, _| ());
    let known: BTreeSet<&Finding> = snapshot.lint.iter().collect();
    let added: Vec<Finding> =
        after.lint().into_iter().filter(|finding| !known.contains(finding)).collect();
    let diff = PolicyDiff::from_changes(changes).with_findings(after.findings);
    Ok(json!({
        "diff": Schema::Diff.tag_value(&DiffOutput::from(&diff)),
        "lint": findings::to_json(&added),
    }))
}

/// The input with the objects of a text.
fn apply(base: &Loaded, namespace: Option<&str>, text: &str) -> Result<Loaded, Failure> {
    let mut reader = ManifestReader::new().with_default_namespace(namespace);
    let is_empty = text.lines().all(|line| line.trim().is_empty() || line.starts_with('#'));
    if !is_empty {
        reader.read_file(FILE.into(), text.as_bytes());
        if reader.documents() == 0 {
            let hint = "write NetworkPolicies as YAML or JSON";
            return Err(Failure::new("the change has no document", hint));
        }
    }
    let read = Loaded::from(reader.finish());
    if let Some(finding) = read.missing.first() {
        let line = finding.location.as_ref().map(|location| format!("line {}: ", location.line));
        let what = format!("{}{}", line.unwrap_or_default(), finding.message);
        return Err(Failure::new(what, finding.hint.clone()));
    }
    if let Some(pod) = read.world.pods.keys().next() {
        let hint = "edit policies and namespaces only; `weir diff` compares workloads too";
        return Err(Failure::new(format!("the change contains the pod {pod}"), hint));
    }
    Ok(base.with(read))
}
