//! Turns programs into the content of maps, and deltas into writes.
//!
//! ```text
//!   sets, blocks ─► atoms ─► signature of an address ─► kind      ┐
//!   rules of a pod ─► tiers (admin, policies; both directions)    ├─► (tier, kind) ─► decision
//! ```
//!
//! A signature is the list of atoms that an address fulfils, and addresses with equal signatures are
//! of one kind. Only sets and blocks that rules of this node name are atoms.
//!
//! *Invariant*: a number of a tier, a kind, a pod entry or a port list keeps its meaning as long as
//! its maps exist. A packet reads the number of each end once, in one word. So it meets the
//! decision about one old or new state of each end.
//!
//! *Invariant*: an atom becomes part of kinds before rules that need it, and leaves them after. In
//! between, the agent waits for packets in flight.

mod pods;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
};

use ipnet::IpNet;
use weir_datapath::{FormerAddresses, Mode, Planner, Shortfall};
use weir_model::{Delta, PodId, Program};

use crate::{
    classes::Classes,
    digest::Digest,
    installed::{Installed, Seeds},
    layout::{Config, PodEntry},
    plan::{MapPlan, MapStep},
    size_limit::{OpenTiers, SizeLimit},
    tables::{Tables, Write},
    tier::AtomId,
};

pub(crate) use pods::Address;
use pods::LiveRules;

/// The least capacity of the maps.
const MIN_CAPACITY: u32 = 1 << 16;
/// The most elements for which there is room in addition.
const MAX_SPARE: u32 = 1 << 21;

/// The planner of the eBPF datapath.
#[derive(Clone, Debug)]
pub struct EbpfPlanner {
    pub(crate) tables: Tables,
    pub(crate) capacity: u32,
    /// With larger atoms and signatures, new maps are needed: then those no longer in use are forgotten.
    max_kept: usize,
    pub(crate) open_tiers: OpenTiers,
    pub(crate) seeds: Seeds,
    pub(crate) classes: Classes,
    /// The rules of pods, by their address in memory.
    rules: HashMap<usize, LiveRules>,
    pub(crate) addresses: BTreeMap<IpAddr, Address>,
    pods: BTreeMap<PodId, Vec<IpAddr>>,
    /// The number of addresses of pods that are isolated for ingress, by family.
    isolated: [usize; 2],
    pod_numbers: BTreeMap<PodEntry, u32>,
    next_pod: u32,
    /// Whether the tables hold a program.
    is_filled: bool,
    /// Whether a number did not fit, so that new maps are needed.
    pub(crate) is_full: bool,
    /// The writes that no packet meets yet.
    prepare: Vec<Write>,
    /// The writes of kinds.
    pub(crate) members: Vec<Write>,
    /// The writes that give pods their new rules.
    switch: Vec<Write>,
    /// The atoms whose members were read in this change.
    pub(crate) new_atoms: BTreeSet<AtomId>,
    /// The atoms that lost their last tier.
    pub(crate) unused_atoms: Vec<AtomId>,
    /// The addresses and networks whose atoms changed.
    pub(crate) dirty: BTreeSet<IpAddr>,
    pub(crate) dirty_networks: BTreeSet<IpNet>,
    /// The addresses that domain names had before.
    pub(crate) former: FormerAddresses,
}

impl EbpfPlanner {
    /// A planner for empty maps.
    pub fn new(mode: Mode, programs: Digest) -> Self {
        let is_audit = mode == Mode::Audit;
        EbpfPlanner::with(Config { is_audit, programs, ..Config::default() }, Seeds::default())
    }

    /// Sets how many elements rules may need.
    #[must_use]
    pub fn with_size_limit(mut self, limit: SizeLimit) -> Self {
        self.open_tiers = OpenTiers::new(limit);
        self
    }

    /// Lets connections go on that the rules forbid later.
    #[must_use]
    pub fn keeping_established(mut self) -> Self {
        self.tables.config.keeps_established = true;
        self
    }

