//! Lint findings, as data.

use serde::Serialize;
use weir_model::Finding;

use crate::{findings::FindingJson, suppression::SuppressedFinding};

/// Findings as JSON.
#[derive(Serialize)]
pub struct LintOutput {
    findings: Vec<FindingJson>,
    /// The findings that the author of the manifests has decided to ignore.
    suppressed: Vec<SuppressedJson>,
}

#[derive(Serialize)]
struct SuppressedJson {
    #[serde(flatten)]
    finding: FindingJson,
    reason: String,
    source: &'static str,
}

impl LintOutput {
    /// The findings that are reported, and those that are not.
    pub fn new(findings: &[Finding], suppressed: &[SuppressedFinding]) -> Self {
        let suppressed = suppressed.iter().map(|one| SuppressedJson {
            finding: FindingJson::from(&one.finding),
            reason: one.reason.clone(),
            source: one.source.as_str(),
        });
        LintOutput {
            findings: findings.iter().map(FindingJson::from).collect(),
            suppressed: suppressed.collect(),
        }
    }
}
