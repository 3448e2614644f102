use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use weir_datapath::{Dependents, Mode, Planner as _, Rejection};
use weir_model::{Delta, Direction, IpFamily, Name, PodId, Program, SetDelta, SetId};

use crate::{
    AcceptForwarded, ChainsAndSets, Entry, Installed, IpSet, IpSetKind, IptablesPlan,
    chain::SharedRules,
    common_chains::{self, CommonChains},
    derived_set::{DerivedSet, EntryForm},
    dispatch::{self, ChainsByAddress},
    installed::Table,
    name,
    objects::Objects,
    pod_entries::{self, PodEntries},
    replan,
    signposts::{PodSignposts, Signposts},
    skeleton,
};

/// Turns deltas of the compiled rules into plans.
///
/// *Invariant*: after any deltas, the chains and sets equal those of a new planner with
/// their sum.
#[derive(Clone, Debug)]
pub struct Planner {
    mode: Mode,
    rejection: Rejection,
    accept_forwarded: AcceptForwarded,
    pub(crate) objects: Objects,
    pods: BTreeMap<PodId, PodEntries>,
    /// The chain of each address.
    pod_chains: BTreeMap<(Direction, IpFamily), ChainsByAddress>,
    common_chains: BTreeMap<IpFamily, CommonChains>,
    /// Whether connections were terminated.
    has_terminated: bool,
    /// The kernel sets that are derived from program sets.
    derived_sets: BTreeMap<Name, DerivedSet>,
    dependents: Dependents,
    pub(crate) signposts: Signposts,
    /// The number of ports up to which a peer and each of its ports are entries of one set.
    pub(crate) max_paired_ports: usize,
}

/// The number of ports up to which a peer and each of its ports are entries of one set. A longer
/// list would multiply the entries.
const MAX_PAIRED_PORTS: usize = 4;

impl weir_datapath::Planner for Planner {
    type Installed = Installed;
    type Plan = IptablesPlan;

    fn has_rules(installed: &Installed) -> bool {
        let has_chains = |table: &Table| !table.chains.is_empty() || !table.jumps.is_empty();
        !installed.sets.is_empty() || installed.tables.values().any(has_chains)
    }

    fn plan(&mut self, program: &Program, delta: &Delta) -> IptablesPlan {
        let touched = self.dependents.touched_pods(program, delta);
        self.move_pods(program, &touched);
        if !touched.is_empty() {
            self.update_common_chains();
        }
        for (id, change) in &delta.sets {
            self.update_derived_sets(program, id, change);
        }
        for dead in self.objects.sweep() {
            self.forget(&dead);
        }
        self.objects.plan()
    }

    fn replan(&mut self, program: &Program, installed: &Installed) -> IptablesPlan {
        *self = Planner::new(self.mode)
            .with_rejection(std::mem::take(&mut self.rejection))
            .with_accept_forwarded(self.accept_forwarded)
            .with_max_paired_ports(self.max_paired_ports);
        if installed.has_terminated() {
            self.match_terminated();
        }
        self.plan(program, &Delta::from(program));
        replan::replan(&self.objects, self.accept_forwarded, installed)
    }
}

impl Planner {
    /// A planner whose rules isolate no pod.
    pub fn new(mode: Mode) -> Self {
        let mut planner = Planner {
            mode,
            rejection: Rejection::default(),
            accept_forwarded: AcceptForwarded::default(),
            objects: Objects::default(),
            pods: BTreeMap::new(),
            pod_chains: BTreeMap::new(),
            common_chains: BTreeMap::new(),
            has_terminated: false,
            derived_sets: BTreeMap::new(),
            dependents: Dependents::default(),
            signposts: Signposts::default(),
            max_paired_ports: MAX_PAIRED_PORTS,
        };
        skeleton::add(&mut planner.objects, mode, &planner.rejection);
        planner
    }

    /// Sets which senders of denied packets get an answer from the rules of an empty planner.
    #[must_use]
    pub fn with_rejection(mut self, rejection: Rejection) -> Self {
        self.objects = Objects::default();
        skeleton::add(&mut self.objects, self.mode, &rejection);
        self.rejection = rejection;
        self
    }