    fn with(config: Config, seeds: Seeds) -> Self {
        let next_pod = seeds.pods.values().max().map_or(0, |highest| highest + 1);
        EbpfPlanner {
            tables: Tables { config, ..Tables::default() },
            capacity: MIN_CAPACITY,
            max_kept: usize::MAX,
            open_tiers: OpenTiers::default(),
            classes: Classes::new(&seeds),
            seeds,
            rules: HashMap::new(),
            addresses: BTreeMap::new(),
            pods: BTreeMap::new(),
            isolated: [0; 2],
            pod_numbers: BTreeMap::new(),
            next_pod,
            is_filled: false,
            is_full: false,
            prepare: Vec::new(),
            members: Vec::new(),
            switch: Vec::new(),
            new_atoms: BTreeSet::new(),
            unused_atoms: Vec::new(),
            dirty: BTreeSet::new(),
            dirty_networks: BTreeSet::new(),
            former: FormerAddresses::default(),
        }
    }

    /// The content of the maps.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Starts a new epoch: connections are evaluated again.
    pub fn next_epoch(&mut self) -> Write {
        let epoch = self.tables.config.epoch.wrapping_add(1);
        let write = Write::Config(Config { epoch, ..self.tables.config });
        self.tables.apply(&write);
        write
    }

    /// Changes the tables from the last program to this one. Returns the steps.
    fn change(&mut self, program: &Program, delta: &Delta) -> MapPlan {
        if self.former.record(delta) {
            self.forget_former();
        }
        // New tiers make their atoms part of kinds.
        let mut owners = BTreeMap::new();
        for address in self.touched_addresses(delta) {
            let owner = program.owner(address).map(|(id, one)| (id.clone(), one.rules.clone()));
            let owner = owner.map(|(id, rules)| (id, self.use_rules(program, &rules)));
            owners.insert(address, owner);
        }
        let waits = !(self.dirty.is_empty() && self.dirty_networks.is_empty());
        self.change_sets(program, delta);
        self.flush_kinds();
        let members = mem::take(&mut self.members);

        let has_new_pods = self.switch_pods(owners);
        for (id, endpoint) in &delta.endpoints {
            match endpoint {
                Some(endpoint) => _ = self.pods.insert(id.clone(), endpoint.addresses.clone()),
                None => _ = self.pods.remove(id),
            }
        }
        // New maps can begin with the settings of others, also when no pod is left.
        let has_isolated = self.isolated_families();
        let settings = Write::Config(Config { has_isolated, ..self.tables.config });
        if self.tables.apply(&settings) {
            self.switch.push(settings);
        }
        let switch = mem::take(&mut self.switch);

        // Atoms that no tier uses any more leave the kinds.
        self.remove_unused_atoms();
        self.flush_kinds();
        let after = mem::take(&mut self.members);

        let mut steps: Vec<MapStep> = Vec::new();
        let mut add = |writes: Vec<Write>| steps.extend(writes.into_iter().map(MapStep::Write));
        let has_switched = !switch.is_empty();
        add(mem::take(&mut self.prepare));
        add(members);
        if waits && has_switched {
            steps.push(MapStep::Wait);
        }
        steps.extend(switch.into_iter().map(MapStep::Write));
        if has_new_pods {
            steps.push(MapStep::Write(self.next_epoch()));
        }
        if has_switched && !after.is_empty() {
            steps.push(MapStep::Wait);
        }
        steps.extend(after.into_iter().map(MapStep::Write));
        MapPlan { steps }
    }

    /// The addresses that the pods of a delta had or have.
    fn touched_addresses(&self, delta: &Delta) -> BTreeSet<IpAddr> {
        let new = delta.endpoints.values().flatten().flat_map(|endpoint| &endpoint.addresses);
        let old = delta.endpoints.keys().filter_map(|id| self.pods.get(id)).flatten();
        new.chain(old).copied().collect()
    }

