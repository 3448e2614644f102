//! Reads YAML as JSON.

use serde_json::Value;
use weir_api::document;

/// The JSON value of a YAML document.
pub(crate) fn yaml(text: &str) -> Value {
    let (trees, _, error) = document::documents(text.as_bytes());
    assert_eq!(error, None, "{text}");
    Value::from(trees.last().unwrap())
}
