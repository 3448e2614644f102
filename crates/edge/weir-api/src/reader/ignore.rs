//! Annotations that ask `weir lint` to ignore findings.

use std::ops::RangeInclusive;

use weir_model::{Location, Name, ObjectRef};

use super::ManifestReader;
use crate::{
    document::{Tree, TreeValue},
    lower::ListKind,
};

/// The prefix of the annotations: `ignore-lint.weir.dev/CODE: REASON`.
pub(super) const PREFIX: &str = "ignore-lint.weir.dev/";

/// An annotation that asks `weir lint` to ignore findings about its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoreAnnotation {
    /// The object. The namespace is empty if the manifest gives none.
    pub object: ObjectRef,
    /// The code of the findings.
    pub code: String,
    /// The reason: the value of the annotation.
    pub reason: String,
    /// The annotation.
    pub location: Option<Location>,
    /// The lines of the object.
    pub lines: RangeInclusive<u32>,
}

impl ManifestReader {
    /// Keeps the annotations of an object that ask to ignore findings.
    pub(super) fn add_ignores(&mut self, file: &Name, tree: &Tree, list: Option<&ListKind>) {
        let Some(metadata) = tree.get("metadata") else { return };
        let annotations = metadata.get("annotations").map_or(&[][..], Tree::entries);
        for entry in annotations {
            let Some(code) = entry.key.strip_prefix(PREFIX) else { continue };
            let text = |key| metadata.get(key).and_then(Tree::written).unwrap_or_default();
            let kind = tree.get("kind").and_then(Tree::text);
            let kind = kind.or(list.map(|list| &*list.kind)).unwrap_or_default();
            self.ignores.push(IgnoreAnnotation {
                object: ObjectRef {
                    kind: kind.into(),
                    namespace: text("namespace").into(),
                    name: text("name").into(),
                },
                code: code.to_owned(),
                reason: entry.value.text().unwrap_or_default().trim().to_owned(),
                location: Some(Location { file: file.clone(), line: entry.line }),
                lines: tree.line..=last_line(tree),
            });
        }
    }
}

fn last_line(tree: &Tree) -> u32 {
    let inner = match &tree.value {
        TreeValue::Map(entries) => {
            entries.iter().map(|entry| entry.line.max(last_line(&entry.value))).max()
        }
        TreeValue::Seq(items) => items.iter().map(last_line).max(),
        _ => None,
    };
    inner.unwrap_or_default().max(tree.line)
}
