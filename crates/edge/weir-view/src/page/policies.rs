//! The policies with their findings.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use weir_model::{Direction, Finding, ObjectRef, PodId, PolicyId, RuleSet, Tier};

use super::snapshot::Snapshot;
use crate::{failure::Failure, findings, lint_view::LintOutput, schema::Schema};

/// The most pods of a policy to list.
const MAX_PODS: usize = 200;

/// All policies, and the findings as `weir lint -o json` writes them.
pub(super) fn list(snapshot: &Snapshot) -> Value {
    let selected = selected_pods(snapshot);
    let by_object = findings_by_object(snapshot);
    let policies = snapshot.loaded.world.policies.values().map(|policy| {
        let id = &policy.id;
        let covers = |direction: &Direction| policy.rules(*direction).is_some();
        let directions = Direction::BOTH.iter().filter(|direction| covers(direction));
        let rules: usize =
            Direction::BOTH.iter().filter_map(|d| policy.rules(*d)).map(<[_]>::len).sum();
        let findings = by_object.get(&ObjectRef::from(id)).map_or(0, Vec::len);
        json!({
            "id": id.to_string(),
            "kind": id.kind.to_string(),
            "namespace": &*id.namespace,
            "name": &*id.name,
            "tier": tier(policy.spec.tier),
            "place": policy.location.as_ref().map(ToString::to_string),
            "directions": directions.map(ToString::to_string).collect::<Vec<_>>(),
            "rules": rules,
            "pods": selected.get(id).map_or(0, BTreeSet::len),
            "madeFor": snapshot.loaded.generated_for.get(id).map(ToString::to_string),
            "findings": findings,
        })
    });
    let lint = LintOutput::new(&snapshot.findings, &snapshot.suppressed);
    json!({"policies": policies.collect::<Vec<_>>(), "lint": Schema::Lint.tag_value(&lint)})
}

/// One policy: its manifest, its pods and its findings.
pub(super) fn one(snapshot: &Snapshot, id: &str) -> Result<Value, Failure> {
    let id = find(snapshot, id)?;
    let loaded = &snapshot.loaded;
    let policy = &loaded.world.policies[id];
    let manifest = match &loaded.cluster_policy_version {
        Some(version) => weir_api::manifest_in_version(policy, version),
        None => weir_api::manifest(policy),
    };
    let selected = selected_pods(snapshot);
    let pods = selected.get(id).into_iter().flatten().take(MAX_PODS);
    let by_object = findings_by_object(snapshot);
    let findings = by_object.get(&ObjectRef::from(id)).map(Vec::as_slice).unwrap_or_default();
    Ok(json!({
        "id": id.to_string(),
        "place": policy.location.as_ref().map(ToString::to_string),
        "manifest": manifest,
        "pods": pods.map(|pod| pod.to_string()).collect::<Vec<_>>(),
        "podCount": selected.get(id).map_or(0, BTreeSet::len),
        "findings": findings.iter().map(|f| findings::FindingJson::from(*f)).collect::<Vec<_>>(),
    }))
}

/// The policy with this id, as the list has it.
pub(super) fn find<'a>(snapshot: &'a Snapshot, id: &str) -> Result<&'a PolicyId, Failure> {
    let mut policies = snapshot.loaded.world.policies.keys();
    policies.find(|policy| policy.to_string() == id).ok_or_else(|| {
        Failure::new(format!("there is no policy {id}"), "the input may have changed: reload")
    })
}

fn tier(tier: Tier) -> String {
    match tier {
        Tier::Admin { priority } => format!("admin {priority}"),
        Tier::Namespace => "namespace".to_owned(),
        Tier::Baseline { priority } => format!("baseline {priority}"),
    }
}

fn findings_by_object(snapshot: &Snapshot) -> BTreeMap<&ObjectRef, Vec<&Finding>> {
    let mut all: BTreeMap<&ObjectRef, Vec<&Finding>> = BTreeMap::new();
    for finding in &snapshot.findings {
        if let Some(object) = &finding.object {
            all.entry(object).or_default().push(finding);
        }
    }
    all
}

/// The pods to which each policy applies, from the compiled rules.
fn selected_pods(snapshot: &Snapshot) -> BTreeMap<&PolicyId, BTreeSet<&PodId>> {
    let mut all: BTreeMap<&PolicyId, BTreeSet<&PodId>> = BTreeMap::new();
    for (pod, endpoint) in &snapshot.state.program.endpoints {
        for policy in policies_of(&endpoint.rules) {
            all.entry(policy).or_default().insert(pod);
        }
    }
    all
}

fn policies_of(rules: &RuleSet) -> impl Iterator<Item = &PolicyId> {
    Direction::BOTH.into_iter().flat_map(|direction| {
        let chain = rules.chain(direction);
        let sections = chain.admin.iter().chain(chain.isolation.iter().flatten());
        sections.chain(&chain.baseline).map(|section| &section.policy)
    })
}
