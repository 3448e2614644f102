use std::fmt::Display;

use serde_json::{Value, json};

/// The version of the specification is not supported.
pub(crate) const VERSION: u32 = 1;
/// An environment variable is missing or invalid.
pub(crate) const ENVIRONMENT: u32 = 4;
/// Input or output failed.
pub(crate) const IO: u32 = 5;
/// The configuration is not JSON.
pub(crate) const DECODING: u32 = 6;
/// The configuration is invalid.
pub(crate) const CONFIGURATION: u32 = 7;
/// The runtime should try again later.
pub(crate) const TRY_AGAIN_LATER: u32 = 11;
/// The plugin cannot add pods now.
pub(crate) const UNAVAILABLE: u32 = 50;
/// The rules of the pod are not in force. This is the first code that plugins may define
/// themselves.
pub(crate) const NOT_IN_FORCE: u32 = 100;

/// An error as the CNI specification defines it.
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

    /// The error in one line.
    pub(crate) fn line(&self) -> String {
        format!("{}: {}", self.what, self.details)
    }
}
