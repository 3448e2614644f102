//! Label selectors.

use serde_json::{Map, Value, json};
use weir_model::{Name, Requirement, Selector};

use super::text;

pub(super) fn selector(selector: &Selector) -> Value {
    let expressions = selector.requirements().iter().map(|requirement| {
        let (operator, values) = match requirement {
            Requirement::In(_, values) => ("In", Some(values)),
            Requirement::NotIn(_, values) => ("NotIn", Some(values)),
            Requirement::Exists(_) => ("Exists", None),
            Requirement::Absent(_) => ("DoesNotExist", None),
        };
        let mut expression = json!({"key": &**requirement.key(), "operator": operator});
        if let Some(values) = values {
            expression["values"] = values.iter().map(|value| json!(&**value)).collect();
        }
        expression
    });
    match expressions.collect::<Vec<Value>>() {
        none if none.is_empty() => json!({}),
        expressions => json!({"matchExpressions": expressions}),
    }
}

pub(super) fn read_selector(value: &Value) -> Result<Selector, String> {
    let empty = Map::new();
    let fields = match value {
        Value::Null => &empty,
        value => value.as_object().ok_or("a selector is not an object")?,
    };
    if let Some(unknown) =
        fields.keys().find(|key| !["matchLabels", "matchExpressions"].contains(&key.as_str()))
    {
        return Err(format!("a selector has no field {unknown}"));
    }
    let mut requirements = Vec::new();
    for (key, value) in fields.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().ok_or("a label value is not a string")?;
        requirements.push(Requirement::equals(key.as_str(), value));
    }
    for one in fields.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let key: Name = text(one, "key")?.into();
        let values = one["values"].as_array().into_iter().flatten();
        let values = values.filter_map(Value::as_str).map(Name::from).collect();
        requirements.push(match text(one, "operator")? {
            "In" => Requirement::In(key, values),
            "NotIn" => Requirement::NotIn(key, values),
            "Exists" => Requirement::Exists(key),
            "DoesNotExist" => Requirement::Absent(key),
            other => return Err(format!("{other} is not a valid operator")),
        });
    }
    Ok(requirements.into_iter().collect())
}
