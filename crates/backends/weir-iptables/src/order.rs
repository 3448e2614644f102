//! In which order sets change that rules ask one after the other.
//!
//! Rules of NetworkPolicies only allow, so that any order will do as long as members come before others go. Rules of admin policies
//! are asked in turn, and the first that fits decides. Who comes into several of their sets comes into the one that is asked first,
//! and into the next one when every packet has arrived that missed it in the first; who goes, goes from the last one first. Only what
//! is asked about packets that admin policies pass on is there before they are passed on, and goes after that.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{IpFamily, Name};

use crate::{Act, Entry, Kind, Rule, plan::Draft, skeleton};

/// Chains of both families.
pub(crate) type Chains = BTreeMap<(IpFamily, Name), Vec<Rule>>;

/// What rules ask sets in turn.
pub(crate) struct Turns<'a> {
    /// The sets that rules of admin policies ask.
    pub(crate) in_turn: &'a BTreeSet<Name>,
    /// The chains as they are at one time or another.
    pub(crate) chains: &'a dyn Fn() -> Vec<Chains>,
}

/// A set and some of its entries, which come or go.
pub(crate) type Part<T> = (Name, Kind, Vec<T>);

impl Turns<'_> {
    /// Some entries of sets, in groups: each has those that are asked before those of the next.
    pub(crate) fn groups<T>(
        &self,
        all: Vec<Part<T>>,
        entry: impl Fn(&T) -> &Entry,
    ) -> Vec<Vec<Part<T>>> {
        let levels = self.levels(&all, entry);
        let mut groups: BTreeMap<usize, Vec<Part<T>>> = BTreeMap::new();
        for one in all {
            let level = levels.get(&one.0).copied().unwrap_or_default();
            groups.entry(level).or_default().push(one);
        }
        groups.into_values().collect()
    }

    /// The sets of peers for which no order will do, and those that others move in together with them. Rules that pass packets on ask
    /// one of them, and a peer comes into some and goes from others; or each of them would have to be before another.
    pub(crate) fn passed_on(&self, draft: &Draft) -> BTreeSet<Name> {
        let names = draft.added.iter().map(|(name, ..)| name);
        if !names
            .chain(draft.removed.iter().map(|(name, ..)| name))
            .any(|name| self.in_turn.contains(name))
        {
            return BTreeSet::new();
        }
        let moves = self.moves(draft);
        if moves.is_empty() {
            return BTreeSet::new();
        }
        let chains = (self.chains)();
        let passing = chains.iter().flat_map(BTreeMap::values).flatten();
        let passing: BTreeSet<&Name> = passing
            .filter(|rule| rule.chain() == Some(&skeleton::pass()))
            .flat_map(Rule::sets)
            .collect();
        let is_stuck = |Move { sets, both_ways }: &&Move<'_>| {
            let turns = || chains.iter().flat_map(|chains| turns(chains, sets)).collect();
            !sets.is_disjoint(&passing) && (*both_ways || goes_round(turns()))
        };
        let mut stuck: BTreeSet<&Name> =
            moves.iter().filter(is_stuck).flat_map(|one| &one.sets).copied().collect();
        let mut known = 0;
        while stuck.len() > known {
            known = stuck.len();
            for Move { sets, .. } in &moves {
                if !sets.is_disjoint(&stuck) {
                    stuck.extend(sets);
                }
            }
        }
        stuck.into_iter().cloned().collect()
    }

    /// The ways in which peers come into several sets and go from them, where rules ask one of them in turn.
    fn moves<'d>(&self, draft: &'d Draft) -> BTreeSet<Move<'d>> {
        let coming = places(&draft.added, |(entry, _)| entry);
        let going = places(&draft.removed, |entry| entry);
        let mut moves: BTreeMap<IpAddr, Move<'d>> = BTreeMap::new();
        for (peer, sets) in coming {
            moves.insert(peer, Move { sets, both_ways: false });
        }
        for (peer, sets) in going {
            let one = moves.entry(peer).or_default();
            one.both_ways = !one.sets.is_empty();
            one.sets.extend(sets);
        }
        let in_turn = |one: &Move<'_>| {
            one.sets.len() > 1 && one.sets.iter().any(|name| self.in_turn.contains(*name))
        };
        moves.into_values().filter(in_turn).collect()
    }

    /// How many sets must be asked before a set; nothing is said of those that do not need to wait.
    fn levels<T>(&self, all: &[Part<T>], entry: impl Fn(&T) -> &Entry) -> BTreeMap<Name, usize> {
        let sets = self.shared(all, entry);
        if sets.is_empty() {
            return BTreeMap::new();
        }
        let chains = (self.chains)();
        let turns: BTreeSet<(&Name, &Name)> =
            chains.iter().flat_map(|chains| turns(chains, &sets)).collect();
        let mut levels: BTreeMap<Name, usize> = BTreeMap::new();
        // As long as nobody is asked both before and after somebody else, this ends when nothing is left to be done.
        for _ in 0..sets.len() {
            for (first, then) in &turns {
                let least = levels.get(*first).copied().unwrap_or_default() + 1;
                let level = levels.entry((*then).clone()).or_default();
                *level = least.max(*level);
            }
        }
        levels
    }

    /// The sets that have a member in common, where rules ask one of them in turn.
    fn shared<'s, T>(
        &self,
        all: &'s [Part<T>],
        entry: impl Fn(&T) -> &Entry,
    ) -> BTreeSet<&'s Name> {
        let mut shared = BTreeSet::new();
        if !all.iter().any(|(name, ..)| self.in_turn.contains(name)) {
            return shared;
        }
        for sets in places(all, entry).into_values().filter(|sets| sets.len() > 1) {
            if sets.iter().any(|name| self.in_turn.contains(*name)) {
                shared.extend(sets);
            }
        }
        shared
    }
}

