use std::collections::{BTreeMap, BTreeSet};

use weir_datapath::Cause;
use weir_model::{Delta, Direction, Member, Name, PodId, Program, SetDelta, SetId};

use crate::{
    Act, Aim, Chain, Family, Field, Go, Hook, Key, Kind, Match, Rule, Ruleset, Set, Step,
    Transaction,
    merge::Merged,
    objects::Objects,
    place::{self, Place},
};

/// Whether what policies deny is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is.
    #[default]
    Enforce,
    /// It is reported, and passes.
    Audit,
}

/// Turns deltas of the compiled rules into transactions of the kernel.
///
/// *Invariant*: after any deltas, its ruleset is the one that a new planner would make of their sum.
#[derive(Clone, Debug)]
pub struct Planner {
    pub(crate) objects: Objects,
    places: BTreeMap<PodId, Place>,
    /// The sets of the ruleset that are copies of sets, or of several together.
    copies: BTreeMap<Name, Copied>,
    /// The maps of the ruleset that say what each member of several sets may do.
    pub(crate) maps: BTreeMap<Name, Merged>,
    followers: BTreeMap<SetId, Followers>,
    /// The chains of the rule sets that were looked at in this plan, by where the rule sets are in memory.
    pub(crate) chains: BTreeMap<(usize, Direction, Family), Name>,
}

/// A set of the ruleset with the members of these.
#[derive(Clone, Debug)]
struct Copied {
    of: Vec<SetId>,
    family: Family,
}

/// What must be looked at again when a set changes.
#[derive(Clone, Debug, Default)]
struct Followers {
    pods: BTreeSet<PodId>,
    copies: BTreeSet<Name>,
    maps: BTreeSet<Name>,
}

impl Followers {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.copies.is_empty() && self.maps.is_empty()
    }
}

impl Planner {
    /// A planner whose ruleset judges nobody.
    pub fn new(mode: Mode) -> Self {
        let mut planner = Planner {
            objects: Objects::default(),
            places: BTreeMap::new(),
            copies: BTreeMap::new(),
            maps: BTreeMap::new(),
            followers: BTreeMap::new(),
            chains: BTreeMap::new(),
        };
        planner.skeleton(mode);
        planner
    }

    /// A planner whose ruleset enforces a program.
    pub fn of(program: &Program, mode: Mode) -> Self {
        let mut planner = Planner::new(mode);
        let pods: BTreeSet<&PodId> = program.endpoints.keys().collect();
        planner.move_pods(program, &pods);
        planner.sweep();
        planner.objects.settle();
        planner
    }

    /// The ruleset that is wanted now.
    pub fn ruleset(&self) -> &Ruleset {
        &self.objects.ruleset
    }

    /// Goes on to `program`, which differs from what it was by `delta`.
    pub fn plan(&mut self, program: &Program, delta: &Delta) -> Transaction {
        let mut touched: BTreeSet<&PodId> = delta.endpoints.keys().collect();
        let small =
            delta.sets.iter().filter(|(id, change)| weir_datapath::may_matter(program, id, change));
        let pods = small.filter_map(|(id, _)| self.followers.get(id)).flat_map(|them| &them.pods);
        let pods: Vec<PodId> = pods.cloned().collect();
        touched.extend(&pods);
        // What pods need that was not there is made of the members as they are now, so the rest comes first.
        for (id, change) in &delta.sets {
            self.follow(program, id, change);
        }
        self.move_pods(program, &touched);
        self.sweep();
        self.objects.transaction()
    }

    fn sweep(&mut self) {
        for dead in self.objects.sweep() {
            self.forget(&dead);
        }
    }

    /// The steps that make a table of everything wanted.
    pub(crate) fn whole(&self) -> Vec<Step> {
        let Ruleset { sets, chains } = self.ruleset();
        let mut steps = vec![Step::AddTable];
        steps.extend(sets.iter().map(|(name, set)| Step::add_set(name, set)));
        steps.extend(chains.iter().map(|(name, chain)| Step::AddChain(name.clone(), chain.hook)));
        let filled = chains.iter().filter(|(_, chain)| !chain.rules.is_empty());
        steps.extend(filled.map(|(name, chain)| Step::AddRules(name.clone(), chain.rules.clone())));
        steps.extend(sets.iter().flat_map(|(name, set)| Step::fill(name, set)));
        steps
    }

    /// Gives every touched pod its new place. New elements come before old ones go, so that what both need stays.
    fn move_pods(&mut self, program: &Program, touched: &BTreeSet<&PodId>) {
        self.chains.clear();
        let mut gone = BTreeSet::new();
        for id in touched {
            let Some(old) = self.places.remove(*id) else { continue };
            for set in &old.follows {
                self.unfollow(set, |them| _ = them.pods.remove(*id));
            }
            gone.extend(old.elements);
        }
        let mut moved = Vec::new();
        for id in touched {
            let Some(endpoint) = program.endpoints.get(*id) else { continue };
            let (place, elements) = place::of(self, program, id, endpoint);
            for set in &place.follows {
                self.followers.entry(set.clone()).or_default().pods.insert((*id).clone());
            }
            for (name, key, aim) in elements {
                gone.remove(&(name.clone(), key.clone()));
                self.objects.put(&name, key, aim);
            }
            moved.push(((*id).clone(), place));
        }
        gone.iter().for_each(|(set, key)| self.objects.take(set, key));
        self.places.extend(moved);
    }

