//! Files with the names of policies, for endpoints whose groups are named after policies.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    name,
    object::{HostprotRule, Pol, PolSpec, Subj},
};

/// The HostprotPols of each policy, as `namespace/name`.
#[derive(Debug, Default)]
pub(crate) struct FilePolicies {
    pols: BTreeMap<String, BTreeSet<String>>,
    dirty: BTreeSet<String>,
}

impl FilePolicies {
    /// Records the policies of an object.
    pub(crate) fn add(&mut self, name: &str, pol: &Pol) {
        for policy in &pol.spec.network_policies {
            self.pols.entry(policy.clone()).or_default().insert(name.into());
        }
        self.touch(pol);
    }

    /// Removes the policies of an object.
    pub(crate) fn remove(&mut self, name: &str, pol: &Pol) {
        for policy in &pol.spec.network_policies {
            if let Some(pols) = self.pols.get_mut(policy) {
                pols.remove(name);
                if pols.is_empty() {
                    self.pols.remove(policy);
                }
            }
        }
        self.touch(pol);
    }

    /// Marks the files of an object's policies as dirty.
    pub(crate) fn touch(&mut self, pol: &Pol) {
        self.dirty.extend(pol.spec.network_policies.iter().cloned());
    }

    /// The next dirty policy, with the names of its objects.
    pub(crate) fn next_dirty(&mut self) -> Option<(String, BTreeSet<String>)> {
        let policy = self.dirty.pop_first()?;
        let pols = self.pols.get(&policy).cloned().unwrap_or_default();
        Some((policy, pols))
    }
}

/// The ACI name of a policy.
pub(crate) fn policy_name(prefix: &str, policy: &str) -> String {
    name::policy_object(prefix, "np", policy)
}

/// The content of a policy's file. A policy has several objects if a named port has different
/// numbers on the pods that it selects. All of them list the one group, so it has only the rules
/// that all objects have. Returns whether some are left out.
pub(crate) fn combined(name: String, pols: &[&Pol]) -> (PolSpec, bool) {
    let Some((first, others)) = pols.split_first() else {
        return (PolSpec { name, ..PolSpec::default() }, false);
    };
    let mut is_narrower = false;
    let subjects = first.spec.hostprot_subj.iter().map(|subject| {
        let is_everywhere = |rule: &&HostprotRule| {
            others.iter().all(|other| {
                let same = other.spec.hostprot_subj.iter().filter(|one| one.name == subject.name);
                same.flat_map(|one| &one.hostprot_rule).any(|one| is_equivalent(one, rule))
            })
        };
        let rules: Vec<HostprotRule> =
            subject.hostprot_rule.iter().filter(is_everywhere).cloned().collect();
        let widest = pols.iter().flat_map(|pol| &pol.spec.hostprot_subj);
        let widest = widest.filter(|one| one.name == subject.name);
        is_narrower |= widest.map(|one| one.hostprot_rule.len()).any(|len| len > rules.len());
        Subj { name: subject.name.clone(), hostprot_rule: rules }
    });
    let hostprot_subj = subjects.collect();
    let network_policies = first.spec.network_policies.clone();
    (PolSpec { name, hostprot_subj, network_policies }, is_narrower)
}

/// Whether two rules allow the same.
fn is_equivalent(one: &HostprotRule, other: &HostprotRule) -> bool {
    *one == HostprotRule { name: one.name.clone(), ..other.clone() }
}
