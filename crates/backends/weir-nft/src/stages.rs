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
//! Tiers whose rules are in sequence hold the addresses from the first stage to the last one: see
//! `tier_sequence`.
//!
//! A tier itself looks up several sets, and the first one with the peer decides. So an address that
//! joins some of them joins those first that a packet looks up first. It leaves the others when it
//! has joined all new ones.
//!
//! Until the last stage, pods have their old rules, which may name sets that are removed. These keep
//! all members that do not change otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Delta, Member, Name, Program, SetDelta, SetId};

use crate::{ElementKey, Planner, Transaction, layout::Level, moves::Move, peers::Memberships};

/// The effect of a delta on the sets of peers, and whether it needs stages.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// The new set memberships of changed addresses, by the name of the sets of peers.
    peers: BTreeMap<Name, BTreeMap<IpAddr, Memberships>>,
    /// Whether the tiers must change in stages.
    are_needed: bool,
}

/// The changes of addresses, by the name of the sets of peers.
type Moves = Vec<(Name, Vec<Move>)>;

impl Stages {
    pub(crate) fn from_delta(planner: &Planner, program: &Program, delta: &Delta) -> Self {
        let mut stages = Stages::default();
        let changes = delta.sets.iter();
        changes.clone().for_each(|(id, change)| stages.record_change(planner, program, id, change));
        let admin = stages.peers.iter().any(|(name, _)| is_admin(planner, name))
            || delta.endpoints.values().flatten().any(|endpoint| {
                !endpoint.rules.ingress.admin.is_empty() || !endpoint.rules.egress.admin.is_empty()
            });
        if admin {
            let moves =
                MovedMembers::from_changes(changes.filter(|(id, _)| planner.is_used_later(id)));
            stages.are_needed = stages.change_in_both(planner, &moves)
                || moves.is_moving && !delta.endpoints.is_empty();
        }
        stages.are_needed |= stages.must_hold(planner);
        stages
    }

    /// Updates the members of sets. Returns the steps that must precede all others.
    pub(crate) fn update_members(&self, planner: &mut Planner, delta: &Delta) -> Transaction {
        if !self.are_needed {
            let later = self.update_peers(planner, |is_admin| !is_admin);
            let admin = self.update_peers(planner, |is_admin| is_admin);
            let mut first = planner.add_by_level(&later);
            delta.sets.iter().for_each(|(id, change)| planner.update_copies(id, change));
            planner.remove_moved(&later);
            // The admin tier must not pass a packet on before the later tiers know its peer.
            if planner.is_split(&admin) {
                first = first.then(planner.take_transaction());
            }
            first = first.then(planner.add_by_level(&admin));
            planner.remove_moved(&admin);
            return first;
        }
        let bridge = self.bridge(planner);
        let held = self.hold(planner);
        let mut first = planner.move_addresses(&bridge);
        let later = self.update_peers(planner, |is_admin| !is_admin);
        first = first.then(planner.add_by_level(&later));
        delta.sets.iter().for_each(|(id, change)| planner.update_copies(id, change));
        planner.remove_moved(&later);
        first = first.then(planner.take_transaction());
        first = first.then(planner.release(&held, |is_admin| !is_admin));
        let admin = self.update_peers(planner, |is_admin| is_admin);
        first = first.then(planner.move_addresses(&admin));
        first.then(planner.release(&held, |is_admin| is_admin))
    }

    fn record_change(
        &mut self,
        planner: &Planner,
        program: &Program,
        id: &SetId,
        change: &SetDelta,
    ) {
        for name in planner.dependents.kernel_sets(id) {
            if let Some(peers) = planner.peer_sets.get(name) {
                peers.record_change(
                    program,
                    id,
                    change,
                    self.peers.entry(name.clone()).or_default(),
                );
            }
        }
    }

    /// Whether the decisions about some address change in an admin tier and in a later tier.
    fn change_in_both(&self, planner: &Planner, moves: &MovedMembers) -> bool {
        self.peers.iter().filter(|(name, _)| is_admin(planner, name)).any(|(name, touched)| {
            let Some(peers) = planner.peer_sets.get(name) else { return false };
            let mut later = touched.iter().filter(|(address, _)| moves.touched.contains(address));
            later.any(|(address, sets)| {
                let Some([before, after]) = peers.around(*address, sets) else { return false };
                // Rules in sequence may pass a packet as soon as an address joins a set.
                let is_moving = moves.is_moving || peers.held().is_some();
                before.or(&after) != before || is_moving && after != before
            })
        })
    }

    /// Whether some address must be held while it changes.
    fn must_hold(&self, planner: &Planner) -> bool {
        self.peers.iter().any(|(name, touched)| {
            let peers = planner.peer_sets.get(name);
            let mut touched = touched.iter();
            peers.is_some_and(|peers| touched.any(|(at, sets)| peers.must_hold(*at, sets)))
        })
    }

    /// Holds the addresses that change in rules in sequence. The admin tier decides as before and,
    /// where it passed, as it will; the baseline tier decides as before.
    fn hold(&self, planner: &mut Planner) -> Vec<Held> {
        let mut held = Vec::new();
        let Planner { peer_sets, objects, .. } = planner;
        for (name, touched) in &self.peers {
            let Some(peers) = peer_sets.get(name) else { continue };
            let Some((compiler, map)) = peers.held() else { continue };
            for (address, sets) in touched {
                let Some([before, after]) = peers.around(*address, sets) else { continue };
                if before == after && !peers.must_hold(*address, sets) {
                    continue;
                }
                let decision = if peers.is_admin() { before.or(&after) } else { before };
                let data = compiler.element_data(objects, &decision.for_ports());
                let key = ElementKey::Address(*address);
                objects.put_element(map, key.clone(), Some(data.into()));
                held.push(Held { is_admin: peers.is_admin(), map: map.clone(), key });
            }
        }
        held
    }

