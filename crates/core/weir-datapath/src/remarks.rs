use std::fmt;

use weir_model::{PodId, PolicyId};

/// What a backend has to say about itself, beside what is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// What it cannot express, and made stricter.
    pub shortfalls: Vec<Shortfall>,
    /// Whom it waits for, and what else is wrong with the machine.
    pub warnings: Vec<String>,
    /// How many rules of its own it keeps in force, if it counts them.
    pub rules: Option<usize>,
}

/// Something that a backend cannot express. What it does instead allows less, never more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shortfall {
    /// The pod whose rules are stricter for it.
    pub pod: PodId,
    /// The policy that asks for it, if it is one.
    pub policy: Option<PolicyId>,
    /// What is not expressed.
    pub what: String,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.policy {
            Some(policy) => write!(f, "{policy} for {}: {}", self.pod, self.what),
            None => write!(f, "{}: {}", self.pod, self.what),
        }
    }
}
