use std::collections::{BTreeMap, BTreeSet};

use weir_datapath::{Mode, may_change_grants};
use weir_model::{Delta, Direction, Member, Name, PodId, Program, SetDelta, SetId};

use crate::{
    Aim, Family, Go, Installed, Key, Kind, Ruleset, Set, Step, Transaction,
    objects::Objects,
    peers::PeerMap,
    place::{self, Place},
    replan,
    stages::Stages,
};

/// Turns deltas of the compiled rules into transactions for the kernel.
///
/// *Invariant*: after any sequence of deltas, its ruleset equals that of a new planner for their sum.
#[derive(Clone, Debug)]
pub struct Planner {
    mode: Mode,
    pub(crate) objects: Objects,
    places: BTreeMap<PodId, Place>,
    /// The sets of the ruleset that are copies of sets.
    copies: BTreeMap<Name, Copied>,
    /// The maps of the ruleset that say what each member of several sets may do.
    pub(crate) maps: BTreeMap<Name, PeerMap>,
    pub(crate) followers: BTreeMap<SetId, Followers>,
    /// The chains of the rule sets that were looked at in this plan, by where the rule sets are in memory.
    pub(crate) chains: BTreeMap<(usize, Direction, Family), Name>,
    /// The chains of admin tiers, likewise by their sections.
    pub(crate) admin_chains: BTreeMap<(Vec<usize>, Direction, Family), Name>,
}

/// A set of the ruleset with the members of this one.
#[derive(Clone, Debug)]
struct Copied {
    of: SetId,
    family: Family,
}

/// What must be looked at again when a set changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followers {
    pods: BTreeSet<PodId>,
    pub(crate) copies: BTreeSet<Name>,
    pub(crate) maps: BTreeSet<Name>,
}

impl Followers {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.copies.is_empty() && self.maps.is_empty()
    }
}

impl weir_datapath::Planner for Planner {
    type Installed = Installed;
    type Plan = Transaction;

    fn plan(&mut self, program: &Program, delta: &Delta) -> Transaction {
        let mut touched: BTreeSet<&PodId> = delta.endpoints.keys().collect();
        let small = delta.sets.iter().filter(|(id, change)| may_change_grants(program, id, change));
        let pods = small.filter_map(|(id, _)| self.followers.get(id)).flat_map(|them| &them.pods);
        let pods: Vec<PodId> = pods.cloned().collect();
        touched.extend(&pods);
        // `move_pods` fills new sets with the current members, so existing sets are updated first.
        let stages = Stages::of(self, program, delta);
        let members = stages.members(self, program, delta);
        stages.gone(self, program, delta);
        self.move_pods(program, &touched);
        members.then(self.transaction())
    }

    fn replan(&mut self, program: &Program, installed: &Installed) -> Transaction {
        *self = Planner::of(program, self.mode);
        replan::replan(self, installed)
    }
}

impl Planner {
    /// A planner whose ruleset judges no pod.
    pub fn new(mode: Mode) -> Self {
        let mut planner = Planner {
            mode,
            objects: Objects::default(),
            places: BTreeMap::new(),
            copies: BTreeMap::new(),
            maps: BTreeMap::new(),
            followers: BTreeMap::new(),
            chains: BTreeMap::new(),
            admin_chains: BTreeMap::new(),
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

    /// The steps since the last transaction.
    pub(crate) fn transaction(&mut self) -> Transaction {
        self.sweep();
        self.objects.transaction().at_once()
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
        self.admin_chains.clear();
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

    /// Brings the copies of a set up to date.
    pub(crate) fn follow(&mut self, program: &Program, id: &SetId, change: &SetDelta) {
        let Some(Followers { copies, .. }) = self.followers.get(id) else { return };
        for name in &copies.clone() {
            let Some(Copied { family, .. }) = self.copies.get(name).cloned() else { continue };
            for member in self.concerned(program, id, change, name) {
                let ours = Family::of(member.address) == family;
                match ours && contains(program, id, &member) {
                    true => self.put_once(name, key(&member)),
                    false => self.objects.take(name, &key(&member)),
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

    /// Enters a set that has the members of this one, and keeps it up to date.
    pub(crate) fn copy(
        &mut self,
        program: &Program,
        name: &Name,
        of: &SetId,
        kind: Kind,
        comment: Name,
    ) {
        let (Kind::Addresses(family) | Kind::Ports(family)) = kind else { return };
        if self.copies.contains_key(name) {
            return;
        }
        let members = program.sets.get(of).into_iter().flatten();
        let ours = members.filter(|member| Family::of(member.address) == family);
        let elements = ours.map(|member| (key(member), None)).collect();
        self.objects.add_set(name, Set { kind, comment, elements });
        self.followers.entry(of.clone()).or_default().copies.insert(name.clone());
        self.copies.insert(name.clone(), Copied { of: of.clone(), family });
    }

    /// Keeps a map up to date that was entered.
    pub(crate) fn follow_with(&mut self, name: &Name, map: PeerMap) {
        for set in map.sets() {
            self.followers.entry(set.clone()).or_default().maps.insert(name.clone());
        }
        self.maps.insert(name.clone(), map);
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
            self.unfollow(&of, |them| _ = them.copies.remove(name));
        }
        if let Some(map) = self.maps.remove(name) {
            for set in map.sets() {
                self.unfollow(set, |them| _ = them.maps.remove(name));
            }
        }
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
