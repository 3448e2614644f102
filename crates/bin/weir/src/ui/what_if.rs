//! The effect of a change of policies, before it is applied.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weir_model::Finding;
use weir_reach::Comparison;
use weir_source::manifests::ManifestInput;

use super::{UiInput, policies, snapshot::Snapshot};
use crate::{
    diff::{DiffOutput, PolicyDiff},
    failure::Failure,
    other_networks,
    present::{Schema, findings},
    source::{self, Loaded},
};

/// The name of the edited text in findings.
const FILE: &str = "what-if";

/// The effect of applying a text and deleting policies, as `weir diff -o json` writes it, and the
/// lint findings that the change adds.
pub(super) fn what_if(
    snapshot: &Snapshot,
    input: &UiInput,
    text: &str,
    remove: &[String],
) -> anyhow::Result<Value> {
    if !input.clusters.is_empty() {
        let hint = "start `weir ui` for one of the clusters";
        return Err(Failure::new("a change of several clusters cannot be evaluated", hint).into());
    }
    let base = &snapshot.loaded;
    let mut after = apply(base, input, text)?;
    for id in remove {
        let id = policies::find(snapshot, id)?;
        after.world.policies.remove(id);
    }
    after.synthetic.extend(base.synthetic.iter().copied());
    let world = other_networks::judged(&after.world, &base.attachments);
    let (before, after_state) = (snapshot.judged(), source::compile(world));
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
fn apply(base: &Loaded, input: &UiInput, text: &str) -> anyhow::Result<Loaded> {
    let rendered = [(FILE.to_owned(), text.as_bytes().to_vec())];
    let is_empty = text.lines().all(|line| line.trim().is_empty() || line.starts_with('#'));
    let rendered = if is_empty { &[][..] } else { &rendered[..] };
    let namespace = input.source.namespace();
    let read =
        source::load_manifests(ManifestInput { rendered, namespace, ..ManifestInput::default() })?;
    if let Some(finding) = read.missing.first() {
        let line = finding.location.as_ref().map(|location| format!("line {}: ", location.line));
        let what = format!("{}{}", line.unwrap_or_default(), finding.message);
        return Err(Failure::new(what, finding.hint.clone()).into());
    }
    if let Some(pod) = read.world.pods.keys().next() {
        let hint = "edit policies and namespaces only; `weir diff` compares workloads too";
        return Err(Failure::new(format!("the change contains the pod {pod}"), hint).into());
    }
    Ok(base.with(read))
}
