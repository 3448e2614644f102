//! Parsing of the bytes of a response to a [`Tree`].

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{MapEntry, Tree, TreeValue};

/// The line of every part of a tree that was not read from a file.
const LINE: u32 = 1;

/// The deepest value that is read. Nothing that weir reads is nearly as deep, but users can write
/// managed fields of any depth: deeper values become null, so that the object stays readable.
const MAX_DEPTH: usize = 64;

/// Reads a tree straight from the bytes of a response, or from any other serde format. Repeated
/// keys are kept, as they are in files.
impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ValueVisitor { depth: 0 }.deserialize(deserializer)
    }
}

/// Reads a value at a depth.
#[derive(Clone, Copy)]
struct ValueVisitor {
    depth: usize,
}

impl ValueVisitor {
    fn inner(self) -> Self {
        ValueVisitor { depth: self.depth + 1 }
    }
}

impl<'de> DeserializeSeed<'de> for ValueVisitor {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        let value = if self.depth > MAX_DEPTH {
            IgnoredAny::deserialize(deserializer).map(|_| TreeValue::Null)?
        } else {
            deserializer.deserialize_any(self)?
        };
        Ok(Tree { line: LINE, value })
    }
}

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
        while let Some(item) = seq.next_element_seed(self.inner())? {
            items.push(item);
        }
        Ok(TreeValue::Seq(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TreeValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key()? {
            let value = map.next_value_seed(self.inner())?;
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
    fn a_repeated_key_is_kept_and_deep_nesting_is_cut_off() {
        let repeated: Tree = serde_json::from_str(r#"{"a": 1, "a": 2}"#).unwrap();
        assert_eq!(repeated.entries().len(), 2);
        for (open, close) in [("[", "]"), ("{\"f:a\":", "}")] {
            let deep = open.repeat(100_000) + "1" + &close.repeat(100_000);
            let tree: Tree = serde_json::from_str(&format!("[{deep},7]")).unwrap();
            assert_eq!(tree.items()[1].written(), Some("7"));
            let mut values = vec![&tree];
            let mut depth = 0;
            while let Some(value) = values.pop() {
                depth += 1;
                values.extend(value.items().first());
                values.extend(value.entries().first().map(|entry| &entry.value));
            }
            assert_eq!(depth, MAX_DEPTH + 2);
        }
    }
}
