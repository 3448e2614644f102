//! The rules in CEL of a definition, as an API server would apply them to an object.

use std::{collections::BTreeSet, sync::Arc};

use cel::{Context, Env, to_value};
use serde_json::Value;
use weir_controllers::crds;

use crate::{
    cases::{self, Case},
    yaml::yaml,
};

/// Where an object breaks a rule, and what the rule says then.
type Breach = (String, String);

/// The rules of a schema that an object breaks, and those of everything in it.
fn breaches(schema: &Value, object: &Value, field: &str) -> Vec<Breach> {
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
                found.extend(breaches(schema, value, &format!("{field}.{key}")));
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                found.extend(breaches(&schema["items"], item, &format!("{field}[{index}]")));
            }
        }
        _ => (),
    }
    found
}

/// An object as the API server has it when it comes to the rules: a field that is null, and may not be, is dropped before.
fn without_nulls(object: &Value) -> Value {
    match object {
        Value::Object(entries) => {
            let there = entries.iter().filter(|(_, value)| !value.is_null());
            there.map(|(key, value)| (key.clone(), without_nulls(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// Whether a rule holds; what it reads must be there.
fn holds(rule: &str, object: &Value) -> bool {
    let env = Arc::new(Env::stdlib());
    let program = env.compile(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
    let mut context = Context::with_env(env);
    context.add_variable_from_value("self", to_value(object).unwrap());
    match program.execute(&context) {
        Ok(cel::Value::Bool(holds)) => holds,
        other => panic!("{rule} of {object}: {other:?}"),
    }
}

/// What the rules say about a case.
fn said(case: &Case) -> Vec<Breach> {
    let crd = crds::ALL.iter().find(|crd| crd.name == case.definition).unwrap();
    let schema = yaml(crd.yaml)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    breaches(&schema["properties"]["spec"], &without_nulls(&case.spec), "spec")
}

pub(crate) fn refuse_what_they_should() {
    for case in cases::of_rules() {
        let expected: Vec<Breach> = case.refused.clone();
        assert_eq!(said(&case), expected, "{}", case.spec);
    }
}

pub(crate) fn are_all_tried() {
    let broken: BTreeSet<String> =
        cases::of_rules().iter().flat_map(said).map(|(_, message)| message).collect();
    let mut rules = 0;
    for crd in crds::ALL {
        let mut places = vec![yaml(crd.yaml)];
        while let Some(place) = places.pop() {
            for rule in place["x-kubernetes-validations"].as_array().into_iter().flatten() {
                let message =
                    rule["message"].as_str().expect("a rule without a message is no help");
                assert!(broken.contains(message), "{}: nothing breaks {rule}", crd.name);
                rules += 1;
            }
            match place {
                Value::Object(entries) => {
                    places.extend(entries.into_iter().map(|(_, value)| value))
                }
                Value::Array(items) => places.extend(items),
                _ => (),
            }
        }
    }
    assert_eq!(rules, broken.len(), "no two rules say the same");
}
