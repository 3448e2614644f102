use std::fmt;

use crate::{Key, Name, PodId, PolicyId, ServiceId};

/// A file and a line in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file as the user named it.
    pub file: Name,
    /// The line, starting at 1; 0 if unknown.
    pub line: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// The object that a finding is about. It can be of any kind, even one that weir does not read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// The kind, as in `kind: NetworkPolicy`.
    pub kind: Name,
    /// The namespace, or `""` for an object without one.
    pub namespace: Name,
    /// The name.
    pub name: Name,
}

impl ObjectRef {
    /// A reference to an object outside any namespace.
    pub fn cluster_wide(kind: impl Into<Name>, name: impl Into<Name>) -> Self {
        ObjectRef { kind: kind.into(), namespace: "".into(), name: name.into() }
    }

    fn of_service(kind: &str, ServiceId { namespace, name }: &ServiceId) -> Self {
        ObjectRef { kind: kind.into(), namespace: namespace.clone(), name: name.clone() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectRef { kind, namespace, name } = self;
        match &**namespace {
            "" => write!(f, "{kind} {name}"),
            namespace => write!(f, "{kind} {namespace}/{name}"),
        }
    }
}

impl From<&PolicyId> for ObjectRef {
    fn from(PolicyId { kind, namespace, name }: &PolicyId) -> Self {
        let kind = kind.to_string().into();
        ObjectRef { kind, namespace: namespace.clone(), name: name.clone() }
    }
}

impl From<&PodId> for ObjectRef {
    fn from(PodId { namespace, name }: &PodId) -> Self {
        ObjectRef { kind: "Pod".into(), namespace: namespace.clone(), name: name.clone() }
    }
}

impl From<&Key> for ObjectRef {
    fn from(key: &Key) -> Self {
        match key {
            Key::Pod(id) => ObjectRef::from(id),
            Key::Namespace(name) => ObjectRef::cluster_wide("Namespace", name.clone()),
            Key::Node(name) => ObjectRef::cluster_wide("Node", name.clone()),
            Key::Policy(id) => ObjectRef::from(id),
            Key::Service(id) => ObjectRef::of_service("Service", id),
            Key::EndpointSlice(id) => ObjectRef::of_service("EndpointSlice", id),
            Key::Domain(name) => ObjectRef::cluster_wide("domain name", name.clone()),
        }
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Probably not what the author meant.
    Warning,
    /// Wrong: the API server rejects it, or it does not do what it claims.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// A problem in the input. Findings are values: one broken object never stops the work on the
/// others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file and line.
    pub location: Option<Location>,
    /// The short, stable code that the lint reference documents.
    pub code: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The object; `None` if the finding is not about one object.
    pub object: Option<ObjectRef>,
    /// The path of the field, as in `spec.ingress[0].ports[1].port`; empty for the whole object.
    pub field: String,
    /// The problem, and the expected form.
    pub message: String,
    /// The suggested fix.
    pub hint: String,
}

impl Finding {
    /// The object as text; empty if there is none.
    pub fn object_text(&self) -> String {
        self.object.as_ref().map(ObjectRef::to_string).unwrap_or_default()
    }
}
