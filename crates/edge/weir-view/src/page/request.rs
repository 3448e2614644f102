//! The requests of the page, and what answers them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// A request of the page.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PageRequest {
    /// The namespaces, the workloads and the connections between namespaces.
    Overview,
    /// The connections from the workloads of one namespace to those of another.
    Cells {
        /// The index of the source namespace.
        from: usize,
        /// The index of the destination namespace.
        to: usize,
    },
    /// The connections of one workload.
    End {
        /// Its index.
        end: usize,
    },
    /// The reason for the verdict of one connection.
    Explain {
        /// The source, as in `weir explain --from`.
        from: String,
        /// The destination, as in `weir explain --to`.
        to: String,
        /// The port, as in `weir explain --port`.
        port: String,
    },
    /// All policies, with their findings.
    Policies,
    /// One policy, as a manifest.
    Policy {
        /// Its id, as the list of policies has it.
        id: String,
    },
    /// The connections that a change of policies opens and closes.
    WhatIf {
        /// Manifests to apply.
        text: String,
        /// The ids of policies to delete.
        #[serde(default)]
        remove: Vec<String>,
    },
    /// The observed flows.
    Flows {
        /// Only flows that changed after this number; each change has a number.
        #[serde(default)]
        after: u64,
    },
    /// The dropped packets.
    Drops {
        /// Only drops that arrived after this number.
        #[serde(default)]
        after: u64,
    },
    /// Reads the input again.
    Reload,
}

/// Answers the requests of the page.
pub trait PageData: Send + Sync {
    /// The answer as a JSON value.
    fn answer(&self, request: &PageRequest) -> Result<Value, PageError>;
}

impl From<&Failure> for PageError {
    fn from(failure: &Failure) -> Self {
        let mut error = failure.to_string();
        let mut cause = std::error::Error::source(failure);
        while let Some(next) = cause {
            let text = next.to_string();
            // Some libraries include the cause in the message of an error.
            if !error.ends_with(&text) {
                error = format!("{error}: {text}");
            }
            cause = next.source();
        }
        PageError { error, hint: failure.hint().to_owned() }
    }
}

/// A request that cannot be answered. The page shows the message and the hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PageError {
    /// The failure.
    pub error: String,
    /// How to resolve it; can be empty.
    pub hint: String,
}