    /// Brings the copies of a set, and the maps made of it, up to date.
    fn follow(&mut self, program: &Program, id: &SetId, change: &SetDelta) {
        let Some(Followers { copies, maps, .. }) = self.followers.get(id) else { return };
        let (copies, maps) = (copies.clone(), maps.clone());
        for name in &copies {
            let Some(Copied { of, family }) = self.copies.get(name).cloned() else { continue };
            for member in self.concerned(program, id, change, name) {
                let ours = Family::of(member.address) == family;
                let wanted = ours && of.iter().any(|set| contains(program, set, &member));
                match wanted {
                    true => self.put_once(name, key(&member)),
                    false => self.objects.take(name, &key(&member)),
                }
            }
        }
        for name in &maps {
            let Some(merged) = self.maps.get(name).cloned() else { continue };
            for member in self.concerned(program, id, change, name) {
                let address = member.address;
                match merged.aim(self, program, address) {
                    Some(aim) => self.put_aim(name, Key::Address(address), aim),
                    None => self.objects.take(name, &Key::Address(address)),
                }
            }
        }
    }

    /// The members that may have come or gone: those that the change names, or all that are there or should be.
    fn concerned(
        &self,
        program: &Program,
        id: &SetId,
        change: &SetDelta,
        name: &Name,
    ) -> Vec<Member> {
        if let SetDelta::Change { added, removed } = change {
            return added.iter().chain(removed).copied().collect();
        }
        let there = self.ruleset().sets.get(name).into_iter().flat_map(|set| set.elements.keys());
        let there = there.filter_map(|key| match *key {
            Key::Address(address) => Some(address.into()),
            Key::Port(address, protocol, port) => {
                Some(Member { address, port: Some((protocol, port)) })
            }
            _ => None,
        });
        there.chain(program.sets.get(id).into_iter().flatten().copied()).collect()
    }

    fn put_once(&mut self, set: &Name, key: Key) {
        let there = self.ruleset().sets.get(set).is_some_and(|set| set.elements.contains_key(&key));
        if !there {
            self.objects.put(set, key, None);
        }
    }

    fn put_aim(&mut self, set: &Name, key: Key, aim: Aim) {
        let there = self.ruleset().sets.get(set).and_then(|set| set.elements.get(&key));
        if there.is_none_or(|old| old.as_deref() != Some(&aim)) {
            self.objects.put(set, key, Some(aim.into()));
        }
    }

    /// Enters a set that has the members of these, and keeps it up to date.
    pub(crate) fn copy(
        &mut self,
        program: &Program,
        name: &Name,
        of: Vec<SetId>,
        kind: Kind,
        comment: Name,
    ) {
        let (Kind::Addresses(family) | Kind::Ports(family)) = kind else { return };
        if self.copies.contains_key(name) {
            return;
        }
        let members = of.iter().filter_map(|set| program.sets.get(set)).flatten();
        let ours = members.filter(|member| Family::of(member.address) == family);
        let elements = ours.map(|member| (key(member), None)).collect();
        self.objects.add_set(name, Set { kind, comment, elements });
        for set in &of {
            self.followers.entry(set.clone()).or_default().copies.insert(name.clone());
        }
        self.copies.insert(name.clone(), Copied { of, family });
    }

    /// Enters a map of what each member of several sets may do, and keeps it up to date.
    pub(crate) fn merge(&mut self, program: &Program, name: &Name, merged: Merged, comment: Name) {
        if self.maps.contains_key(name) {
            return;
        }
        let elements = merged.aims(self, program);
        self.objects.add_set(name, Set { kind: Kind::Chains(merged.family), comment, elements });
        for set in merged.sets() {
            self.followers.entry(set.clone()).or_default().maps.insert(name.clone());
        }
        self.maps.insert(name.clone(), merged);
    }

    fn unfollow(&mut self, set: &SetId, leave: impl FnOnce(&mut Followers)) {
        if let Some(them) = self.followers.get_mut(set) {
            leave(them);
            if them.is_empty() {
                self.followers.remove(set);
            }
        }
    }

    /// A set of the ruleset is gone: nothing needs to keep it up to date any more.
    fn forget(&mut self, name: &Name) {
        if let Some(Copied { of, .. }) = self.copies.remove(name) {
            for set in &of {
                self.unfollow(set, |them| _ = them.copies.remove(name));
            }
        }
        if let Some(merged) = self.maps.remove(name) {
            for set in merged.sets() {
                self.unfollow(set, |them| _ = them.maps.remove(name));
            }
        }
    }