    /// Sets whether a last rule in FORWARD accepts the packets of pods.
    pub fn with_accept_forwarded(self, accept_forwarded: AcceptForwarded) -> Self {
        Planner { accept_forwarded, ..self }
    }

    /// Sets the number of ports up to which a peer and each of its ports are entries of one set.
    pub fn with_max_paired_ports(self, max_paired_ports: usize) -> Self {
        Planner { max_paired_ports, ..self }
    }

    /// The desired chains and sets.
    pub fn desired(&self) -> &ChainsAndSets {
        &self.objects.desired
    }

    /// The chain of a pod's address.
    pub(crate) fn pod_chain(&self, direction: Direction, address: IpAddr) -> Option<&Name> {
        self.pod_chains.get(&(direction, IpFamily::from(address)))?.get(&address)
    }

    /// Adds the rules that drop replies of terminated connections.
    pub(crate) fn match_terminated(&mut self) -> IptablesPlan {
        self.has_terminated = true;
        self.update_common_chains();
        self.objects.plan()
    }

    /// Updates the rules that all packets pass to the current pods.
    fn update_common_chains(&mut self) {
        for family in IpFamily::BOTH {
            let has_chains = |direction| {
                self.pod_chains.get(&(direction, family)).is_some_and(|pods| !pods.is_empty())
            };
            let common_chains = CommonChains {
                net: self.objects.ends(&skeleton::local(family)).and_then(covering_net),
                egress: has_chains(Direction::Egress),
                ingress: has_chains(Direction::Ingress),
                denies_groups: self
                    .objects
                    .ends(&skeleton::isolated(Direction::Ingress, family))
                    .is_some(),
                has_terminated: self.has_terminated,
            };
            if self.common_chains.insert(family, common_chains) != Some(common_chains) {
                for (name, rules) in common_chains.chains(family) {
                    self.objects.put_chain(family, &name, rules);
                }
            }
        }
    }

    /// Moves every touched pod. New entries are added before old ones are removed, so that shared
    /// ones stay.
    fn move_pods(&mut self, program: &Program, touched: &BTreeSet<PodId>) {
        let (mut entries, mut pod_chains) = (BTreeSet::new(), BTreeSet::new());
        let mut signposts: Vec<PodSignposts> = Vec::new();
        for id in touched {
            let Some(old) = self.pods.remove(id) else { continue };
            self.dependents.remove_pod(id, &old.depends_on);
            entries.extend(old.entries.into_keys());
            pod_chains.extend(old.chains.into_keys());
            signposts.push(old.signposts);
        }
        let mut turned = BTreeSet::new();
        let mut shared = SharedRules::new();
        for id in touched {
            let Some(endpoint) = program.endpoints.get(id) else { continue };
            let pod_entries = pod_entries::compute(self, program, id, endpoint, &mut shared);
            self.dependents.add_pod(id, &pod_entries.depends_on);
            for (key, comment) in &pod_entries.entries {
                entries.remove(key);
                self.objects.put_entry(&key.0, key.1.clone(), comment);
            }
            for (pod_address, chain) in &pod_entries.chains {
                pod_chains.remove(pod_address);
                let root = (pod_address.0, IpFamily::from(pod_address.1));
                let pods = self.pod_chains.entry(root).or_default();
                pods.insert(pod_address.1, chain.clone());
                turned.insert(root);
            }
            self.pods.insert(id.clone(), pod_entries);
        }
        entries.iter().for_each(|(set, entry)| self.objects.remove_entry(set, entry));
        signposts.iter().for_each(|old| self.signposts.remove(old));
        self.signposts.flush(&mut self.objects);
        for (direction, address) in pod_chains {
            let root = (direction, IpFamily::from(address));
            if let Some(pods) = self.pod_chains.get_mut(&root) {
                pods.remove(&address);
            }
            turned.insert(root);
        }
        for root in turned {
            let pods = self.pod_chains.get(&root).cloned().unwrap_or_default();
            for (name, rules) in dispatch::dispatch_chains(root.0, &pods) {
                self.objects.put_chain(root.1, &name, rules);
            }
        }
    }

