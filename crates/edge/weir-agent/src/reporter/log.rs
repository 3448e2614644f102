//! The log lines of findings.

use weir_model::{Finding, Severity};

pub(super) fn log_finding(finding: &Finding) {
    let Finding { location, code, severity, field, message, hint, .. } = finding;
    let object = &finding.object_text();
    // Empty fields are left out.
    let (file, line) = location.as_ref().map(|location| (&*location.file, location.line)).unzip();
    let [object, field, hint] =
        [object, field, hint].map(|text| (!text.is_empty()).then_some(text.as_str()));
    match severity {
        Severity::Error => tracing::error!(file, line, code, object, field, hint, "{message}"),
        Severity::Warning => tracing::warn!(file, line, code, object, field, hint, "{message}"),
        Severity::Info => tracing::debug!(file, line, code, object, field, hint, "{message}"),
    }
}
