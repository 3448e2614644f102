//! Remarks as SARIF 2.1.0, which code hosts show beside the changed lines.

use std::{cmp::Reverse, collections::BTreeMap};

use serde_json::{Value, json};
use weir_model::Severity;

use super::{Remark, path};
use crate::suppression::SuppressionSource;

/// A log, and a note if it lacks results.
pub(super) struct SarifLog {
    pub(super) log: Value,
    pub(super) note: Option<String>,
}

/// The maximum number of results. GitHub rejects a run with more.
const MAX_RESULTS: usize = 25_000;

/// The maximum size of all results, without indentation. GitHub rejects files of more than 10 MB
/// after compression.
const MAX_BYTES: usize = 9_000_000;

/// A log with one run. If it would be too large, the least important results are left out, and the
/// log says so.
pub(super) fn log(remarks: &[Remark]) -> SarifLog {
    let rules: BTreeMap<&str, Value> =
        remarks.iter().map(|remark| (remark.code, rule(remark.code))).collect();
    let results = most_important(remarks);
    let omitted = remarks.len() - results.len();
    let mut log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "weir",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules.into_values().collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    let note = (omitted > 0).then(|| {
        format!(
            "{omitted} of {} results are left out, because code hosts limit the size of a log; \
             -o json lists all",
            remarks.len()
        )
    });
    if let Some(note) = &note {
        log["runs"][0]["invocations"] = json!([{
            "executionSuccessful": true,
            "toolExecutionNotifications": [{"level": "warning", "message": {"text": note}}],
        }]);
    }
    SarifLog { log, note }
}

/// The results that fit into a log, in order. Those without a suppression and with a higher severity
/// come first.
fn most_important(remarks: &[Remark]) -> Vec<Value> {
    let mut ranked: Vec<(usize, &Remark)> = remarks.iter().enumerate().collect();
    ranked.sort_by_key(|(_, remark)| (remark.suppression.is_some(), Reverse(remark.severity)));
    let mut bytes = 0;
    let results = ranked.into_iter().map(|(at, remark)| (at, result(remark))).take(MAX_RESULTS);
    let kept: BTreeMap<usize, Value> = results
        .take_while(|(_, result)| {
            bytes += result.to_string().len();
            bytes <= MAX_BYTES
        })
        .collect();
    kept.into_values().collect()
}

fn rule(code: &str) -> Value {
    json!({"id": code, "shortDescription": {"text": code.replace('-', " ")}})
}

fn result(remark: &Remark) -> Value {
    let level = match remark.severity {
        Severity::Info => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let mut result = json!({
        "ruleId": remark.code,
        "level": level,
        "message": {"text": remark.message},
    });
    let mut location = json!({});
    if let Some(place) = &remark.location {
        let mut physical = json!({"artifactLocation": {"uri": uri(&place.file)}});
        if place.line > 0 {
            physical["region"] = json!({"startLine": place.line});
        }
        location["physicalLocation"] = physical;
    }
    if !remark.about.is_empty() {
        location["logicalLocations"] = json!([{"fullyQualifiedName": remark.about}]);
    }
    if location != json!({}) {
        result["locations"] = json!([location]);
    }
    if let Some(suppression) = &remark.suppression {
        let kind = match suppression.source {
            SuppressionSource::Annotation => "inSource",
            SuppressionSource::Configuration => "external",
        };
        result["suppressions"] = json!([{"kind": kind, "justification": suppression.reason}]);
    }
    result
}

/// A path as a relative URI.
fn uri(file: &str) -> String {
    let path = path(file).replace('\\', "/");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let encode = |byte: u8| {
        if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    path.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remark(severity: Severity, message: &str) -> Remark {
        Remark {
            code: "no-dns",
            severity,
            location: None,
            about: String::new(),
            message: message.to_owned(),
            suppression: None,
        }
    }

    #[test]
    fn a_log_that_fits_has_all_results_and_no_note() {
        let SarifLog { log, note } = log(&[remark(Severity::Info, "a")]);
        assert_eq!(log["runs"][0]["results"].as_array().unwrap().len(), 1);
        assert_eq!((note, &log["runs"][0]["invocations"]), (None, &Value::Null));
    }

    #[test]
    fn a_long_log_keeps_the_most_severe_results_and_says_so() {
        let mut remarks = vec![remark(Severity::Info, "note"); MAX_RESULTS];
        remarks.push(remark(Severity::Warning, "last"));
        let SarifLog { log, note } = log(&remarks);
        let results = log["runs"][0]["results"].as_array().unwrap();
        assert_eq!(results.len(), MAX_RESULTS);
        assert_eq!(results.last().unwrap()["message"]["text"], "last");
        let text = "1 of 25001 results are left out, because code hosts limit the size of a log; \
                    -o json lists all";
        assert_eq!(note.as_deref(), Some(text));
        let notifications = &log["runs"][0]["invocations"][0]["toolExecutionNotifications"];
        assert_eq!(notifications[0]["message"]["text"], text);
    }

    #[test]
    fn long_messages_do_not_make_a_log_too_large() {
        let remarks = vec![remark(Severity::Error, &"x".repeat(10_000)); 2_000];
        let text = log(&remarks).log.to_string();
        assert!((8_000_000..10_000_000).contains(&text.len()), "{}", text.len());
    }

    #[test]
    fn paths_become_relative_uris() {
        assert_eq!(uri("./deploy/shop.yaml"), "deploy/shop.yaml");
        assert_eq!(uri("a b/ü.yaml"), "a%20b/%C3%BC.yaml");
        assert_eq!(uri("git:main:deploy/shop.yaml"), "deploy/shop.yaml");
    }
}
