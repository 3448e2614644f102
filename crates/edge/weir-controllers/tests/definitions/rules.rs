//! Evaluates the CEL rules of a definition as an API server does.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use cel::{Context, Env, to_value};
use serde_json::Value;
use weir_controllers::crds;

use crate::{
    cases::{self, Case},
    yaml::yaml,
};

/// The field of a violated rule, and the rule's message.
type Violation = (String, String);

/// The rules of a schema that an object or one of its fields violates.
pub(crate) fn violations(schema: &Value, object: &Value, field: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let [text, message] = ["rule", "message"].map(|key| rule[key].as_str().unwrap());
        if !holds(text, object) {
            found.push((field.to_owned(), message.to_owned()));
        }
    }
    match object {
        Value::Object(entries) => {
            for (key, value) in entries {
                let known = &schema["properties"][key];
                let schema = if known.is_null() { &schema["additionalProperties"] } else { known };
                found.extend(violations(schema, value, &format!("{field}.{key}")));
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                found.extend(violations(&schema["items"], item, &format!("{field}[{index}]")));
            }
        }
        _ => (),
    }
    found
}

/// Removes null fields, as the API server does before it evaluates rules.
pub(crate) fn without_nulls(object: &Value) -> Value {
    match object {
        Value::Object(entries) => {
            let present = entries.iter().filter(|(_, value)| !value.is_null());
            present.map(|(key, value)| (key.clone(), without_nulls(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// The function of the API server: an address in its canonical spelling, and the length of a
/// prefix.
fn is_cidr(text: Arc<String>) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let is_mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let is_length = length.parse().is_ok_and(|number: u8| number <= longest);
    !is_mapped && is_length && !(length.len() > 1 && length.starts_with('0'))
}

/// Whether a rule holds. The fields that it reads must exist.
fn holds(rule: &str, object: &Value) -> bool {
    let env = Arc::new(Env::stdlib());
    let program = env.compile(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
    let mut context = Context::with_env(env);
    context.add_variable_from_value("self", to_value(object).unwrap());
    context.add_function("isCIDR", is_cidr).unwrap();
    match program.execute(&context) {
        Ok(cel::Value::Bool(holds)) => holds,
        other => panic!("{rule} of {object}: {other:?}"),
    }
}

/// The rules that a case violates.
fn violations_of(case: &Case) -> Vec<Violation> {
    let crd = crds::ALL.iter().find(|crd| crd.name == case.definition).unwrap();
    let schema = yaml(crd.yaml)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    violations(&schema["properties"]["spec"], &without_nulls(&case.spec), "spec")
}

pub(crate) fn reject_invalid_objects() {
    for case in cases::of_rules() {
        let expected: Vec<Violation> = case.rejected.clone();
        assert_eq!(violations_of(&case), expected, "{}", case.spec);
    }
}

pub(crate) fn are_all_tested() {
    let violated: BTreeSet<String> =
        cases::of_rules().iter().flat_map(violations_of).map(|(_, message)| message).collect();
    let mut rules = 0;
    for crd in crds::ALL {
        let mut schemas = vec![yaml(crd.yaml)];
        while let Some(schema) = schemas.pop() {
            for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
                let message = rule["message"].as_str().expect("every rule has a message");
                assert!(violated.contains(message), "{}: no case violates {rule}", crd.name);
                rules += 1;
            }
            match schema {
                Value::Object(entries) => {
                    schemas.extend(entries.into_iter().map(|(_, value)| value))
                }
                Value::Array(items) => schemas.extend(items),
                _ => (),
            }
        }
    }
    assert_eq!(rules, violated.len(), "all messages differ");
}
