//! Findings, as data.

use serde::Serialize;
use weir_model::{Finding, Severity};

use crate::pod_cidrs::SYNTHETIC_ADDRESS;

/// A finding as JSON. The shape is a contract.
#[derive(Serialize)]
pub struct FindingJson {
    code: &'static str,
    severity: String,
    file: String,
    line: u32,
    object: String,
    field: String,
    message: String,
    hint: String,
}

impl From<&Finding> for FindingJson {
    fn from(finding: &Finding) -> Self {
        let object = finding.object_text();
        let Finding { location, code, severity, field, message, hint, .. } = finding.clone();
        let (file, line) = location.map_or((String::new(), 0), |p| (p.file.to_string(), p.line));
        FindingJson {
            code,
            severity: severity.to_string(),
            file,
            line,
            object,
            field,
            message,
            hint,
        }
    }
}

/// The relevant findings, as data.
pub fn to_json(findings: &[Finding]) -> Vec<FindingJson> {
    findings.iter().filter(|finding| is_relevant(finding)).map(FindingJson::from).collect()
}

/// Whether an answer must mention the finding: a problem, an object that was skipped, or a synthetic
/// address that decides.
pub fn is_relevant(finding: &Finding) -> bool {
    finding.severity > Severity::Info || ["unknown-kind", SYNTHETIC_ADDRESS].contains(&finding.code)
}
