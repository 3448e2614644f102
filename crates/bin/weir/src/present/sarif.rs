//! Findings as SARIF 2.1.0, which code hosts show beside the changed lines.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_model::{Finding, Severity};

/// A log with one run.
pub(crate) fn log(findings: &[Finding]) -> Value {
    let codes = findings.iter().map(|finding| finding.code);
    let rules: BTreeMap<&str, Value> = codes.map(|code| (code, json!({"id": code}))).collect();
    let results: Vec<Value> = findings.iter().map(result).collect();
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

fn result(finding: &Finding) -> Value {
    let level = match finding.severity {
        Severity::Info => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let mut result = json!({
        "ruleId": finding.code,
        "level": level,
        "message": {"text": super::findings::sentence(finding)},
    });
    let mut location = json!({});
    if let Some(place) = &finding.location {
        let mut physical = json!({"artifactLocation": {"uri": uri(&place.file)}});
        if place.line > 0 {
            physical["region"] = json!({"startLine": place.line});
        }
        location["physicalLocation"] = physical;
    }
    let object = finding.object_text();
    if !object.is_empty() {
        let name = [&*object, &finding.field].join(" ");
        location["logicalLocations"] = json!([{"fullyQualifiedName": name.trim()}]);
    }
    if location != json!({}) {
        result["locations"] = json!([location]);
    }
    result
}

/// A path as a relative URI.
fn uri(path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path).replace('\\', "/");
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
    }
}