/// The sets that each peer comes into, or goes from.
fn places<T>(all: &[Part<T>], entry: impl Fn(&T) -> &Entry) -> BTreeMap<IpAddr, BTreeSet<&Name>> {
    let mut places: BTreeMap<IpAddr, BTreeSet<&Name>> = BTreeMap::new();
    for (name, kind, entries) in all {
        for peer in entries.iter().filter_map(|one| peer(*kind, entry(one))) {
            places.entry(peer).or_default().insert(name);
        }
    }
    places
}

/// The peer that an entry of a set of peers is about.
fn peer(kind: Kind, entry: &Entry) -> Option<IpAddr> {
    match (kind, entry) {
        (Kind::Addresses, Entry::Address(peer)) | (Kind::Ports, Entry::Port(peer, ..)) => {
            Some(*peer)
        }
        _ => None,
    }
}

/// The sets that a peer moves in at once.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct Move<'d> {
    sets: BTreeSet<&'d Name>,
    /// It comes into some, and goes from others.
    both_ways: bool,
}

/// Which of some sets must come before which others that have another answer: those that are asked first. But what a packet meets
/// that is passed on must be there by then.
fn turns<'c>(chains: &'c Chains, sets: &BTreeSet<&Name>) -> Vec<(&'c Name, &'c Name)> {
    let mut pairs = Vec::new();
    for ((family, _), rules) in chains {
        let mut tier = 0;
        let mut asked: Vec<(&Name, &Act, usize)> = Vec::new();
        for rule in rules {
            let asking = match &rule.act {
                Act::Jump(chain) => {
                    chains.get(&(*family, chain.clone())).map_or(&[][..], |all| all)
                }
                _ => std::slice::from_ref(rule),
            };
            // The mark of those that are passed on is taken away before the first tier and after it.
            tier += usize::from(matches!(rule.act, Act::Mark { .. }));
            for one in asking {
                let of_it = one.sets().filter(|set| sets.contains(set));
                asked.extend(of_it.map(|set| (set, &one.act, tier)));
            }
        }
        for (at, (first, answer, tier)) in asked.iter().enumerate() {
            for (then, other, later) in &asked[at + 1..] {
                if other == answer || then == first {
                    continue;
                }
                let is_passed_on = later > tier && **answer == Act::Goto(skeleton::pass());
                pairs.push(if is_passed_on { (*then, *first) } else { (*first, *then) });
            }
        }
    }
    pairs
}

/// Whether each of some sets must come before another of them.
fn goes_round(mut turns: BTreeSet<(&Name, &Name)>) -> bool {
    loop {
        let before = turns.len();
        let waiting: BTreeSet<&Name> = turns.iter().map(|(_, then)| *then).collect();
        turns.retain(|(first, _)| waiting.contains(first));
        if turns.is_empty() || turns.len() == before {
            return !turns.is_empty();
        }
    }
}
