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
    replan, skeleton,
    slot::{self, Slot},
};

/// Turns deltas of the compiled rules into plans.
///
/// *Invariant*: after any deltas, the ruleset equals that of a new planner with their sum.
#[derive(Clone, Debug)]
pub struct Planner {
    mode: Mode,
    pub(crate) objects: Objects,
    slots: BTreeMap<PodId, Slot>,
    /// The chain of each address.
    ways: BTreeMap<(Direction, IpFamily), Pods>,
    gates: BTreeMap<IpFamily, Gate>,
    /// Whether connections were terminated.
    has_terminated: bool,
    /// The kernel sets that follow from program sets.
    feeds: BTreeMap<Name, Feed>,
    followers: BTreeMap<SetId, Followers>,
}

/// The parts that depend on a program set.
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
            self.update_gates();
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
        if installed.has_terminated() {
            self.match_terminated();
        }
        self.plan(program, &Delta::from(program));
        replan::replan(&self.objects, installed)
    }
}

impl Planner {
    /// A planner whose ruleset isolates no pod.
    pub fn new(mode: Mode) -> Self {
        let mut planner = Planner {
            mode,
            objects: Objects::default(),
            slots: BTreeMap::new(),
            ways: BTreeMap::new(),
            gates: BTreeMap::new(),
            has_terminated: false,
            feeds: BTreeMap::new(),
            followers: BTreeMap::new(),
        };
        skeleton::add(&mut planner.objects, mode);
        planner
    }

    /// The desired ruleset.
    pub fn ruleset(&self) -> &Ruleset {
        &self.objects.ruleset
    }

    /// Adds the rules that drop replies of terminated connections.
    pub(crate) fn match_terminated(&mut self) -> Plan {
        self.has_terminated = true;
        self.update_gates();
        self.objects.plan()
    }

    /// Updates the rules that all packets pass to the current pods.
    fn update_gates(&mut self) {
        for family in IpFamily::BOTH {
            let has_chains = |direction| {
                self.ways.get(&(direction, family)).is_some_and(|pods| !pods.is_empty())
            };
            let gate = Gate {
                net: self.objects.ends(&skeleton::local(family)).and_then(net_of),
                egress: has_chains(Direction::Egress),
                ingress: has_chains(Direction::Ingress),
                has_terminated: self.has_terminated,
            };
            if self.gates.insert(family, gate) != Some(gate) {
                for (name, rules) in gate.chains(family) {
                    self.objects.put_chain(family, &name, rules);
                }
            }
        }
    }

    /// Moves every touched pod. New entries are added before old ones are removed, so that shared
    /// ones stay.
    fn move_pods(&mut self, program: &Program, touched: &BTreeSet<&PodId>) {
        let (mut entries, mut ways) = (BTreeSet::new(), BTreeSet::new());
        for id in touched {
            let Some(old) = self.slots.remove(*id) else { continue };
            for set in &old.follows {
                self.unfollow(set, |them| {
                    them.pods.remove(*id);
                });
            }
            entries.extend(old.entries.into_keys());
            ways.extend(old.chains.into_keys());
        }
        let mut turned = BTreeSet::new();
        for id in touched {
            let Some(endpoint) = program.endpoints.get(*id) else { continue };
            let slot = slot::compute(self, program, id, endpoint);
            for set in &slot.follows {
                self.followers.entry(set.clone()).or_default().pods.insert((*id).clone());
            }
            for (key, note) in &slot.entries {
                entries.remove(key);
                self.objects.put_entry(&key.0, key.1.clone(), note);
            }
            for (way, chain) in &slot.chains {
                ways.remove(way);
                let root = (way.0, IpFamily::from(way.1));
                let pods = self.ways.entry(root).or_default();
                pods.insert(way.1, chain.clone());
                turned.insert(root);
            }
            self.slots.insert((*id).clone(), slot);
        }
        entries.iter().for_each(|(set, entry)| self.objects.remove_entry(set, entry));
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

    /// Updates the kernel sets that follow from a program set. New ones are already up to date.
    fn follow(&mut self, program: &Program, id: &SetId, change: &SetDelta) {
        let Some(Followers { feeds, .. }) = self.followers.get(id) else { return };
        let old = feeds.iter().filter(|name| !self.objects.is_new(name));
        let none = Name::from("");
        for name in &old.cloned().collect::<Vec<_>>() {
            let Some(feed) = self.feeds.get(name) else { continue };
            let desired: Vec<Entry>;
            let doubtful: Vec<Entry>;
            match change {
                SetDelta::Change { added, removed } => {
                    let entries = |member| feed.entries_of(id, member);
                    desired = added.iter().flat_map(entries).collect();
                    doubtful = removed.iter().flat_map(entries).collect();
                }
                SetDelta::Put(members) => {
                    desired =
                        members.iter().flat_map(|member| feed.entries_of(id, member)).collect();
                    doubtful = self.objects.entries(name);
                }
                SetDelta::Gone => {
                    desired = Vec::new();
                    doubtful = self.objects.entries(name);
                }
            }
            // Keep an entry that another program set still needs.
            let gone = doubtful.into_iter().filter(|entry| !feed.holds(program, entry));
            let gone: Vec<Entry> = gone.collect();
            desired.into_iter().for_each(|entry| self.objects.put_entry(name, entry, &none));
            gone.iter().for_each(|entry| self.objects.remove_entry(name, entry));
        }
    }

    /// Adds a kernel set that follows from program sets. Sets of ordered rules are not shared
    /// between groups.
    pub(crate) fn feed(
        &mut self,
        program: &Program,
        (direction, family): (Direction, IpFamily),
        kind: Kind,
        of: Vec<(SetId, Share)>,
        group: Option<&str>,
    ) -> Name {
        let suffix = group.map_or(String::new(), |group| format!(" {group}"));
        let name = name::peer_set(direction, family, &format!("{kind:?} {of:?}{suffix}"));
        if self.feeds.contains_key(&name) {
            return name;
        }
        for (set, _) in &of {
            self.followers.entry(set.clone()).or_default().feeds.insert(name.clone());
        }
        let feed = Feed { kind, family, of };
        self.objects.add_set(&name, Set { kind, family, entries: feed.entries(program) });
        if group.is_some() {
            self.objects.mark_ordered(&name);
        }
        self.feeds.insert(name.clone(), feed);
        name
    }

    /// Adds a set with fixed entries.
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

    /// Stops updating a removed set.
    fn forget(&mut self, name: &Name) {
        let Some(feed) = self.feeds.remove(name) else { return };
        for (set, _) in &feed.of {
            self.unfollow(set, |them| {
                them.feeds.remove(name);
            });
        }
    }
}

/// A network that contains the first and the last entry of a set of addresses.
fn net_of(ends: (&Entry, &Entry)) -> Option<IpNet> {
    match ends {
        (Entry::Address(first), Entry::Address(last)) => gate::around(*first, *last),
        _ => None,
    }
}

/// Renders the ruleset that enforces a program.
pub fn render(program: &Program) -> Ruleset {
    let mut planner = Planner::new(Mode::Enforce);
    planner.plan(program, &Delta::from(program));
    planner.objects.ruleset
}
