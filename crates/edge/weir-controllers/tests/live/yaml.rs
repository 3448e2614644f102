//! YAML as JSON.

use serde_json::Value;
use weir_api::document;

/// A document of YAML.
pub(crate) fn yaml(text: &str) -> Value {
    let (trees, _, error) = document::documents(text.as_bytes());
    assert_eq!(error, None, "{text}");
    Value::from(trees.last().unwrap())
}