    /// What is there in every ruleset, whatever the policies are.
    fn skeleton(&mut self, mode: Mode) {
        let mut forward = vec![Rule::new([Match::Established], Act::Accept)];
        for family in Family::BOTH {
            forward.push(Rule::new([Match::Of(family)], Act::Goto(place::new(family))));
            self.keep(&place::own(family), Kind::Pairs(family), "pods that reach themselves");
            self.cut(family);
            self.new_connections(family);
        }
        Direction::BOTH.into_iter().for_each(|direction| self.denied(direction, mode));
        self.keep_chain("forward", Chain { hook: Some(Hook::Forward), rules: forward });
    }

    /// The chain for packets of connections that policies ended.
    fn cut(&mut self, family: Family) {
        let (name, from) = (place::cut(family), Field::Source(family));
        let ends = vec![
            from,
            Field::SourcePort,
            Field::Destination(family),
            Field::DestinationPort,
            Field::Protocol,
        ];
        self.keep(&name, Kind::Cut(family), "answers of connections that policies ended");
        self.keep(&place::cut_senders(family), Kind::CutSenders(family), "who sends them");
        let ended = || Match::In(ends.clone(), name.clone());
        let rules = vec![
            Rule::new([ended()], Act::Log(Cause::Answer)),
            Rule::new([ended()], Act::CountDrop),
        ];
        self.keep_chain(&name, Chain { hook: None, rules });
    }

    /// The chain for packets that belong to no known connection.
    fn new_connections(&mut self, family: Family) {
        let mut rules = Vec::new();
        if family == Family::V6 {
            rules.push(Rule::new([Match::NeighbourDiscovery], Act::Accept));
        }
        let senders = Match::In(vec![Field::Source(family)], place::cut_senders(family));
        rules.push(Rule::new([senders], Act::Jump(place::cut(family))));
        for direction in [Direction::Egress, Direction::Ingress] {
            let name = place::dispatch(direction, family);
            let here = vec![place::here(direction, family)];
            rules.push(Rule::new([], Act::Map(here, name.clone())));
            let comment = format!("pods that policies speak for, {direction}");
            self.keep(&name, Kind::Chains(family), &comment);
            self.judge(direction, family);
        }
        self.keep_chain(&place::new(family), Chain { hook: None, rules });
    }

    /// The chain for pods whose grants are looked up one by one.
    fn judge(&mut self, direction: Direction, family: Family) {
        let grants = place::grants(direction, family);
        let comment = format!("pod, peer and port that policies allow, {direction}");
        self.keep(&grants, Kind::Grants(family), &comment);
        let key = vec![
            place::here(direction, family),
            place::there(direction, family),
            Field::Protocol,
            Field::DestinationPort,
        ];
        let rules = vec![
            Rule::new([Match::In(key, grants)], Act::Return),
            Rule::new([], Act::Goto(place::denied(direction))),
        ];
        self.keep_chain(&place::judge(direction, family), Chain { hook: None, rules });
    }

    /// Where all packets go that policies deny.
    fn denied(&mut self, direction: Direction, mode: Mode) {
        let end = match mode {
            Mode::Enforce => Act::CountDrop,
            Mode::Audit => Act::CountReturn,
        };
        // A pod that reaches itself through a service is not judged; this is where its packets would end.
        let own = Family::BOTH.map(|family| {
            let pair = vec![Field::Source(family), Field::Destination(family)];
            let own = Match::In(pair, place::own(family));
            Rule::new([Match::Translated, own], Act::Return)
        });
        let mut rules = Vec::from(own);
        rules.extend([Rule::new([], Act::Log(Cause::Rules(direction))), Rule::new([], end)]);
        self.keep_chain(&place::denied(direction), Chain { hook: None, rules });
    }

    fn keep(&mut self, name: &Name, kind: Kind, comment: &str) {
        let set = Set { kind, comment: comment.into(), elements: BTreeMap::new() };
        self.objects.add_set(name, set);
        self.objects.pin(name);
    }

    fn keep_chain(&mut self, name: &str, chain: Chain) {
        let name = Name::from(name);
        self.objects.add_chain(&name, chain);
        self.objects.pin(&name);
    }
}

/// The ruleset that enforces a program.
pub fn render(program: &Program) -> Ruleset {
    Planner::of(program, Mode::Enforce).objects.ruleset
}

fn contains(program: &Program, set: &SetId, member: &Member) -> bool {
    program.sets.get(set).is_some_and(|members| members.contains(member))
}

fn key(member: &Member) -> Key {
    match member.port {
        None => Key::Address(member.address),
        Some((protocol, port)) => Key::Port(member.address, protocol, port),
    }
}

impl Aim {
    /// A way there, without a word.
    pub(crate) fn goto(chain: Name) -> Self {
        Aim { go: Go::Goto(chain), comment: Name::from("") }
    }
}
