//! In which order sets change that rules ask one after the other.
//!
//! Rules of NetworkPolicies only allow, so that any order will do as long as members come before others go. Rules of admin policies
//! are asked in turn, and the first that fits decides. Who comes into several of their sets comes into the one that is asked first,
//! and into the next one when every packet has arrived that missed it in the first; who goes, goes from the last one first.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::Name;

use crate::{Act, Entry, Family, Kind, Rule, plan::Draft, skeleton};

/// Chains of both families.
pub(crate) type Chains = BTreeMap<(Family, Name), Vec<Rule>>;

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

    /// The sets of peers that come into some and go from others, where rules that pass packets on ask one of them. Neither order
    /// will do: what a packet meets that is passed on must not change before or after that.
    pub(crate) fn passed_on(&self, draft: &Draft) -> BTreeSet<Name> {
        let names = draft.added.iter().map(|(name, ..)| name);
        if !names
            .chain(draft.removed.iter().map(|(name, ..)| name))
            .any(|name| self.in_turn.contains(name))
        {
            return BTreeSet::new();
        }
        let coming = places(&draft.added, |(entry, _)| entry);
        let going = places(&draft.removed, |entry| entry);
        let both = coming.into_iter().filter_map(|(peer, into)| {
            let sets: BTreeSet<&Name> = into.union(going.get(&peer)?).copied().collect();
            sets.iter().any(|name| self.in_turn.contains(*name)).then_some(sets)
        });
        let both: Vec<BTreeSet<&Name>> = both.collect();
        if both.is_empty() {
            return BTreeSet::new();
        }
        let chains = (self.chains)();
        let passing = chains.iter().flat_map(BTreeMap::values).flatten();
        let passing: BTreeSet<&Name> = passing
            .filter(|rule| rule.chain() == Some(&skeleton::pass()))
            .flat_map(Rule::sets)
            .collect();
        let moving = both.into_iter().filter(|sets| !sets.is_disjoint(&passing));
        moving.flatten().cloned().collect()
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

/// Which of some sets are asked before which others that have another answer.
fn turns<'c>(chains: &'c Chains, sets: &BTreeSet<&Name>) -> Vec<(&'c Name, &'c Name)> {
    let mut pairs = Vec::new();
    for ((family, _), rules) in chains {
        let asked: Vec<(&Name, &Act)> = rules
            .iter()
            .flat_map(|rule| match &rule.act {
                Act::Jump(chain) => {
                    chains.get(&(*family, chain.clone())).map_or(&[][..], |all| all)
                }
                _ => std::slice::from_ref(rule),
            })
            .flat_map(|rule| rule.sets().map(|set| (set, &rule.act)))
            .filter(|(set, _)| sets.contains(set))
            .collect();
        for (at, (first, answer)) in asked.iter().enumerate() {
            let others =
                asked[at + 1..].iter().filter(|(then, other)| other != answer && then != first);
            pairs.extend(others.map(|(then, _)| (*first, *then)));
        }
    }
    pairs
}
