//! Managed objects, as opflex-agent reads them from a file.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One managed object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Mo {
    pub(crate) subject: String,
    pub(crate) uri: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) properties: Vec<Property>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) children: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) parent_subject: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) parent_uri: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) parent_relation: String,
}

/// A property of a managed object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Property {
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Mo {
    pub(crate) fn new(subject: &str, uri: String) -> Self {
        Mo { subject: subject.into(), uri, ..Mo::default() }
    }

    /// With one more property.
    pub(crate) fn with(mut self, name: &str, data: impl Into<Value>) -> Self {
        self.properties.push(Property { name: name.into(), data: data.into() });
        self
    }

    /// With a property that refers to another object.
    pub(crate) fn with_target(self, subject: &str, uri: &str) -> Self {
        self.with("target", json!({"subject": subject, "reference_uri": uri}))
    }

    /// As a child of another object, which learns of it.
    pub(crate) fn under(mut self, parent: &mut Mo) -> Self {
        parent.children.push(self.uri.clone());
        self.parent_subject = parent.subject.clone();
        self.parent_uri = parent.uri.clone();
        self.parent_relation = self.subject.clone();
        self
    }

    /// A property.
    pub(crate) fn property(&self, name: &str) -> Option<&Value> {
        self.properties.iter().find(|property| property.name == name).map(|one| &one.data)
    }
}

/// A text as part of an address of an object.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '/' => escaped += "%2f",
            '[' => escaped += "%5b",
            ']' => escaped += "%5d",
            '|' => escaped += "%7c",
            c => escaped.push(c),
        }
    }
    escaped
}
