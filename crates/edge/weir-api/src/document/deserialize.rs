//! Parsing of the bytes of a response to a [`Tree`].

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};

use super::{MapEntry, Tree, TreeValue};

/// The line of every part of a tree that was not read from a file.
const LINE: u32 = 1;

/// Reads a tree straight from the bytes of a response, or from any other serde format. Repeated
/// keys are kept, as they are in files.
impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = deserializer.deserialize_any(ValueVisitor)?;
        Ok(Tree { line: LINE, value })
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = TreeValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<TreeValue, E> {
        Ok(TreeValue::Bool(value, if value { "true" } else { "false" }.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<TreeValue, E> {
        Ok(int_value(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<TreeValue, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => int_value(value),
            Err(_) => TreeValue::Float(value.to_string().into()),
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<TreeValue, E> {
        Ok(TreeValue::Float(value.to_string().into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<TreeValue, E> {
        Ok(TreeValue::Str(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<TreeValue, E> {
        Ok(TreeValue::Str(value.into()))
    }

    fn visit_none<E>(self) -> Result<TreeValue, E> {
        Ok(TreeValue::Null)
    }

    fn visit_unit<E>(self) -> Result<TreeValue, E> {
        Ok(TreeValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<TreeValue, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<TreeValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(TreeValue::Seq(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TreeValue, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry()? {
            entries.push(MapEntry { key, written: None, line: LINE, value });
        }
        Ok(TreeValue::Map(entries))
    }
}

fn int_value(value: i64) -> TreeValue {
    TreeValue::Int(value, value.to_string().into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bytes_values_and_files_give_equal_trees() {
        let value = json!({
            "text": "ä\"\n", "int": -3, "big": u64::MAX, "float": 1.5, "yes": true, "null": null,
            "list": [1, [], {}], "map": {"a": {"b": "c"}},
        });
        let text = value.to_string();
        let from_bytes: Tree = serde_json::from_str(&text).unwrap();
        assert_eq!(from_bytes, Tree::from(&value));
        assert_eq!(from_bytes, super::super::documents(text.as_bytes()).0.remove(0));
    }

    #[test]
    fn a_repeated_key_is_kept_and_deep_nesting_is_an_error() {
        let repeated: Tree = serde_json::from_str(r#"{"a": 1, "a": 2}"#).unwrap();
        assert_eq!(repeated.entries().len(), 2);
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        assert!(serde_json::from_str::<Tree>(&deep).is_err());
    }
}
