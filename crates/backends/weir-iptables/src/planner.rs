use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weir_datapath::{Mode, Planner as _, may_change_grants};
use weir_model::{Delta, Direction, IpFamily, Name, PodId, Program, SetDelta, SetId};

use crate::{
    Entry, Installed, Kind, Plan, Ruleset, Set,
    dispatch::{self, Pods},
    feed::{Feed, Share},
    gate::{self, Gate},
    name,
    objects::Objects,
    place::{self, Place},
    replan, skeleton,
};

/// Turns deltas of the compiled rules into plans.
///
/// *Invariant*: after any deltas, its ruleset is the one that a new planner would make of their sum.
#[derive(Clone, Debug)]
pub struct Planner {
    mode: Mode,
    pub(crate) objects: Objects,
    places: BTreeMap<PodId, Place>,
    /// The ways from addresses to chains.
    ways: BTreeMap<(Direction, IpFamily), Pods>,
    gates: BTreeMap<IpFamily, Gate>,
    /// Connections were cut.
    cut: bool,
    /// The sets that follow from sets of the program.
    feeds: BTreeMap<Name, Feed>,
    followers: BTreeMap<SetId, Followers>,
}

/// What must be looked at again when a set changes.
#[derive(Clone, Debug, Default)]
struct Followers {
    pods: BTreeSet<PodId>,
    feeds: BTreeSet<Name>,
}

impl weir_datapath::Planner for Planner {
    type Installed = Installed;
    type Plan = Plan;

    fn plan(&mut self, program: &Program, delta: &Delta) -> Plan {
        let mut touched: BTreeSet<&PodId> = delta.endpoints.keys().collect();
        let small = delta.sets.iter().filter(|(id, change)| may_change_grants(program, id, change));
        let pods = small.filter_map(|(id, _)| self.followers.get(id)).flat_map(|them| &them.pods);
        let pods: Vec<PodId> = pods.cloned().collect();
        touched.extend(&pods);
        self.move_pods(program, &touched);
        if !touched.is_empty() {
            self.set_gates();
        }
        for (id, change) in &delta.sets {
            self.follow(program, id, change);
        }
        for dead in self.objects.sweep() {
            self.forget(&dead);
        }
        self.objects.plan()
    }

    fn replan(&mut self, program: &Program, installed: &Installed) -> Plan {
        *self = Planner::new(self.mode);
        if installed.remembers_cuts() {
            self.remember_cuts();
        }
        self.plan(program, &Delta::from(program));
        replan::replan(&self.objects, installed)
    }
}

impl Planner {
    /// A planner whose ruleset judges nobody.
    pub fn new(mode: Mode) -> Self {
        let mut planner = Planner {
            mode,
            objects: Objects::default(),
            places: BTreeMap::new(),
            ways: BTreeMap::new(),
            gates: BTreeMap::new(),
            cut: false,
            feeds: BTreeMap::new(),
            followers: BTreeMap::new(),
        };
        skeleton::enter(&mut planner.objects, mode);
        planner
    }

    /// The ruleset that is wanted now.
    pub fn ruleset(&self) -> &Ruleset {
        &self.objects.ruleset
    }

    /// Goes on to rules that look for the answers of connections which were cut.
    pub(crate) fn remember_cuts(&mut self) -> Plan {
        self.cut = true;
        self.set_gates();
        self.objects.plan()
    }

    /// Makes the rules that all packets meet fit the pods that there are.
    fn set_gates(&mut self) {
        for family in IpFamily::BOTH {
            let has_chains = |direction| {
                self.ways.get(&(direction, family)).is_some_and(|pods| !pods.is_empty())
            };
            let gate = Gate {
                net: self.objects.ends(&skeleton::local(family)).and_then(net_of),
                egress: has_chains(Direction::Egress),
                ingress: has_chains(Direction::Ingress),
                cut: self.cut,
            };
            if self.gates.insert(family, gate) != Some(gate) {
                for (name, rules) in gate.chains(family) {
                    self.objects.put_chain(family, &name, rules);
                }
            }
        }
    }

