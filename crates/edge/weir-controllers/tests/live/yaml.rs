//! YAML as JSON.

use serde_json::{Value, json};
use weir_api::document::{self, Node};

/// A document of YAML.
pub(crate) fn yaml(text: &str) -> Value {
    let (mut nodes, _, error) = document::documents(text.as_bytes());
    assert_eq!(error, None, "{text}");
    value(&nodes.pop().unwrap())
}

fn value(node: &Node) -> Value {
    match &node.value {
        document::Value::Map(entries) => {
            entries.iter().map(|entry| (entry.key.to_string(), value(&entry.value))).collect()
        }
        document::Value::Seq(items) => items.iter().map(value).collect(),
        document::Value::Str(text) => json!(&**text),
        document::Value::Int(number, _) => json!(number),
        document::Value::Bool(flag, _) => json!(flag),
        document::Value::Null => Value::Null,
        other => panic!("{other:?} is in no test"),
    }
}
