//! The order of changes to the sets of rules that are evaluated in order.
//!
//! Rules of NetworkPolicies only allow, so any order works as long as additions precede removals.
//! Rules of admin policies are evaluated in order, and the first match decides. A peer that joins
//! several of their sets joins the set that is evaluated first, and the next one after every packet
//! in flight has left the chains. A peer that leaves, leaves the last set first. Exception: entries
//! consulted after a Pass are added before the Pass entry and removed after it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Direction, IpFamily, Name};

use crate::{Entry, IpSetKind, IptablesRule, IptablesTarget, plan::Draft, skeleton};

/// Chains of both families.
pub(crate) type Chains = BTreeMap<(IpFamily, Name), Vec<IptablesRule>>;

/// The evaluation order of sets.
pub(crate) struct EvaluationOrder<'a> {
    /// The sets of ordered rules, which admin policies have.
    pub(crate) ordered_sets: &'a BTreeSet<Name>,
    /// The chains before and after the change.
    pub(crate) chains: &'a dyn Fn() -> Vec<Chains>,
}

/// A set with some entries to add or remove.
pub(crate) type SetEntries<T> = (Name, IpSetKind, Vec<T>);

impl EvaluationOrder<'_> {
    /// Groups entries of sets. The sets of each group are evaluated before those of the next.
    pub(crate) fn groups<T>(
        &self,
        all: Vec<SetEntries<T>>,
        entry: impl Fn(&T) -> &Entry,
    ) -> Vec<Vec<SetEntries<T>>> {
        let levels = self.levels(&all, entry);
        let mut groups: BTreeMap<usize, Vec<SetEntries<T>>> = BTreeMap::new();
        for one in all {
            let level = levels.get(&one.0).copied().unwrap_or_default();
            groups.entry(level).or_default().push(one);
        }
        groups.into_values().collect()
    }

    /// The sets of peers for which no order is safe, and sets that share a moving peer with them.
    /// A Pass rule uses one of the sets, and either a peer joins some and leaves others, or their
    /// order is cyclic. Or a peer joins a set that rules use, and another one with another action that
    /// they use only after the change.
    pub(crate) fn unorderable(&self, draft: &Draft) -> BTreeSet<Name> {
        let names = draft.added.iter().map(|(name, ..)| name);
        let names = names.chain(draft.removed.iter().map(|(name, ..)| name));
        if !names
            .chain(draft.created.iter().map(|(name, ..)| name))
            .any(|name| self.ordered_sets.contains(name))
        {
            return BTreeSet::new();
        }
        let (moves, joined) = (self.moves(draft), self.joined_together(draft));
        if moves.is_empty() && joined.is_empty() {
            return BTreeSet::new();
        }
        let chains = (self.chains)();
        let passing = chains.iter().flat_map(BTreeMap::values).flatten();
        let passing: BTreeSet<&Name> = passing
            .filter(|rule| rule.chain() == Some(&skeleton::pass()))
            .flat_map(IptablesRule::sets)
            .collect();
        let is_stuck = |Move { sets, both_ways }: &&Move<'_>| {
            let pairs = || chains.iter().flat_map(|chains| constraints(chains, sets)).collect();
            !sets.is_disjoint(&passing) && (*both_ways || is_cyclic(pairs()))
        };
        let mut stuck: BTreeSet<&Name> =
            moves.iter().filter(is_stuck).flat_map(|one| &one.sets).copied().collect();
        if let [before, after] = &chains[..] {
            stuck.extend(used_before_others(before, after, &joined));
        }
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

    /// The moves of peers between several sets, of which ordered rules use at least one.
    fn moves<'d>(&self, draft: &'d Draft) -> BTreeSet<Move<'d>> {
        let joining = sets_by_peer(&draft.added, |(entry, _)| entry);
        let leaving = sets_by_peer(&draft.removed, |entry| entry);
        let mut moves: BTreeMap<IpAddr, Move<'d>> = BTreeMap::new();
        for (peer, sets) in joining {
            moves.insert(peer, Move { sets, both_ways: false });
        }
        for (peer, sets) in leaving {
            let one = moves.entry(peer).or_default();
            one.both_ways = !one.sets.is_empty();
            one.sets.extend(sets);
        }
        let is_ordered = |one: &Move<'_>| {
            one.sets.len() > 1 && one.sets.iter().any(|name| self.ordered_sets.contains(*name))
        };
        moves.into_values().filter(is_ordered).collect()
    }

    /// The sets that each peer joins, new ones included. Ordered rules use at least one of them.
    fn joined_together<'d>(&self, draft: &'d Draft) -> BTreeSet<BTreeSet<&'d Name>> {
        let mut joined = sets_by_peer(&draft.added, |(entry, _)| entry);
        if !joined.is_empty() {
            for (new, kind, _, entries) in &draft.created {
                for peer in entries.iter().filter_map(|(entry, _)| peer(*kind, entry)) {
                    joined.entry(peer).and_modify(|sets| _ = sets.insert(new));
                }
            }
        }
        let is_ordered = |sets: &BTreeSet<&Name>| {
            sets.len() > 1 && sets.iter().any(|name| self.ordered_sets.contains(*name))
        };
        joined.into_values().filter(is_ordered).collect()
    }

    /// The level of each set: the number of sets that must precede it. Sets without constraints are
    /// not included.
    fn levels<T>(
        &self,
        all: &[SetEntries<T>],
        entry: impl Fn(&T) -> &Entry,
    ) -> BTreeMap<Name, usize> {
        let sets = self.contested(all, entry);
        if sets.is_empty() {
            return BTreeMap::new();
        }
        let chains = (self.chains)();
        let pairs: BTreeSet<(&Name, &Name)> =
            chains.iter().flat_map(|chains| constraints(chains, &sets)).collect();
        let mut levels: BTreeMap<Name, usize> = BTreeMap::new();
        // Without a cycle, this reaches a fixed point after as many rounds as there are sets.
        for _ in 0..sets.len() {
            for (first, then) in &pairs {
                let least = levels.get(*first).copied().unwrap_or_default() + 1;
                let level = levels.entry((*then).clone()).or_default();
                *level = least.max(*level);
            }
        }
        levels
    }

    /// The sets that share a member, if ordered rules use one of them.
    fn contested<'s, T>(
        &self,
        all: &'s [SetEntries<T>],
        entry: impl Fn(&T) -> &Entry,
    ) -> BTreeSet<&'s Name> {
        let mut contested = BTreeSet::new();
        if !all.iter().any(|(name, ..)| self.ordered_sets.contains(name)) {
            return contested;
        }
        for sets in sets_by_peer(all, entry).into_values().filter(|sets| sets.len() > 1) {
            if sets.iter().any(|name| self.ordered_sets.contains(*name)) {
                contested.extend(sets);
            }
        }
        contested
    }
}