    /// Adds a write that no packet meets yet. New maps are written as a whole.
    pub(crate) fn write_prepared(&mut self, write: Write) {
        if self.tables.apply(&write) && self.is_filled {
            self.prepare.push(write);
        }
    }

    /// Installs the current tables in new maps, without numbers that nothing uses any more.
    fn replace(&mut self, program: &Program, epoch: u32) -> MapPlan {
        let config = Config { epoch, ..self.tables.config };
        let since = Seeds { since: self.since(), ..Seeds::default() };
        let (former, open_tiers) = (mem::take(&mut self.former), mem::take(&mut self.open_tiers));
        // The old state is gone before the new one needs memory.
        *self = EbpfPlanner { former, open_tiers, ..EbpfPlanner::with(config, since) };
        self.change(program, &Delta::from(program));
        self.seeds = Seeds::default();
        let size = u32::try_from(self.tables.size()).unwrap_or(u32::MAX / 8);
        let capacity = (4 * size).min(size + MAX_SPARE);
        self.finish(capacity.next_power_of_two().max(MIN_CAPACITY));
        MapPlan { steps: vec![MapStep::Replace(Box::new(self.tables.clone()), self.capacity)] }
    }

    /// The tables hold a program, in maps of this capacity.
    fn finish(&mut self, capacity: u32) {
        self.is_filled = true;
        self.capacity = capacity;
        self.max_kept = self.classes.kept() + MAX_SPARE as usize;
    }

    fn is_over_capacity(&self) -> bool {
        self.is_full
            || self.tables.size() > self.capacity as usize
            || self.classes.kept() > self.max_kept
    }
}

impl Planner for EbpfPlanner {
    type Installed = Installed;
    type Plan = MapPlan;

    fn has_rules(installed: &Installed) -> bool {
        installed.tables.is_some()
    }

    fn set_former(&mut self, former: FormerAddresses) {
        self.former = former;
    }

    fn plan(&mut self, program: &Program, delta: &Delta) -> MapPlan {
        let has_rules = !self.is_filled || !delta.endpoints.is_empty();
        let closes_others = has_rules && self.open_tiers.update(program);
        if !self.is_filled || closes_others {
            return self.replace(program, self.tables.config.epoch.wrapping_add(1));
        }
        let plan = self.change(program, delta);
        if self.is_over_capacity() {
            return self.replace(program, self.tables.config.epoch.wrapping_add(1));
        }
        plan
    }

    fn replan(&mut self, program: &Program, installed: &Installed) -> MapPlan {
        let config = self.tables.config;
        self.open_tiers.update(program);
        let open_tiers = mem::take(&mut self.open_tiers);
        let Some(tables) = &installed.tables else {
            let former = mem::take(&mut self.former);
            *self =
                EbpfPlanner { former, open_tiers, ..EbpfPlanner::with(config, Seeds::default()) };
            return self.replace(program, config.epoch.wrapping_add(1));
        };
        let same_settings =
            Config { epoch: config.epoch, has_isolated: config.has_isolated, ..tables.config }
                == config;
        let config = Config { epoch: tables.config.epoch, ..config };
        let mut adopting = EbpfPlanner::with(config, Seeds::from_tables(tables));
        adopting.former = mem::take(&mut self.former);
        adopting.open_tiers = open_tiers;
        adopting.change(program, &Delta::from(program));
        adopting.finish(installed.capacity);
        if same_settings && installed.is_intact && adopting.is_in(tables) {
            adopting.tables = tables.clone();
            *self = adopting;
            return MapPlan::default();
        }
        *self = adopting;
        self.replace(program, config.epoch.wrapping_add(1))
    }

    fn shortfalls(&self) -> Vec<Shortfall> {
        self.open_tiers.shortfalls().to_vec()
    }
}