    /// Gives every touched pod its new place. New entries come before old ones go, so that what both need stays.
    fn move_pods(&mut self, program: &Program, touched: &BTreeSet<&PodId>) {
        let (mut entries, mut ways) = (BTreeSet::new(), BTreeSet::new());
        for id in touched {
            let Some(old) = self.places.remove(*id) else { continue };
            for set in &old.follows {
                self.unfollow(set, |them| _ = them.pods.remove(*id));
            }
            entries.extend(old.entries.into_keys());
            ways.extend(old.ways.into_keys());
        }
        let mut turned = BTreeSet::new();
        for id in touched {
            let Some(endpoint) = program.endpoints.get(*id) else { continue };
            let place = place::of(self, program, id, endpoint);
            for set in &place.follows {
                self.followers.entry(set.clone()).or_default().pods.insert((*id).clone());
            }
            for (key, word) in &place.entries {
                entries.remove(key);
                self.objects.put(&key.0, key.1.clone(), word);
            }
            for (way, chain) in &place.ways {
                ways.remove(way);
                let root = (way.0, IpFamily::from(way.1));
                let pods = self.ways.entry(root).or_default();
                pods.insert(way.1, chain.clone());
                turned.insert(root);
            }
            self.places.insert((*id).clone(), place);
        }
        entries.iter().for_each(|(set, entry)| self.objects.take(set, entry));
        for (direction, address) in ways {
            let root = (direction, IpFamily::from(address));
            if let Some(pods) = self.ways.get_mut(&root) {
                pods.remove(&address);
            }
            turned.insert(root);
        }
        for root in turned {
            let pods = self.ways.get(&root).cloned().unwrap_or_default();
            for (name, rules) in dispatch::tree(root.0, &pods) {
                self.objects.put_chain(root.1, &name, rules);
            }
        }
    }

    /// Brings the sets that are made of a set up to date. Those that are new are so already.
    fn follow(&mut self, program: &Program, id: &SetId, change: &SetDelta) {
        let Some(Followers { feeds, .. }) = self.followers.get(id) else { return };
        let old = feeds.iter().filter(|name| !self.objects.is_new(name));
        let none = Name::from("");
        for name in &old.cloned().collect::<Vec<_>>() {
            let Some(feed) = self.feeds.get(name) else { continue };
            let wanted: Vec<Entry>;
            let doubtful: Vec<Entry>;
            match change {
                SetDelta::Change { added, removed } => {
                    let entries = |member| feed.entries_of(id, member);
                    wanted = added.iter().flat_map(entries).collect();
                    doubtful = removed.iter().flat_map(entries).collect();
                }
                SetDelta::Put(members) => {
                    wanted =
                        members.iter().flat_map(|member| feed.entries_of(id, member)).collect();
                    doubtful = self.objects.entries(name);
                }
                SetDelta::Gone => {
                    wanted = Vec::new();
                    doubtful = self.objects.entries(name);
                }
            }
            // Another set may want what this one does not.
            let gone = doubtful.into_iter().filter(|entry| !feed.holds(program, entry));
            let gone: Vec<Entry> = gone.collect();
            wanted.into_iter().for_each(|entry| self.objects.put(name, entry, &none));
            gone.iter().for_each(|entry| self.objects.take(name, entry));
        }
    }

    /// Enters a set that follows from these, and keeps it up to date. Where rules ask sets in turn, each turn has sets of its own.
    pub(crate) fn feed(
        &mut self,
        program: &Program,
        (direction, family): (Direction, IpFamily),
        kind: Kind,
        of: Vec<(SetId, Share)>,
        turn: Option<&str>,
    ) -> Name {
        let turned = turn.map_or(String::new(), |turn| format!(" {turn}"));
        let name = name::peer_set(direction, family, &format!("{kind:?} {of:?}{turned}"));
        if self.feeds.contains_key(&name) {
            return name;
        }
        for (set, _) in &of {
            self.followers.entry(set.clone()).or_default().feeds.insert(name.clone());
        }
        let feed = Feed { kind, family, of };
        self.objects.add_set(&name, Set { kind, family, entries: feed.entries(program) });
        if turn.is_some() {
            self.objects.ask_in_turn(&name);
        }
        self.feeds.insert(name.clone(), feed);
        name
    }

    /// Enters a set that stays as it is.
    pub(crate) fn fixed(
        &mut self,
        direction: Direction,
        family: IpFamily,
        kind: Kind,
        entries: BTreeSet<Entry>,
    ) -> Name {
        let name = name::peer_set(direction, family, &format!("{kind:?} {entries:?}"));
        let entries = entries.into_iter().map(|entry| (entry, Name::from(""))).collect();
        self.objects.add_set(&name, Set { kind, family, entries });
        name
    }

    fn unfollow(&mut self, set: &SetId, leave: impl FnOnce(&mut Followers)) {
        if let Some(them) = self.followers.get_mut(set) {
            leave(them);
            if them.pods.is_empty() && them.feeds.is_empty() {
                self.followers.remove(set);
            }
        }
    }

    /// A set is gone: nothing needs to keep it up to date any more.
    fn forget(&mut self, name: &Name) {
        let Some(feed) = self.feeds.remove(name) else { return };
        for (set, _) in &feed.of {
            self.unfollow(set, |them| _ = them.feeds.remove(name));
        }
    }
}

/// A network with everything from the first entry of a set of addresses to the last in it.
fn net_of(ends: (&Entry, &Entry)) -> Option<IpNet> {
    match ends {
        (Entry::Address(first), Entry::Address(last)) => gate::around(*first, *last),
        _ => None,
    }
}

/// The ruleset that enforces a program.
pub fn render(program: &Program) -> Ruleset {
    let mut planner = Planner::new(Mode::Enforce);
    planner.plan(program, &Delta::from(program));
    planner.objects.ruleset
}
