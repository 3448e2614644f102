use std::{collections::BTreeMap, error::Error, fmt};

use weir_model::PodId;

/// Why a datapath could not apply or read something.
#[derive(Debug)]
pub struct ApplyError {
    /// How the ledger reacts to the error.
    pub kind: ApplyErrorKind,
    /// The operation that failed.
    pub what: String,
    /// The cause.
    pub source: Box<dyn Error + Send + Sync>,
}

/// How the ledger reacts to an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyErrorKind {
    /// The machine rejected the plan and nothing of it is in force. The ledger bisects it.
    Rejected,
    /// The machine is unreachable or has no capacity now. The ledger retries the same plan.
    Unavailable,
    /// The machine carried out the plan except for these pods, each with the reason. They keep
    /// their old rules. A pod without old rules passes nothing, as far as the machine allows that.
    Partial(BTreeMap<PodId, String>),
}

impl ApplyError {
    /// The error and its chain of causes on one line.
    pub fn with_causes(&self) -> String {
        let mut line = self.what.clone();
        let mut next = self.source();
        while let Some(cause) = next {
            line.push_str(": ");
            line.push_str(&cause.to_string());
            next = cause.source();
        }
        line
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for ApplyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
