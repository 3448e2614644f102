//! The order in which members change where several tiers ask about them.
//!
//! A packet asks the admin tier first and, if that passes, another tier later, and members may change in between. It must not meet
//! an admin tier that does not know a pod yet and a later one that does. So whoever changes in both changes in stages:
//!
//! ```text
//!   1. the admin tier does what it did and, where it passed, what it will do
//!   2. the other tiers change
//!   3. the admin tier does what it will do
//!   4. pods get their new rules
//! ```
//!
//! In each of these states, and between two of them, a packet meets what was or what will be.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Action, Delta, Member, Name, Program, SetDelta, SetId};

use crate::{Key, Planner, Transaction, peers::Memberships};

/// What a delta means for the maps of a ruleset, and whether it takes stages.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// The sets that addresses are in now, by map.
    maps: BTreeMap<Name, BTreeMap<IpAddr, Memberships>>,
    /// Whether the tiers change one after the other.
    are_several: bool,
}

impl Stages {
    pub(crate) fn of(planner: &Planner, program: &Program, delta: &Delta) -> Self {
        let mut stages = Stages::default();
        // What nobody needs any more stays until nobody asks for it.
        let changes = delta.sets.iter().filter(|(_, change)| **change != SetDelta::Gone);
        changes.clone().for_each(|(id, change)| stages.follow(planner, program, id, change));
        let admin = stages.maps.iter().any(|(name, _)| is_admin(planner, name))
            || delta.endpoints.values().flatten().any(|endpoint| {
                !endpoint.rules.ingress.admin.is_empty() || !endpoint.rules.egress.admin.is_empty()
            });
        if admin {
            let moves = Moves::of(changes.filter(|(id, _)| planner.is_asked_later(id)));
            stages.are_several = stages.need_order(planner, &moves)
                || moves.is_moving && !delta.endpoints.is_empty();
        }
        stages
    }

    /// Brings sets and maps up to date. Returns what must be done before anything else happens.
    pub(crate) fn members(
        &self,
        planner: &mut Planner,
        program: &Program,
        delta: &Delta,
    ) -> Transaction {
        let mut first = Transaction::default();
        if self.are_several {
            self.bridge(planner);
            first = planner.transaction();
        }
        for (id, change) in delta.sets.iter().filter(|(_, change)| **change != SetDelta::Gone) {
            planner.follow(program, id, change);
        }
        self.settle(planner, |is_admin| !is_admin);
        if self.are_several {
            first = first.then(planner.transaction());
        }
        self.settle(planner, |is_admin| is_admin);
        if self.are_several {
            first = first.then(planner.transaction());
        }
        first
    }

    /// Empties what follows sets that are gone, if it stays.
    pub(crate) fn gone(&self, planner: &mut Planner, program: &Program, delta: &Delta) {
        let mut rest = Stages::default();
        for (id, change) in delta.sets.iter().filter(|(_, change)| **change == SetDelta::Gone) {
            planner.follow(program, id, change);
            rest.follow(planner, program, id, change);
        }
        rest.settle(planner, |_| true);
    }

    fn follow(&mut self, planner: &Planner, program: &Program, id: &SetId, change: &SetDelta) {
        let Some(followers) = planner.followers.get(id) else { return };
        for name in &followers.maps {
            if let Some(map) = planner.maps.get(name) {
                map.follow(program, id, change, self.maps.entry(name.clone()).or_default());
            }
        }
    }

    /// Whether some address is decided about anew by an admin tier and, at the same time, by a later one.
    fn need_order(&self, planner: &Planner, moves: &Moves) -> bool {
        self.maps.iter().filter(|(name, _)| is_admin(planner, name)).any(|(name, touched)| {
            let Some(map) = planner.maps.get(name) else { return false };
            let mut later = touched.iter().filter(|(address, _)| moves.touched.contains(address));
            later.any(|(address, sets)| {
                let [before, after] = map.around(*address, sets);
                before.or(&after) != before || moves.is_moving && after != before
            })
        })
    }

    /// Lets every admin tier do what it did and, where it passed, what it will do.
    fn bridge(&self, planner: &mut Planner) {
        let Planner { maps, objects, .. } = planner;
        for (name, touched) in &self.maps {
            let Some(map) = maps.get_mut(name).filter(|map| map.judge.end == Action::Pass) else {
                continue;
            };
            for (address, sets) in touched {
                let [before, after] = map.around(*address, sets);
                let both = before.or(&after);
                if both != before {
                    map.unsettle(*address);
                    let aim = map.aim(objects, &both);
                    objects.put(name, Key::Address(*address), Some(aim.into()));
                }
            }
        }
    }

    /// Leads every address that changed where it belongs, in some of the maps.
    fn settle(&self, planner: &mut Planner, wanted: impl Fn(bool) -> bool) {
        let Planner { maps, objects, .. } = planner;
        for (name, touched) in &self.maps {
            let Some(map) = maps.get_mut(name).filter(|map| wanted(map.judge.end == Action::Pass))
            else {
                continue;
            };
            for (address, sets) in touched {
                let key = Key::Address(*address);
                match map.settle(objects, *address, sets.clone()) {
                    Some(aim) => objects.put_aim(name, key, aim),
                    None => objects.take(name, &key),
                }
            }
        }
    }
}

impl Planner {
    /// Whether something is made of a set that is asked after the admin tier.
    fn is_asked_later(&self, id: &SetId) -> bool {
        self.followers.get(id).is_some_and(|them| {
            !them.copies.is_empty() || them.maps.iter().any(|name| !is_admin(self, name))
        })
    }
}

fn is_admin(planner: &Planner, name: &Name) -> bool {
    planner.maps.get(name).is_some_and(|map| map.judge.end == Action::Pass)
}

/// Who comes into sets, and who goes.
#[derive(Debug, Default)]
struct Moves {
    touched: BTreeSet<IpAddr>,
    /// Whether someone may go from one set and come into another.
    is_moving: bool,
}

impl Moves {
    fn of<'a>(changes: impl Iterator<Item = (&'a SetId, &'a SetDelta)>) -> Self {
        let (mut coming, mut going) = (BTreeSet::new(), BTreeSet::new());
        let address = |member: &Member| member.address;
        for (_, change) in changes {
            match change {
                SetDelta::Change { added, removed } => {
                    coming.extend(added.iter().map(address));
                    going.extend(removed.iter().map(address));
                }
                SetDelta::Put(members) => {
                    coming.extend(members.iter().map(address));
                    going.extend(members.iter().map(address));
                }
                SetDelta::Gone => (),
            }
        }
        let is_moving = !coming.is_disjoint(&going);
        coming.append(&mut going);
        Moves { touched: coming, is_moving }
    }
}
