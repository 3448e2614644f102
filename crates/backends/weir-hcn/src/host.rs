use std::fmt;

use crate::{HnsEndpoint, Inventory};

/// The part of the Host Networking Service (HNS) that this backend uses.
pub trait Host {
    /// Lists all endpoints, networks, and addresses of the machine.
    fn inventory(&mut self) -> Result<Inventory, HostError>;

    /// Reads an endpoint.
    fn endpoint(&mut self, id: &str) -> Result<HnsEndpoint, HostError>;

    /// Modifies an endpoint.
    fn modify(&mut self, id: &str, request: &str) -> Result<(), HostError>;

    /// Polls a listing in the background. `None` means that it is still in progress; call again.
    fn poll_inventory(&mut self) -> Option<Result<Inventory, HostError>> {
        Some(self.inventory())
    }

    /// Whether HNS sent a notification about endpoints since the last call. It is only a hint.
    fn was_notified(&mut self) -> bool {
        false
    }
}

/// A call to HNS failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostError {
    /// The function that was called.
    pub call: &'static str,
    /// Its result code.
    pub code: u32,
    /// The error record of HNS.
    pub record: String,
}

/// The class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The endpoint does not exist any more: its pod has ended.
    Gone,
    /// HNS is unreachable, does not respond, or is starting.
    Unavailable,
    /// HNS rejected the request for this endpoint.
    Rejected,
}

impl HostError {
    /// The code of a call that timed out.
    pub const TIMEOUT: u32 = 0x8007_05B4;
    /// The code of an invalid response.
    pub const INVALID_RESPONSE: u32 = 0x8007_000D;

    /// An invalid response.
    pub(crate) fn invalid_response(call: &'static str, error: &serde_json::Error) -> Self {
        HostError { call, code: Self::INVALID_RESPONSE, record: error.to_string() }
    }

    /// Classifies the error.
    pub fn class(&self) -> ErrorClass {
        /// Endpoint not found, element not found, not attached.
        const GONE: [u32; 3] = [0x803B_0002, 0x8007_0490, 0x803B_0034];
        /// Timeout; manager stopped; unknown interface; server unavailable; call failed; DLL or
        /// function missing.
        const UNAVAILABLE: [u32; 8] = [
            HostError::TIMEOUT,
            0x803B_0020,
            0x8007_06B5,
            0x8007_06BA,
            0x8007_06BE,
            0x8007_007E,
            0x8007_007F,
            HostError::INVALID_RESPONSE,
        ];
        // HNS does not always set the typed error code.
        let is_gone = self.record.to_ascii_lowercase().contains("endpoint was not found");
        match self.code {
            code if GONE.contains(&code) || is_gone => ErrorClass::Gone,
            code if UNAVAILABLE.contains(&code) => ErrorClass::Unavailable,
            _ => ErrorClass::Rejected,
        }
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostError { call, code, record } = self;
        write!(f, "{call}: {code:#010x}")?;
        if record.is_empty() { Ok(()) } else { write!(f, " {record}") }
    }
}

impl std::error::Error for HostError {}
