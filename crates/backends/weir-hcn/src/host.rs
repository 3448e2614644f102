use std::fmt;

use crate::{Inventory, document::Endpoint};

/// The host network service of a machine, as far as this backend needs it.
pub trait Host {
    /// All endpoints and networks, and the machine's addresses.
    fn inventory(&mut self) -> Result<Inventory, HostError>;

    /// One endpoint.
    fn endpoint(&mut self, id: &str) -> Result<Endpoint, HostError>;

    /// Changes an endpoint.
    fn modify(&mut self, id: &str, request: &str) -> Result<(), HostError>;

    /// All endpoints, without waiting: `None` if they are not known yet. Then they are asked for, and this is to be called again.
    fn glance(&mut self) -> Option<Result<Inventory, HostError>> {
        Some(self.inventory())
    }

    /// Whether something was said to have happened to endpoints since this was asked last. It is only a hint.
    fn hinted(&mut self) -> bool {
        false
    }
}

/// Why HNS did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostError {
    /// The function that was called.
    pub call: &'static str,
    /// Its result.
    pub code: u32,
    /// What HNS said about it.
    pub record: String,
}

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The endpoint is no longer there: its pod has ended.
    Gone,
    /// HNS cannot be reached, does not answer, or starts.
    Away,
    /// It does not accept this for this endpoint.
    Refused,
}

impl HostError {
    /// HNS does not answer: the code of a call that took too long.
    pub const TIMEOUT: u32 = 0x8007_05B4;
    /// The answer cannot be understood.
    pub const SENSELESS: u32 = 0x8007_000D;

    /// An answer that cannot be understood.
    pub(crate) fn senseless(call: &'static str, error: &serde_json::Error) -> Self {
        HostError { call, code: Self::SENSELESS, record: error.to_string() }
    }

    /// What it means.
    pub fn meaning(&self) -> Meaning {
        /// Endpoint not found, element not found; not attached.
        const GONE: [u32; 3] = [0x803B_0002, 0x8007_0490, 0x803B_0034];
        /// Too late; the manager stopped; the interface is unknown, the server not available; the DLL or a function of it missing.
        const AWAY: [u32; 8] = [
            HostError::TIMEOUT,
            0x803B_0020,
            0x8007_06B5,
            0x8007_06BA,
            0x8007_06BE,
            0x8007_007E,
            0x8007_007F,
            HostError::SENSELESS,
        ];
        // The typed error is not always there.
        let says_gone = self.record.to_ascii_lowercase().contains("endpoint was not found");
        match self.code {
            code if GONE.contains(&code) || says_gone => Meaning::Gone,
            code if AWAY.contains(&code) => Meaning::Away,
            _ => Meaning::Refused,
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
