//! The policies behind an observation: a few names, and a count. Tenants can create thousands of
//! policies that select one pod.

use std::fmt;

use serde::{Serialize, Serializer};
use weir_model::PolicyId;

/// The most policies that are named.
const MAX_NAMES: usize = 3;

/// The first of some policies, and the number of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyNames {
    #[serde(serialize_with = "as_texts")]
    pub(crate) policies: Vec<PolicyId>,
    pub(crate) more_policies: usize,
}

impl PolicyNames {
    /// These policies, and then those.
    pub(crate) fn join(mut self, other: PolicyNames) -> Self {
        self.policies.extend(other.policies);
        let cut = self.policies.len().saturating_sub(MAX_NAMES);
        self.policies.truncate(MAX_NAMES);
        self.more_policies += other.more_policies + cut;
        self
    }
}

impl<'a> FromIterator<&'a PolicyId> for PolicyNames {
    fn from_iter<I: IntoIterator<Item = &'a PolicyId>>(policies: I) -> Self {
        let mut all = policies.into_iter();
        let policies = all.by_ref().take(MAX_NAMES).cloned().collect();
        PolicyNames { policies, more_policies: all.count() }
    }
}

impl fmt::Display for PolicyNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, policy) in self.policies.iter().enumerate() {
            write!(f, "{}{policy}", if position == 0 { "" } else { ", " })?;
        }
        match self.more_policies {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

fn as_texts<S: Serializer>(policies: &[PolicyId], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(policies.iter().map(PolicyId::to_string))
}