/// The sets that each peer joins or leaves.
fn sets_by_peer<T>(
    all: &[SetEntries<T>],
    entry: impl Fn(&T) -> &Entry,
) -> BTreeMap<IpAddr, BTreeSet<&Name>> {
    let mut by_peer: BTreeMap<IpAddr, BTreeSet<&Name>> = BTreeMap::new();
    for (name, kind, entries) in all {
        for peer in entries.iter().filter_map(|one| peer(*kind, entry(one))) {
            by_peer.entry(peer).or_default().insert(name);
        }
    }
    by_peer
}

/// The peer of an entry in a set of peers.
fn peer(kind: IpSetKind, entry: &Entry) -> Option<IpAddr> {
    match (kind, entry) {
        (IpSetKind::Addresses, Entry::Address(peer))
        | (IpSetKind::Ports, Entry::Port(peer, ..)) => Some(*peer),
        _ => None,
    }
}

/// The sets that a peer joins and leaves in one change.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct Move<'d> {
    sets: BTreeSet<&'d Name>,
    /// Whether it joins some and leaves others.
    both_ways: bool,
}

/// Pairs of sets with different actions, in the order in which they must change: first the one that
/// is evaluated first. After a Pass, the order is reversed, because the entries consulted after it
/// must already exist.
fn constraints<'c>(chains: &'c Chains, sets: &BTreeSet<&Name>) -> Vec<(&'c Name, &'c Name)> {
    let mut pairs = Vec::new();
    for ((family, _), rules) in chains {
        let lookups = lookups(chains, *family, rules, sets);
        for (at, (first, target, tier)) in lookups.iter().enumerate() {
            for (then, other_target, later) in &lookups[at + 1..] {
                if is_same_action(target, other_target) || then == first {
                    continue;
                }
                let is_passed_on =
                    later > tier && **target == IptablesTarget::Goto(skeleton::pass());
                pairs.push(if is_passed_on { (*then, *first) } else { (*first, *then) });
            }
        }
    }
    pairs
}

