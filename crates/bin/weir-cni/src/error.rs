use std::fmt::Display;

use serde_json::{Value, json};

/// The version of the specification is not supported.
pub(crate) const VERSION: u32 = 1;
/// A variable of the environment is missing or makes no sense.
pub(crate) const ENVIRONMENT: u32 = 4;
/// Something cannot be read or written.
pub(crate) const IO: u32 = 5;
/// The configuration is no JSON.
pub(crate) const DECODING: u32 = 6;
/// The configuration makes no sense.
pub(crate) const CONFIGURATION: u32 = 7;
/// It may work later.
pub(crate) const LATER: u32 = 11;
/// No pod can be added now.
pub(crate) const UNAVAILABLE: u32 = 50;
/// A pod's policies are not in force. The first code that plugins may use as they like.
pub(crate) const NOT_JUDGED: u32 = 100;

/// An error as the CNI specification wants it.
#[derive(Debug)]
pub(crate) struct CniError {
    code: u32,
    what: String,
    details: String,
}

impl CniError {
    pub(crate) fn new(code: u32, what: impl Into<String>, details: impl Display) -> Self {
        CniError { code, what: what.into(), details: details.to_string() }
    }

    pub(crate) fn json(&self, version: String) -> Value {
        let CniError { code, what, details } = self;
        json!({ "cniVersion": version, "code": code, "msg": what, "details": details })
    }

    /// The whole of it, as a line.
    pub(crate) fn line(&self) -> String {
        format!("{}: {}", self.what, self.details)
    }
}
