use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::IpAddr,
    sync::Arc,
};

use crate::{Member, Name, PodId, Program, RuleSet, SetId};

/// What changed between two states of the compiled rules; for endpoints, `None` means gone.
///
/// Sets change by members: a pod event on a set of 100,000 addresses must not cost 100,000 of anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// The endpoints that are new, changed or gone.
    pub endpoints: BTreeMap<PodId, Option<Endpoint>>,
    /// The sets that are new, changed or gone.
    pub sets: BTreeMap<SetId, SetDelta>,
}

/// A pod that the node enforces rules for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The addresses it owns, sorted.
    pub addresses: Vec<IpAddr>,
    /// The node it runs on: connections between the two are never judged.
    pub node: Option<Name>,
    /// What is decided for it.
    pub rules: Arc<RuleSet>,
}

/// What happened to a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetDelta {
    /// It is now exactly this, whatever it was.
    Put(BTreeSet<Member>),
    /// These came and went. The two have nothing in common, and neither was already so.
    Change {
        /// Members that came.
        added: BTreeSet<Member>,
        /// Members that went.
        removed: BTreeSet<Member>,
    },
    /// Nobody needs it any more.
    Gone,
}

impl Delta {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.sets.is_empty()
    }

    /// The delta of `self` and then `later`. A slow datapath has one delta waiting, never a queue.
    pub fn then(mut self, later: Delta) -> Delta {
        self.endpoints.extend(later.endpoints);
        for (id, next) in later.sets {
            match self.sets.entry(id) {
                Entry::Vacant(entry) => drop(entry.insert(next)),
                Entry::Occupied(mut entry) => match entry.get_mut().then(next) {
                    true => (),
                    false => drop(entry.remove()),
                },
            }
        }
        self
    }
}

/// All of it, as if nothing had been there before.
impl From<&Program> for Delta {
    fn from(program: &Program) -> Self {
        let endpoints = program.endpoints.iter();
        let sets = program.sets.iter();
        Delta {
            endpoints: endpoints.map(|(id, one)| (id.clone(), Some(one.clone()))).collect(),
            sets: sets.map(|(id, all)| (id.clone(), SetDelta::Put(all.clone()))).collect(),
        }
    }
}

impl SetDelta {
    /// Takes in what happened later; `false` if the two cancel out.
    fn then(&mut self, later: SetDelta) -> bool {
        match (&mut *self, later) {
            (SetDelta::Put(members), SetDelta::Change { added, removed }) => {
                for member in &removed {
                    members.remove(member);
                }
                members.extend(added);
            }
            (
                SetDelta::Change { added, removed },
                SetDelta::Change { added: more, removed: fewer },
            ) => {
                for member in fewer {
                    if !added.remove(&member) {
                        removed.insert(member);
                    }
                }
                for member in more {
                    if !removed.remove(&member) {
                        added.insert(member);
                    }
                }
                return !(added.is_empty() && removed.is_empty());
            }
            // A set that is gone has no members to change; what follows can only be `Put`.
            (_, later) => *self = later,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Selector, SetKey};

    fn change(added: &[u8], removed: &[u8]) -> Delta {
        let set =
            |last: &[u8]| last.iter().map(|&n| Member::from(IpAddr::from([10, 0, 0, n]))).collect();
        let id = SetId::new(SetKey::Nodes(Selector::everything()));
        Delta {
            sets: [(id, SetDelta::Change { added: set(added), removed: set(removed) })].into(),
            ..Delta::default()
        }
    }

    #[test]
    fn coming_and_going_cancels_out() {
        assert!(change(&[1], &[2]).then(change(&[2], &[1])).is_empty());
        assert_eq!(change(&[1], &[]).then(change(&[3], &[1, 2])), change(&[3], &[2]));
    }
}