/// The lookups of a chain and of those that it calls in some sets: the set, the target and the tier.
fn lookups<'c>(
    chains: &'c Chains,
    family: IpFamily,
    rules: &'c [IptablesRule],
    sets: &BTreeSet<&Name>,
) -> Vec<(&'c Name, &'c IptablesTarget, usize)> {
    let (mut tier, mut lookups) = (0, Vec::new());
    for rule in rules {
        let called = rule.chain().and_then(|chain| chains.get(&(family, chain.clone())));
        let evaluated = std::iter::once(rule).chain(called.into_iter().flatten());
        // A rule that clears marks stands before and after the admin tier.
        tier += usize::from(matches!(rule.target, IptablesTarget::Mark { .. }));
        for one in evaluated {
            let used = one.sets().filter(|set| sets.contains(set));
            lookups.extend(used.map(|set| (set, &one.target, tier)));
        }
    }
    lookups
}

/// The sets that a chain uses before a change, if it uses another one, with another action, only after
/// it. A peer that joins both would meet the first one alone.
fn used_before_others<'p>(
    before: &Chains,
    after: &Chains,
    joined: &BTreeSet<BTreeSet<&'p Name>>,
) -> BTreeSet<&'p Name> {
    let sets: BTreeSet<&Name> = joined.iter().flatten().copied().collect();
    let mut found = BTreeSet::new();
    for (key, rules) in before {
        let Some(changed) = after.get(key) else { continue };
        let old = lookups(before, key.0, rules, &sets);
        let mut new = lookups(after, key.0, changed, &sets);
        let known: BTreeSet<&Name> = old.iter().map(|(set, ..)| *set).collect();
        new.retain(|(set, ..)| !known.contains(set));
        if old.is_empty() || new.is_empty() {
            continue;
        }
        for together in joined {
            let later = new.iter().filter(|(set, ..)| together.contains::<Name>(set));
            let differs =
                |target| later.clone().any(|(_, other, _)| !is_same_action(target, other));
            let met = old.iter().filter(|(_, target, _)| differs(target));
            found.extend(met.filter_map(|(set, ..)| together.get::<Name>(set).copied()));
        }
    }
    found
}

/// Whether two rules treat a packet equally. Admin policies mark a packet that they allow, and
/// NetworkPolicies let it leave.
fn is_same_action(one: &IptablesTarget, other: &IptablesTarget) -> bool {
    let allows = |target: &IptablesTarget| {
        *target == IptablesTarget::Goto(skeleton::allow())
            || Direction::BOTH.into_iter().any(|direction| *target == skeleton::allowed(direction))
    };
    one == other || allows(one) && allows(other)
}

/// Whether the order is cyclic.
fn is_cyclic(mut pairs: BTreeSet<(&Name, &Name)>) -> bool {
    loop {
        let before = pairs.len();
        let waiting: BTreeSet<&Name> = pairs.iter().map(|(_, then)| *then).collect();
        pairs.retain(|(first, _)| waiting.contains(first));
        if pairs.is_empty() || pairs.len() == before {
            return !pairs.is_empty();
        }
    }
}