    /// Makes every merged admin tier decide as before and, where it passed, as it will.
    fn bridge(&self, planner: &mut Planner) -> Moves {
        let mut moves = Moves::new();
        for (name, touched) in &self.peers {
            let peers = planner.peer_sets.get_mut(name);
            let Some(peers) = peers.filter(|peers| peers.is_admin()) else { continue };
            let bridged = touched.iter();
            let bridged = bridged.filter_map(|(at, sets)| peers.bridge_address(*at, sets));
            moves.push((name.clone(), bridged.collect()));
        }
        moves
    }

    /// Updates the changed addresses in the sets of some tiers.
    fn update_peers(&self, planner: &mut Planner, is_selected: impl Fn(bool) -> bool) -> Moves {
        let mut moves = Moves::new();
        for (name, touched) in &self.peers {
            let peers = planner.peer_sets.get_mut(name);
            let Some(peers) = peers.filter(|peers| is_selected(peers.is_admin())) else { continue };
            let updated = touched.iter().map(|(at, sets)| peers.update_address(*at, sets));
            moves.push((name.clone(), updated.collect()));
        }
        moves
    }
}

/// An element that holds an address.
struct Held {
    is_admin: bool,
    map: Name,
    key: ElementKey,
}

impl Planner {
    /// Releases the held addresses of some tiers.
    fn release(&mut self, held: &[Held], is_selected: impl Fn(bool) -> bool) -> Transaction {
        for Held { map, key, .. } in held.iter().filter(|held| is_selected(held.is_admin)) {
            self.objects.remove_element(map, key);
        }
        self.take_transaction()
    }

    /// Adds addresses to their new sets and removes them from the old ones.
    fn move_addresses(&mut self, moves: &Moves) -> Transaction {
        let first = self.add_by_level(moves);
        self.remove_moved(moves);
        first.then(self.take_transaction())
    }

    /// Adds addresses to their new sets. If an address joins sets of several levels, returns the
    /// steps that must precede all others.
    fn add_by_level(&mut self, moves: &Moves) -> Transaction {
        let is_split = self.is_split(moves);
        let mut first = Transaction::default();
        for level in Level::ALL {
            self.add_moved(moves, level);
            if is_split && level != Level::AllPorts {
                first = first.then(self.take_transaction());
            }
        }
        first
    }

    /// Whether an address joins sets of several levels.
    fn is_split(&self, moves: &Moves) -> bool {
        moves.iter().any(|(name, moves)| {
            let slots = self.peer_sets.get(name).map_or(&[][..], |peers| peers.slots());
            moves.iter().any(|one| {
                let levels = Level::ALL.iter();
                levels.filter(|level| one.added(slots, **level).next().is_some()).count() > 1
            })
        })
    }

    fn add_moved(&mut self, moves: &Moves, level: Level) {
        let Planner { peer_sets, objects, .. } = self;
        for (name, moves) in moves {
            let slots = peer_sets.get(name).map_or(&[][..], |peers| peers.slots());
            for (slot, key) in moves.iter().flat_map(|one| one.added(slots, level)) {
                objects.put_element(&slot.set, key, None);
            }
        }
    }

    /// Removes addresses from their old sets.
    fn remove_moved(&mut self, moves: &Moves) {
        let Planner { peer_sets, objects, .. } = self;
        for (name, moves) in moves {
            let slots = peer_sets.get(name).map_or(&[][..], |peers| peers.slots());
            for (slot, key) in moves.iter().flat_map(|one| one.removed(slots)) {
                objects.remove_element(&slot.set, &key);
            }
        }
    }

    /// Whether a later tier than the admin tier looks up members of a set.
    fn is_used_later(&self, id: &SetId) -> bool {
        self.dependents.kernel_sets(id).any(|name| !is_admin(self, name))
    }
}

fn is_admin(planner: &Planner, name: &Name) -> bool {
    planner.peer_sets.get(name).is_some_and(|peers| peers.is_admin())
}

/// The addresses that join or leave sets.
#[derive(Debug, Default)]
struct MovedMembers {
    touched: BTreeSet<IpAddr>,
    /// Whether an address may leave one set and join another.
    is_moving: bool,
}

impl MovedMembers {
    fn from_changes<'a>(changes: impl Iterator<Item = (&'a SetId, &'a SetDelta)>) -> Self {
        let (mut joining, mut leaving) = (BTreeSet::new(), BTreeSet::new());
        let address = |member: &Member| member.address;
        for (_, change) in changes {
            match change {
                SetDelta::Change { added, removed } | SetDelta::Gone { added, removed } => {
                    joining.extend(added.iter().map(address));
                    leaving.extend(removed.iter().map(address));
                }
                SetDelta::Put(members) => {
                    joining.extend(members.iter().map(address));
                    leaving.extend(members.iter().map(address));
                }
            }
        }
        let is_moving = !joining.is_disjoint(&leaving);
        joining.append(&mut leaving);
        MovedMembers { touched: joining, is_moving }
    }
}
