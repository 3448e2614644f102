//! Findings for code hosts.

use weir_model::Finding;

use super::{
    Remark, RemarkSuppression,
    markdown::{Page, code, escape},
};
use crate::{present::findings::sentence, suppression::SuppressedFinding};

impl From<&Finding> for Remark {
    fn from(finding: &Finding) -> Self {
        Remark {
            code: finding.code,
            severity: finding.severity,
            location: finding.location.clone(),
            about: [&*finding.object_text(), &finding.field].join(" ").trim().to_owned(),
            message: sentence(finding),
            suppression: None,
        }
    }
}

impl From<&SuppressedFinding> for Remark {
    fn from(suppressed: &SuppressedFinding) -> Self {
        let SuppressedFinding { finding, reason, source } = suppressed;
        let suppression = RemarkSuppression { reason: reason.clone(), source: *source };
        Remark { suppression: Some(suppression), ..Remark::from(finding) }
    }
}

/// Adds a table of findings.
pub(crate) fn table(page: &mut Page, findings: &[Finding]) {
    page.table(&["severity", "where", "finding"], findings, |finding| {
        let place = finding.location.as_ref().map(ToString::to_string).unwrap_or_default();
        let about = [place, finding.object_text(), finding.field.clone()];
        let about: Vec<String> =
            about.iter().filter(|text| !text.is_empty()).map(|text| code(text)).collect();
        let text = format!("{} [{}]", escape(&sentence(finding)), finding.code);
        vec![finding.severity.to_string(), about.join("<br>"), text]
    });
}
