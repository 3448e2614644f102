//! Remarks as SARIF 2.1.0, which code hosts show beside the changed lines.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_model::Severity;

use super::{Remark, path};
use crate::suppression::SuppressionSource;

/// A log with one run.
pub(super) fn log(remarks: &[Remark]) -> Value {
    let rules: BTreeMap<&str, Value> =
        remarks.iter().map(|remark| (remark.code, rule(remark.code))).collect();
    let results: Vec<Value> = remarks.iter().map(result).collect();
    json!({
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
    })
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

    #[test]
    fn paths_become_relative_uris() {
        assert_eq!(uri("./deploy/shop.yaml"), "deploy/shop.yaml");
        assert_eq!(uri("a b/ü.yaml"), "a%20b/%C3%BC.yaml");
        assert_eq!(uri("git:main:deploy/shop.yaml"), "deploy/shop.yaml");
    }
}