    /// Updates the kernel sets that are derived from a program set. New ones are already up to date.
    fn update_derived_sets(&mut self, program: &Program, id: &SetId, change: &SetDelta) {
        let old = self.dependents.kernel_sets(id).filter(|name| !self.objects.is_new(name));
        let none = Name::from("");
        for name in &old.cloned().collect::<Vec<_>>() {
            let Some(derived_set) = self.derived_sets.get(name) else { continue };
            let desired: Vec<Entry>;
            let doubtful: Vec<Entry>;
            match change {
                SetDelta::Change { added, removed } => {
                    let entries = |member| derived_set.entries_of(id, member);
                    desired = added.iter().flat_map(entries).collect();
                    doubtful = removed.iter().flat_map(entries).collect();
                }
                SetDelta::Put(members) => {
                    desired = members
                        .iter()
                        .flat_map(|member| derived_set.entries_of(id, member))
                        .collect();
                    doubtful = self.objects.entries(name);
                }
                SetDelta::Gone { .. } => {
                    desired = Vec::new();
                    doubtful = self.objects.entries(name);
                }
            }
            // Keep an entry that another program set still needs.
            let gone = doubtful.into_iter().filter(|entry| !derived_set.holds(program, entry));
            let gone: Vec<Entry> = gone.collect();
            desired.into_iter().for_each(|entry| self.objects.put_entry(name, entry, &none));
            gone.iter().for_each(|entry| self.objects.remove_entry(name, entry));
        }
    }

    /// Adds a kernel set that is derived from program sets. Sets of ordered rules are not shared
    /// between groups.
    pub(crate) fn add_derived_set(
        &mut self,
        program: &Program,
        (direction, family): (Direction, IpFamily),
        kind: IpSetKind,
        of: Vec<(SetId, EntryForm)>,
        group: Option<&str>,
    ) -> Name {
        let suffix = group.map_or(String::new(), |group| format!(" {group}"));
        let name = name::peer_set(direction, family, &format!("{kind:?} {of:?}{suffix}"));
        if self.derived_sets.contains_key(&name) {
            return name;
        }
        self.dependents.add_kernel_set(&name, of.iter().map(|(set, _)| set));
        let derived_set = DerivedSet { kind, family, of };
        self.objects.add_set(&name, IpSet { kind, family, entries: derived_set.entries(program) });
        if group.is_some() {
            self.objects.mark_ordered(&name);
        }
        self.derived_sets.insert(name.clone(), derived_set);
        name
    }

    /// Adds a set with fixed entries.
    pub(crate) fn add_fixed_set(
        &mut self,
        direction: Direction,
        family: IpFamily,
        kind: IpSetKind,
        entries: BTreeSet<Entry>,
    ) -> Name {
        let name = name::peer_set(direction, family, &format!("{kind:?} {entries:?}"));
        let entries = entries.into_iter().map(|entry| (entry, Name::from(""))).collect();
        self.objects.add_set(&name, IpSet { kind, family, entries });
        name
    }

    /// Stops updating a removed set.
    fn forget(&mut self, name: &Name) {
        let Some(derived_set) = self.derived_sets.remove(name) else { return };
        self.dependents.remove_kernel_set(name, derived_set.of.iter().map(|(set, _)| set));
    }
}

/// A network that contains the first and the last entry of a set of addresses.
fn covering_net(ends: (&Entry, &Entry)) -> Option<IpNet> {
    match ends {
        (Entry::Address(first), Entry::Address(last)) => common_chains::around(*first, *last),
        _ => None,
    }
}

/// Renders the chains and sets that enforce a program.
pub fn render(program: &Program) -> ChainsAndSets {
    let mut planner = Planner::new(Mode::Enforce);
    planner.plan(program, &Delta::from(program));
    planner.objects.desired
}
