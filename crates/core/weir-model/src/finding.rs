use std::fmt;

use crate::Name;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file as the user named it.
    pub file: Name,
    /// The line, from 1; 0 if unknown.
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

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Probably not what was meant.
    Warning,
    /// Wrong: refused by the API server, or not what it claims to be.
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

/// Something to say about the input. Findings are values: they never stop the work on the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Where.
    pub location: Option<Location>,
    /// A short, stable word for the kind of finding, as documented.
    pub code: &'static str,
    /// How bad.
    pub severity: Severity,
    /// The object, as `Kind namespace/name`; empty if there is none.
    pub object: String,
    /// The path of the field inside the object, as in `spec.ingress[0].ports[1].port`; empty if it is about the whole.
    pub field: String,
    /// What is wrong and what was expected.
    pub message: String,
    /// What to do.
    pub hint: String,
}
