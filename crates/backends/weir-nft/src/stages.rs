//! The order in which members change when several tiers look them up.
//!
//! A packet consults the admin tier and, if that passes it on, a later tier. Members may change in
//! between. A packet must not meet an old admin tier and a new later tier. So addresses that change
//! in both change in stages:
//!
//! ```text
//!   1. the admin tier decides as before and, where it passed, as it will
//!   2. the later tiers change
//!   3. the admin tier decides as it will
//!   4. pods get their new rules
//! ```
//!
//! In each of these states, and between two of them, a packet meets the old or the new decision.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Action, Delta, Member, Name, Program, SetDelta, SetId};

use crate::{ElementKey, Planner, Transaction, peers::Memberships};

/// The effect of a delta on the maps of a ruleset, and whether it needs stages.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// The new set memberships of changed addresses, by map.
    maps: BTreeMap<Name, BTreeMap<IpAddr, Memberships>>,
    /// Whether the tiers must change in stages.
    are_needed: bool,
}

impl Stages {
    pub(crate) fn from_delta(planner: &Planner, program: &Program, delta: &Delta) -> Self {
        let mut stages = Stages::default();
        // A removed set keeps its members until no rule names it: see `empty_removed`.
        let changes = delta.sets.iter().filter(|(_, change)| **change != SetDelta::Gone);
        changes.clone().for_each(|(id, change)| stages.record_change(planner, program, id, change));
        let admin = stages.maps.iter().any(|(name, _)| is_admin(planner, name))
            || delta.endpoints.values().flatten().any(|endpoint| {
                !endpoint.rules.ingress.admin.is_empty() || !endpoint.rules.egress.admin.is_empty()
            });
        if admin {
            let moves = Moves::from_changes(changes.filter(|(id, _)| planner.is_used_later(id)));
            stages.are_needed = stages.change_in_both(planner, &moves)
                || moves.is_moving && !delta.endpoints.is_empty();
        }
        stages
    }

    /// Updates sets and maps. Returns the steps that must precede all others.
    pub(crate) fn update_members(
        &self,
        planner: &mut Planner,
        program: &Program,
        delta: &Delta,
    ) -> Transaction {
        let mut first = Transaction::default();
        if self.are_needed {
            self.bridge(planner);
            first = planner.take_transaction();
        }
        for (id, change) in delta.sets.iter().filter(|(_, change)| **change != SetDelta::Gone) {
            planner.update_copies(program, id, change);
        }
        self.update_maps(planner, |is_admin| !is_admin);
        if self.are_needed {
            first = first.then(planner.take_transaction());
        }
        self.update_maps(planner, |is_admin| is_admin);
        if self.are_needed {
            first = first.then(planner.take_transaction());
        }
        first
    }

    /// Removes the members of removed sets from copies and maps that stay.
    pub(crate) fn empty_removed(&self, planner: &mut Planner, program: &Program, delta: &Delta) {
        let mut rest = Stages::default();
        for (id, change) in delta.sets.iter().filter(|(_, change)| **change == SetDelta::Gone) {
            planner.update_copies(program, id, change);
            rest.record_change(planner, program, id, change);
        }
        rest.update_maps(planner, |_| true);
    }

    fn record_change(
        &mut self,
        planner: &Planner,
        program: &Program,
        id: &SetId,
        change: &SetDelta,
    ) {
        for name in planner.dependents.kernel_sets(id) {
            if let Some(map) = planner.maps.get(name) {
                map.record_change(program, id, change, self.maps.entry(name.clone()).or_default());
            }
        }
    }

    /// Whether the decisions about some address change in an admin tier and in a later tier.
    fn change_in_both(&self, planner: &Planner, moves: &Moves) -> bool {
        self.maps.iter().filter(|(name, _)| is_admin(planner, name)).any(|(name, touched)| {
            let Some(map) = planner.maps.get(name) else { return false };
            let mut later = touched.iter().filter(|(address, _)| moves.touched.contains(address));
            later.any(|(address, sets)| {
                let [before, after] = map.around(*address, sets);
                before.or(&after) != before || moves.is_moving && after != before
            })
        })
    }

    /// Makes every admin tier decide as before and, where it passed, as it will.
    fn bridge(&self, planner: &mut Planner) {
        let Planner { maps, objects, .. } = planner;
        for (name, touched) in &self.maps {
            let Some(map) = maps.get_mut(name).filter(|map| map.compiler.end == Action::Pass)
            else {
                continue;
            };
            for (address, sets) in touched {
                let [before, after] = map.around(*address, sets);
                let both = before.or(&after);
                if both != before {
                    map.forget_address(*address);
                    let data = map.element_data(objects, &both);
                    objects.put_element(name, ElementKey::Address(*address), Some(data.into()));
                }
            }
        }
    }

    /// Updates the changed addresses in the maps of some tiers.
    fn update_maps(&self, planner: &mut Planner, is_selected: impl Fn(bool) -> bool) {
        let Planner { maps, objects, .. } = planner;
        for (name, touched) in &self.maps {
            let Some(map) =
                maps.get_mut(name).filter(|map| is_selected(map.compiler.end == Action::Pass))
            else {
                continue;
            };
            for (address, sets) in touched {
                let key = ElementKey::Address(*address);
                match map.update_address(objects, *address, sets.clone()) {
                    Some(data) => objects.put_data(name, key, data),
                    None => objects.remove_element(name, &key),
                }
            }
        }
    }
}

impl Planner {
    /// Whether a later tier than the admin tier looks up members of a set.
    fn is_used_later(&self, id: &SetId) -> bool {
        self.dependents.kernel_sets(id).any(|name| !is_admin(self, name))
    }
}

fn is_admin(planner: &Planner, name: &Name) -> bool {
    planner.maps.get(name).is_some_and(|map| map.compiler.end == Action::Pass)
}

/// The addresses that join or leave sets.
#[derive(Debug, Default)]
struct Moves {
    touched: BTreeSet<IpAddr>,
    /// Whether an address may leave one set and join another.
    is_moving: bool,
}

impl Moves {
    fn from_changes<'a>(changes: impl Iterator<Item = (&'a SetId, &'a SetDelta)>) -> Self {
        let (mut joining, mut leaving) = (BTreeSet::new(), BTreeSet::new());
        let address = |member: &Member| member.address;
        for (_, change) in changes {
            match change {
                SetDelta::Change { added, removed } => {
                    joining.extend(added.iter().map(address));
                    leaving.extend(removed.iter().map(address));
                }
                SetDelta::Put(members) => {
                    joining.extend(members.iter().map(address));
                    leaving.extend(members.iter().map(address));
                }
                SetDelta::Gone => (),
            }
        }
        let is_moving = !joining.is_disjoint(&leaving);
        joining.append(&mut leaving);
        Moves { touched: joining, is_moving }
    }
}
