//! Conversions between a [`Tree`] and `serde_json`'s values, without text in between.

use serde_json::{Map, Number, Value as Json};

use super::{MapEntry, Tree, TreeValue};

/// Every part of the tree is in line 1.
impl From<&Json> for Tree {
    fn from(json: &Json) -> Self {
        let value = match json {
            Json::Null => TreeValue::Null,
            Json::Bool(value) => TreeValue::Bool(*value, value.to_string().into()),
            Json::Number(number) => {
                let text = number.to_string().into();
                number.as_i64().map_or(TreeValue::Float(text), |whole| {
                    TreeValue::Int(whole, whole.to_string().into())
                })
            }
            Json::String(text) => TreeValue::Str(text.as_str().into()),
            Json::Array(items) => TreeValue::Seq(items.iter().map(Tree::from).collect()),
            Json::Object(entries) => TreeValue::Map(
                entries
                    .iter()
                    .map(|(key, value)| MapEntry {
                        key: key.as_str().into(),
                        written: None,
                        line: 1,
                        value: Tree::from(value),
                    })
                    .collect(),
            ),
        };
        Tree { line: 1, value }
    }
}

/// The last of several equal keys wins. A number that JSON cannot express becomes text.
impl From<&Tree> for Json {
    fn from(tree: &Tree) -> Self {
        match &tree.value {
            TreeValue::Null => Json::Null,
            TreeValue::Bool(value, _) => Json::Bool(*value),
            TreeValue::Int(value, _) => Json::from(*value),
            TreeValue::Float(text) => {
                number(text).map_or_else(|| Json::from(&**text), Json::Number)
            }
            TreeValue::Str(text) => Json::from(&**text),
            TreeValue::Seq(items) => items.iter().map(Json::from).collect(),
            TreeValue::Map(entries) => {
                let entry = |entry: &MapEntry| (entry.key.to_string(), Json::from(&entry.value));
                Json::Object(entries.iter().map(entry).collect::<Map<_, _>>())
            }
        }
    }
}

fn number(text: &str) -> Option<Number> {
    let whole = text.parse::<u64>().ok().map(Number::from);
    whole.or_else(|| Number::from_f64(text.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::document::documents;

    #[test]
    fn a_value_converts_to_the_tree_of_its_text_and_back() {
        let json = json!({
            "apiVersion": "v1",
            "spec": {"on": true, "port": 80, "ratio": 0.5, "big": u64::MAX, "none": null},
            "items": [1, "two", []],
        });
        let (roots, ..) = documents(json.to_string().as_bytes());
        assert_eq!(roots, [Tree::from(&json)]);
        assert_eq!(Json::from(&roots[0]), json);
    }
}
