//! Recommended policies: manifests with their evidence as comments, or values for programs.

use std::collections::BTreeMap;

use serde::Serialize;
use weir_model::Direction;
use weir_recommend::{Evidence, RecommendedPolicy, RecommendedRule};

use super::plain::Plain;
use crate::recommend::Outcome;

/// The most lines of evidence above a rule.
const MAX_EVIDENCE: usize = 5;

/// The policies as YAML, with a comment above each rule.
pub(crate) fn text(outcome: &Outcome) -> String {
    let mut text = format!("# weir recommend: {}\n", outcome.summary());
    for policy in &outcome.recommendation.policies {
        text.push_str("---\n");
        for workload in &policy.workloads {
            text.push_str(&format!("# {}\n", Plain(workload)));
        }
        text.push_str(&commented(policy));
    }
    text
}

/// The manifest of a policy, with the evidence above each rule.
fn commented(policy: &RecommendedPolicy) -> String {
    let manifest = weir_api::manifest(&policy.policy());
    let mut evidence: BTreeMap<Direction, std::slice::Iter<'_, RecommendedRule>> =
        Direction::BOTH.map(|direction| (direction, policy.rules(direction).iter())).into();
    let mut section = None;
    let mut text = String::new();
    for line in manifest.lines() {
        match line {
            "  ingress:" => section = Some(Direction::Ingress),
            "  egress:" => section = Some(Direction::Egress),
            // The first line of a rule.
            line if line.starts_with("  - ") => {
                let rules = section.and_then(|direction| evidence.get_mut(&direction));
                if let Some(rule) = rules.and_then(Iterator::next) {
                    text.push_str(&comment(&rule.evidence));
                }
            }
            _ => (),
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn comment(evidence: &[Evidence]) -> String {
    let shown = evidence.iter().take(MAX_EVIDENCE);
    let mut text: String = shown.map(|one| format!("  # {}\n", Plain(one))).collect();
    let more = evidence.len().saturating_sub(MAX_EVIDENCE);
    if more > 0 {
        text.push_str(&format!("  # and {more} more\n"));
    }
    text
}

/// The recommendation for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecommendationView {
    /// The number of distinct flows.
    flows: usize,
    policies: Vec<PolicyView>,
    /// The recorded flows that would be denied.
    broken: Vec<BrokenView>,
    /// The NetworkPolicies that the policies replace and that have other names.
    superseded: Vec<String>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct PolicyView {
    workloads: Vec<String>,
    /// The object for the API server.
    object: serde_json::Value,
    ingress: Vec<RuleView>,
    egress: Vec<RuleView>,
}

/// The evidence for the rule at the same position of the object.
#[derive(Serialize)]
struct RuleView {
    evidence: Vec<EvidenceView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EvidenceView {
    kind: &'static str,
    what: String,
    connections: u64,
    last_seen: Option<String>,
    location: Option<String>,
}

#[derive(Serialize)]
struct BrokenView {
    from: String,
    to: String,
    port: u16,
    protocol: String,
    why: String,
}

impl From<&Outcome> for RecommendationView {
    fn from(outcome: &Outcome) -> Self {
        let rules = |rules: &[RecommendedRule]| rules.iter().map(RuleView::from).collect();
        let policy = |policy: &RecommendedPolicy| PolicyView {
            workloads: policy.workloads.iter().map(ToString::to_string).collect(),
            object: weir_api::manifest_json(&policy.policy()),
            ingress: rules(&policy.ingress),
            egress: rules(&policy.egress),
        };
        let broken = outcome.broken.iter().map(|flow| BrokenView {
            from: flow.from.clone(),
            to: flow.to.clone(),
            port: flow.port,
            protocol: flow.protocol.clone(),
            why: flow.why.clone(),
        });
        RecommendationView {
            flows: outcome.recording.flows.len(),
            policies: outcome.recommendation.policies.iter().map(policy).collect(),
            broken: broken.collect(),
            superseded: outcome.superseded.iter().map(ToString::to_string).collect(),
            notes: outcome.notes(),
        }
    }
}

impl From<&RecommendedRule> for RuleView {
    fn from(rule: &RecommendedRule) -> Self {
        let evidence = rule.evidence.iter().map(|one| EvidenceView {
            kind: one.kind.as_str(),
            what: one.what.to_string(),
            connections: one.connections,
            last_seen: one.last_seen.as_ref().map(ToString::to_string),
            location: one.location.as_ref().map(ToString::to_string),
        });
        RuleView { evidence: evidence.collect() }
    }
}
