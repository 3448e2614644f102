//! Test results as JUnit XML, for CI systems.

use super::svg::escape;
use crate::test::{CaseResult, Run};

/// Writes a suite for each case and a test for each probe.
pub(crate) fn report(run: &Run) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let total = run.passed + run.failed;
    let text = format!(
        "<testsuites name=\"weir\" tests=\"{total}\" failures=\"{}\" errors=\"{}\">\n",
        run.cases
            .iter()
            .filter(|case| case.error.is_none())
            .map(|case| case.counts().1)
            .sum::<usize>(),
        run.cases
            .iter()
            .filter(|case| case.error.is_some())
            .map(|case| case.counts().1)
            .sum::<usize>(),
    );
    xml.push_str(&text);
    for case in &run.cases {
        suite(&mut xml, case);
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn suite(xml: &mut String, case: &CaseResult) {
    let name = escape(&case.name);
    let (passed, failed) = case.counts();
    let (failures, errors) = if case.error.is_some() { (0, failed) } else { (failed, 0) };
    xml.push_str(&format!(
        "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\">\n",
        passed + failed
    ));
    let error = case.error.as_deref().map(escape);
    if let (Some(error), true) = (&error, case.probes.is_empty()) {
        xml.push_str(&format!(
                "    <testcase classname=\"{name}\" name=\"{}\">\n      <error message=\"{error}\"/>\n    </testcase>\n",
                escape(&case.location.to_string())
            ));
    }
    for probe in &case.probes {
        let family = probe.family.as_ref().map(|family| format!(" over {family}"));
        let note = probe.note.as_ref().map(|note| format!(" ({note})"));
        let about = format!(
            "{} to {} {}/{}{} is {}{}",
            probe.from,
            probe.to,
            probe.port,
            probe.protocol,
            family.unwrap_or_default(),
            probe.expect,
            note.unwrap_or_default()
        );
        xml.push_str(&format!("    <testcase classname=\"{name}\" name=\"{}\"", escape(&about)));
        let location = escape(&probe.location.to_string());
        match (&error, probe.passed) {
            (Some(error), _) => {
                xml.push_str(&format!(">\n      <error message=\"{error}\"/>\n    </testcase>\n"))
            }
            (None, true) => xml.push_str("/>\n"),
            (None, false) => {
                let message = escape(&format!("expected {}, got {}", probe.expect, probe.verdict));
                let why = escape(&probe.why);
                xml.push_str(&format!(
                        ">\n      <failure message=\"{message}\">{location}: {why}</failure>\n    </testcase>\n"
                    ));
            }
        }
    }
    xml.push_str("  </testsuite>\n");
}
