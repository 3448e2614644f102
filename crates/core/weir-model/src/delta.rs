use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    mem,
    net::IpAddr,
    sync::Arc,
};

use crate::{Member, Name, PodId, Program, RuleSet, SetId};

/// The difference between two states of the compiled rules. An endpoint that was removed is `None`.
///
/// Sets change by members, so that one pod event on a set of 100,000 addresses stays cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// The endpoints that were added, changed or removed.
    pub endpoints: BTreeMap<PodId, Option<Endpoint>>,
    /// The sets that were added, changed or removed.
    pub sets: BTreeMap<SetId, SetDelta>,
}

/// A pod for which the node enforces rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The addresses it owns, sorted.
    pub addresses: Vec<IpAddr>,
    /// The node it runs on. Connections between the pod and its node are always allowed.
    pub node: Option<Name>,
    /// The rules to enforce.
    pub rules: Arc<RuleSet>,
}

/// The change of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetDelta {
    /// The set has exactly these members.
    Put(BTreeSet<Member>),
    /// Members were added and removed. No member is in both lists, and each entry is an actual
    /// change.
    Change {
        /// The members that were added.
        added: BTreeSet<Member>,
        /// The members that were removed.
        removed: BTreeSet<Member>,
    },
    /// The set was removed: no rule names it any more. While the old rules are still in force, its
    /// members changed like this. Otherwise a peer that leaves two sets would leave only one of
    /// them.
    Gone {
        /// The members that were added.
        added: BTreeSet<Member>,
        /// The members that were removed.
        removed: BTreeSet<Member>,
    },
}

impl Delta {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.sets.is_empty()
    }

    /// Combines this delta with a later one. A slow datapath therefore has one delta pending, never
    /// a queue.
    pub fn then(mut self, later: Delta) -> Delta {
        self.endpoints.extend(later.endpoints);
        for (id, next) in later.sets {
            match self.sets.entry(id) {
                Entry::Vacant(entry) => {
                    entry.insert(next);
                }
                Entry::Occupied(mut entry) => {
                    if !entry.get_mut().then(next) {
                        entry.remove();
                    }
                }
            }
        }
        self
    }
}

/// The delta from an empty program to this one.
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
    /// The removal of a set whose members did not change before.
    pub fn gone() -> Self {
        SetDelta::Gone { added: BTreeSet::new(), removed: BTreeSet::new() }
    }

    /// Whether the set was removed.
    pub fn is_gone(&self) -> bool {
        matches!(self, SetDelta::Gone { .. })
    }

    /// The same change of members, without the removal of the set. `None` if that is nothing.
    pub fn without_removal(self) -> Option<Self> {
        match self {
            SetDelta::Gone { added, removed } => {
                let is_nothing = added.is_empty() && removed.is_empty();
                (!is_nothing).then_some(SetDelta::Change { added, removed })
            }
            other => Some(other),
        }
    }

    /// Adds a later change; `false` if the two cancel out.
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
                combine((&mut *added, &mut *removed), more, fewer);
                return !(added.is_empty() && removed.is_empty());
            }
            (
                SetDelta::Change { added, removed },
                SetDelta::Gone { added: more, removed: fewer },
            ) => {
                let (mut added, mut removed) = (mem::take(added), mem::take(removed));
                combine((&mut added, &mut removed), more, fewer);
                *self = SetDelta::Gone { added, removed };
            }
            // The members that the datapath has installed are unknown here.
            (SetDelta::Put(_), SetDelta::Gone { .. }) => *self = SetDelta::gone(),
            // A removed set has no members to change, so the later delta can only be `Put`.
            (_, later) => *self = later,
        }
        true
    }
}

/// Adds later changes of members to earlier ones.
fn combine(
    (added, removed): (&mut BTreeSet<Member>, &mut BTreeSet<Member>),
    more: BTreeSet<Member>,
    fewer: BTreeSet<Member>,
) {
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
    fn an_addition_and_a_removal_cancel_out() {
        assert!(change(&[1], &[2]).then(change(&[2], &[1])).is_empty());
        assert_eq!(change(&[1], &[]).then(change(&[3], &[1, 2])), change(&[3], &[2]));
    }

    #[test]
    fn a_removed_set_keeps_its_last_changes() {
        let removed = |delta: Delta| {
            let gone = delta.sets.into_iter().map(|(id, change)| {
                let SetDelta::Change { added, removed } = change else { panic!("{change:?}") };
                (id, SetDelta::Gone { added, removed })
            });
            Delta { sets: gone.collect(), ..Delta::default() }
        };
        let both = change(&[1], &[2]).then(removed(change(&[2], &[3])));
        assert_eq!(both, removed(change(&[1], &[3])));
    }
}
