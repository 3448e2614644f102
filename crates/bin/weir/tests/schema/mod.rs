//! Validates JSON output against the schemas in docs/reference/schemas.

use std::{collections::BTreeMap, fs, path::PathBuf};

use serde_json::Value;

/// The folder of a schema file.
fn folder(name: &str) -> PathBuf {
    let crate_folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    match name {
        SARIF => crate_folder.join("tests/schema"),
        _ => crate_folder.join("../../../docs/reference/schemas"),
    }
}

/// The schema of `-o sarif`.
pub(crate) const SARIF: &str = "sarif-2.1.0.json";

/// Fails unless the output is valid for the schema that it names.
#[track_caller]
pub(crate) fn check(output: &Value) {
    let problems = problems(output);
    assert!(problems.is_empty(), "{}\n{output:#}", problems.join("\n"));
}

/// The differences between an output and the schema that it names.
pub(crate) fn problems(output: &Value) -> Vec<String> {
    let version = output["schemaVersion"].as_str().unwrap_or_default();
    let name = version.strip_prefix("weir.dev/").and_then(|name| name.strip_suffix("/v1"));
    let Some(name) = name else { return vec![format!("unknown schemaVersion {version:?}")] };
    differences(&format!("{name}.json"), output)
}

/// The differences between a value and the schema in a file.
pub(crate) fn differences(file: &str, value: &Value) -> Vec<String> {
    let mut validator = Validator { files: BTreeMap::new(), problems: Vec::new() };
    validator.reference(file, "", "$", value);
    validator.problems
}

/// A validator for the keywords that the schemas use. It fails for any other keyword.
struct Validator {
    files: BTreeMap<String, Value>,
    problems: Vec<String>,
}

impl Validator {
    /// Validates a value against a reference such as `#/$defs/rule` in a file.
    fn reference(&mut self, reference: &str, file: &str, at: &str, value: &Value) {
        let (name, pointer) = reference.split_once('#').unwrap_or((reference, ""));
        let name = if name.is_empty() { file } else { name };
        let schema = self.files.entry(name.to_owned()).or_insert_with(|| {
            let bytes = fs::read(folder(name).join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"))
        });
        let schema = schema.pointer(pointer).expect("a reference to a definition").clone();
        self.schema(&schema, name, at, value);
    }

    fn schema(&mut self, schema: &Value, file: &str, at: &str, value: &Value) {
        for (keyword, rule) in schema.as_object().expect("a schema is an object") {
            let holds = match keyword.as_str() {
                "$schema" | "$defs" | "title" | "description" => true,
                "$ref" => {
                    self.reference(rule.as_str().expect("a reference"), file, at, value);
                    true
                }
                "anyOf" => rule.as_array().expect("schemas").iter().any(|one| {
                    let mut other = Validator { files: self.files.clone(), problems: Vec::new() };
                    other.schema(one, file, at, value);
                    other.problems.is_empty()
                }),
                "type" => has_type(value, rule.as_str().expect("one type")),
                "const" => value == rule,
                "enum" => rule.as_array().expect("values").contains(value),
                "minimum" => value.as_f64() >= rule.as_f64(),
                "maximum" => value.as_f64() <= rule.as_f64(),
                "required" => {
                    let names = rule.as_array().expect("names").iter();
                    names.map(|name| name.as_str().expect("a name")).all(|n| value.get(n).is_some())
                }
                "items" => {
                    let items = value.as_array().into_iter().flatten().enumerate();
                    items
                        .for_each(|(i, item)| self.schema(rule, file, &format!("{at}[{i}]"), item));
                    true
                }
                "properties" => {
                    for (name, field) in value.as_object().into_iter().flatten() {
                        if let Some(rule) = rule.get(name) {
                            self.schema(rule, file, &format!("{at}.{name}"), field);
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    self.additional(schema, rule, file, at, value);
                    true
                }
                other => panic!("{file}: the keyword {other} is not supported"),
            };
            if !holds {
                self.problems.push(format!("{file}: {at}: not {keyword} {rule}"));
            }
        }
    }

    /// Validates the fields that `properties` does not list.
    fn additional(&mut self, schema: &Value, rule: &Value, file: &str, at: &str, value: &Value) {
        for (name, field) in value.as_object().into_iter().flatten() {
            if schema["properties"].get(name).is_some() {
                continue;
            }
            if rule == false {
                self.problems.push(format!("{file}: {at}: unexpected field {name}"));
            } else {
                self.schema(rule, file, &format!("{at}.{name}"), field);
            }
        }
    }
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "object" => value.is_object(),
        "string" => value.is_string(),
        other => panic!("{other} is not a type"),
    }
}
