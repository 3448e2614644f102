//! Managed objects (MOs), the records of ACI's object model, in the JSON form that opflex-agent
//! reads.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One managed object. `uri` identifies it, and `subject` is its class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Mo {
    pub(crate) subject: String,
    pub(crate) uri: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) properties: Vec<MoProperty>,
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
pub(crate) struct MoProperty {
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Mo {
    pub(crate) fn new(subject: &str, uri: String) -> Self {
        Mo { subject: subject.into(), uri, ..Mo::default() }
    }

    /// Adds a property.
    pub(crate) fn with(mut self, name: &str, data: impl Into<Value>) -> Self {
        self.properties.push(MoProperty { name: name.into(), data: data.into() });
        self
    }

    /// Adds a property that refers to another object.
    pub(crate) fn with_target(self, subject: &str, uri: &str) -> Self {
        self.with("target", json!({"subject": subject, "reference_uri": uri}))
    }

    /// Makes this object a child of another one, and adds it to the parent's list of children.
    pub(crate) fn under(mut self, parent: &mut Mo) -> Self {
        parent.children.push(self.uri.clone());
        self.parent_subject = parent.subject.clone();
        self.parent_uri = parent.uri.clone();
        self.parent_relation = self.subject.clone();
        self
    }

    /// The value of a property.
    pub(crate) fn property(&self, name: &str) -> Option<&Value> {
        self.properties.iter().find(|property| property.name == name).map(|one| &one.data)
    }
}

/// Percent-encodes the characters that separate the parts of an opflex URI. It does not encode `%`,
/// which the names of policies and rules never contain (see [`crate::name::is_plain`]).
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut percent_encoded = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '/' => percent_encoded += "%2f",
            '[' => percent_encoded += "%5b",
            ']' => percent_encoded += "%5d",
            '|' => percent_encoded += "%7c",
            c => percent_encoded.push(c),
        }
    }
    percent_encoded
}
