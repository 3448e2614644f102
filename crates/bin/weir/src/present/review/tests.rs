//! Test results for code hosts.

use weir_model::Severity;

use super::{
    Remark,
    markdown::{Page, code, escape},
};
use crate::{
    present::plain::Plain,
    test::{ProbeResult, Run},
};

/// A remark for each failed probe, and for each case that could not be run.
pub(crate) fn remarks(run: &Run) -> Vec<Remark> {
    let mut remarks = Vec::new();
    for case in &run.cases {
        if let Some(error) = &case.error {
            remarks.push(Remark {
                code: "test-error",
                severity: Severity::Error,
                location: Some(case.location.clone()),
                about: case.name.clone(),
                message: Plain(error).to_string(),
                suppression: None,
            });
            continue;
        }
        remarks.extend(case.probes.iter().filter(|probe| !probe.passed).map(|probe| {
            Remark {
                code: "probe-failed",
                severity: Severity::Error,
                location: Some(probe.location.clone()),
                about: case.name.clone(),
                message: Plain(format_args!(
                    "{}: {}; {}",
                    probe.about(),
                    outcome(probe),
                    probe.why
                ))
                .to_string(),
                suppression: None,
            }
        }));
    }
    remarks
}

/// The failures as a table, and the totals.
pub(crate) fn page(run: &Run) -> String {
    let mut page = Page::default();
    page.table(&["test", "where", "failure"], &remarks(run), |remark| {
        let place = remark.location.as_ref().map(ToString::to_string).unwrap_or_default();
        vec![escape(&remark.about), code(&place), escape(&remark.message)]
    });
    page.paragraph(&format!("{} passed, {} failed", run.passed, run.failed));
    page.finish()
}

fn outcome(probe: &ProbeResult) -> String {
    if probe.tried {
        format!("expected {}, got {}", probe.expect, probe.verdict)
    } else {
        "cannot be tried".to_owned()
    }
}
