//! Atoms, kinds and tiers: which addresses rules can tell apart, and what the rules decide.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use weir_model::{Delta, Member, Program, Protocol, Section, SetDelta, SetId};

use crate::{
    digest::{Digest, digest},
    installed::{Seeds, list_element},
    layout::{Decision, Identity, MAX_KINDS, MAX_LISTS, MAX_TIERS, TierAction, TierUse},
    planner::{Address, EbpfPlanner},
    prefix_table::PrefixTable,
    tables::{Tables, Write},
    tier::{AtomId, AtomKey, PortActions, Signature, TierRole, TierRules, prefixes, tier_digest},
};

/// The atoms, kinds and tiers of a planner. Their numbers are not used again for something else.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    atoms: Vec<Atom>,
    atoms_by_key: HashMap<AtomKey, AtomId>,
    kinds: HashMap<Signature, u32>,
    live_kinds: BTreeMap<u32, LiveKind>,
    next_kind: u32,
    tiers: BTreeMap<u32, LiveTier>,
    tiers_by_digest: HashMap<Digest, u32>,
    /// Tiers by the addresses of their sections in memory, which `LiveTier` keeps valid.
    tiers_by_sections: HashMap<(TierRole, Vec<usize>), u32>,
    next_tier: u32,
    prefixes: PrefixTable,
    networks: BTreeMap<IpNet, u32>,
    lists: HashMap<Vec<([u8; 8], u32)>, u32>,
    next_list: u32,
}

#[derive(Clone, Debug)]
struct Atom {
    key: AtomKey,
    /// The tiers that use it.
    tiers: BTreeSet<u32>,
    /// The kinds in use that have it.
    kinds: BTreeSet<u32>,
}

#[derive(Clone, Debug)]
struct LiveKind {
    signature: Signature,
    uses: usize,
}

#[derive(Clone, Debug)]
struct LiveTier {
    rules: TierRules,
    usual: Decision,
    uses: usize,
    sections: Vec<(TierRole, Vec<Arc<Section>>)>,
    digest: Digest,
}

fn sections_key(role: TierRole, sections: &[Arc<Section>]) -> (TierRole, Vec<usize>) {
    (role, sections.iter().map(|section| Arc::as_ptr(section) as usize).collect())
}

/// The ports of an address in a set; one list without ports if it is a plain member.
fn ports_in(program: &Program, set: &SetId, address: IpAddr) -> Option<Vec<(Protocol, u16)>> {
    let first = Member { address, port: None };
    let last = Member { address, port: Some((Protocol::Sctp, u16::MAX)) };
    let mut members = program.sets.get(set)?.range(first..=last).peekable();
    members.peek()?;
    Some(members.filter_map(|member| member.port).collect())
}

impl Classes {
    pub(crate) fn new(seeds: &Seeds) -> Self {
        let next = |highest: Option<&u32>| highest.map_or(1, |highest| highest + 1);
        Classes {
            atoms: Vec::new(),
            atoms_by_key: HashMap::new(),
            kinds: HashMap::from([(Signature::new(), 0)]),
            live_kinds: BTreeMap::new(),
            next_kind: next(seeds.kinds.values().max()),
            tiers: BTreeMap::new(),
            tiers_by_digest: HashMap::new(),
            tiers_by_sections: HashMap::new(),
            next_tier: next(seeds.tiers.values().max()),
            prefixes: PrefixTable::default(),
            networks: BTreeMap::new(),
            lists: HashMap::new(),
            next_list: next(seeds.lists.values().max()),
        }
    }

    fn atom(&mut self, key: AtomKey) -> AtomId {
        if let Some(atom) = self.atoms_by_key.get(&key) {
            return *atom;
        }
        let number = self.atoms.len() as AtomId;
        let (tiers, kinds) = (BTreeSet::new(), BTreeSet::new());
        self.atoms.push(Atom { key: key.clone(), tiers, kinds });
        self.atoms_by_key.insert(key, number);
        number
    }

    fn kind_digest(&self, signature: &Signature) -> Digest {
        let mut atoms: Vec<_> = signature
            .iter()
            .map(|(atom, ports)| (&self.atoms[*atom as usize].key, ports))
            .collect();
        atoms.sort_unstable();
        digest(&atoms)
    }
}

impl EbpfPlanner {
    /// Counts a use of a tier by rules, and adds it if it is new. `used` collects its number.
    pub(crate) fn use_tier(
        &mut self,
        program: &Program,
        role: TierRole,
        sections: &[Arc<Section>],
        used: &mut Vec<u32>,
    ) -> TierUse {
        if sections.iter().all(|section| section.rules.is_empty()) {
            return TierUse { tier: 0, usual: Decision::always(role.default_action()) };
        }
        let key = sections_key(role, sections);
        let known = self.classes.tiers_by_sections.get(&key).copied();
        let known = known.or_else(|| {
            let digest = tier_digest(role, sections);
            let number = *self.classes.tiers_by_digest.get(&digest)?;
            self.classes.tiers_by_sections.insert(key.clone(), number);
            self.classes.tiers.get_mut(&number)?.sections.push((role, sections.to_vec()));
            Some(number)
        });
        let number = known.unwrap_or_else(|| self.add_tier(program, role, sections));
        used.push(number);
        let Some(tier) = self.classes.tiers.get_mut(&number) else {
            return TierUse { tier: 0, usual: Decision::always(TierAction::Deny) };
        };
        tier.uses += 1;
        TierUse { tier: number, usual: tier.usual }
    }

    fn add_tier(&mut self, program: &Program, role: TierRole, sections: &[Arc<Section>]) -> u32 {
        let digest = tier_digest(role, sections);
        let number = self.seeds.tiers.get(&digest).copied().unwrap_or_else(|| {
            self.classes.next_tier += 1;
            self.classes.next_tier - 1
        });
        self.is_full |= number > MAX_TIERS;
        let rules = TierRules::new(role, sections, |key| self.classes.atom(key));
        let usual = self.decision(&rules.decide(&Signature::new()));
        let atoms: Vec<AtomId> = rules.atoms.iter().copied().collect();
        let known = vec![(role, sections.to_vec())];
        let tier = LiveTier { rules, usual, uses: 0, sections: known, digest };
        self.classes.tiers.insert(number, tier);
        self.classes.tiers_by_digest.insert(digest, number);
        self.classes.tiers_by_sections.insert(sections_key(role, sections), number);
        self.write_prepared(Write::Tier(number, digest));
        let mut kinds = BTreeSet::new();
        for atom in &atoms {
            let one = &mut self.classes.atoms[*atom as usize];
            let is_new = one.tiers.is_empty();
            one.tiers.insert(number);
            kinds.extend(one.kinds.iter().copied());
            self.unused_atoms.retain(|unused| unused != atom);
            if is_new {
                self.add_atom(program, *atom);
            }
        }
        // Kinds that the atoms above made were completed with this tier already.
        for kind in kinds {
            self.ensure_decision(number, kind);
        }
        number
    }

    pub(crate) fn release_tier(&mut self, number: u32) {
        let Some(tier) = self.classes.tiers.get_mut(&number) else { return };
        tier.uses -= 1;
        if tier.uses > 0 {
            return;
        }
        if let Some(tier) = self.classes.tiers.remove(&number) {
            self.classes.tiers_by_digest.remove(&tier.digest);
            for (role, sections) in &tier.sections {
                self.classes.tiers_by_sections.remove(&sections_key(*role, sections));
            }
            for atom in &tier.rules.atoms {
                let one = &mut self.classes.atoms[*atom as usize];
                one.tiers.remove(&number);
                if one.tiers.is_empty() {
                    self.unused_atoms.push(*atom);
                }
            }
        }
    }

    /// Makes an atom part of kinds.
    fn add_atom(&mut self, program: &Program, atom: AtomId) {
        match self.classes.atoms[atom as usize].key.clone() {
            AtomKey::Set(set) => {
                let members = program.sets.get(&set).into_iter().flatten();
                let addresses: BTreeSet<IpAddr> = members.map(|member| member.address).collect();
                for address in &addresses {
                    self.update_member(program, atom, &set, *address);
                }
                self.dirty.extend(addresses);
            }
            AtomKey::Block(block) => {
                let changed = self.classes.prefixes.add(atom, &block);
                self.mark_networks(changed, block.net);
            }
        }
    }

    /// Removes an atom from kinds.
    pub(crate) fn remove_atom(&mut self, atom: AtomId) {
        if !self.classes.atoms[atom as usize].tiers.is_empty() {
            return;
        }
        match self.classes.atoms[atom as usize].key.clone() {
            AtomKey::Set(_) => {
                let has = |one: &Address| one.sets.iter().any(|(set, _)| *set == atom);
                let members = self.addresses.iter().filter(|(_, one)| has(one));
                let members: Vec<IpAddr> = members.map(|(address, _)| *address).collect();
                for address in members {
                    if let Some(one) = self.addresses.get_mut(&address) {
                        one.sets.retain(|(set, _)| *set != atom);
                    }
                    self.dirty.insert(address);
                }
            }
            AtomKey::Block(block) => {
                let changed = self.classes.prefixes.remove(atom, &block);
                self.mark_networks(changed, block.net);
            }
        }
    }

    /// Applies changes of sets that are atoms.
    pub(crate) fn change_sets(&mut self, program: &Program, delta: &Delta) {
        let mut touched = BTreeSet::new();
        for (set, change) in &delta.sets {
            let Some(atom) = self.classes.atoms_by_key.get(&AtomKey::Set(set.clone())).copied()
            else {
                continue;
            };
            if self.classes.atoms[atom as usize].tiers.is_empty() {
                continue;
            }
            let addresses: BTreeSet<IpAddr> = match change {
                // Its tiers go as well, and then its atom. Until then its members change.
                SetDelta::Gone { added, removed } => {
                    removed.iter().for_each(|member| self.remove_member(atom, member));
                    added.iter().for_each(|member| self.add_member(atom, member));
                    touched.extend(added.iter().chain(removed).map(|member| member.address));
                    continue;
                }
                SetDelta::Change { added, removed } => {
                    added.iter().chain(removed).map(|member| member.address).collect()
                }
                SetDelta::Put(members) => {
                    let has = |one: &Address| one.sets.iter().any(|(set, _)| *set == atom);
                    let old = self.addresses.iter().filter(|(_, one)| has(one)).map(|(at, _)| *at);
                    members.iter().map(|member| member.address).chain(old).collect()
                }
            };
            for address in &addresses {
                self.update_member(program, atom, set, *address);
            }
            touched.extend(addresses);
        }
        self.dirty.extend(touched);
    }

    /// Writes the kinds of all addresses and networks that changed. Each has one write: between two
    /// writes, an address that moves would be in neither of two sets.
    pub(crate) fn flush_kinds(&mut self) {
        for net in mem::take(&mut self.dirty_networks) {
            self.refresh_network(net);
        }
        for address in mem::take(&mut self.dirty) {
            self.refresh_address(address);
        }
    }

    /// Adds a member to a set that the program no longer has.
    fn add_member(&mut self, atom: AtomId, member: &Member) {
        let one = self.addresses.entry(member.address).or_default();
        let at = match one.sets.binary_search_by_key(&atom, |(set, _)| *set) {
            Ok(at) => at,
            Err(at) => {
                one.sets.insert(at, (atom, Vec::new()));
                at
            }
        };
        let ports = &mut one.sets[at].1;
        ports.extend(member.port);
        ports.sort_unstable();
        ports.dedup();
    }

    /// Removes a member from a set that the program no longer has.
    fn remove_member(&mut self, atom: AtomId, member: &Member) {
        let Some(one) = self.addresses.get_mut(&member.address) else { return };
        let Ok(at) = one.sets.binary_search_by_key(&atom, |(set, _)| *set) else { return };
        one.sets[at].1.retain(|port| Some(*port) != member.port);
        if one.sets[at].1.is_empty() {
            one.sets.remove(at);
        }
    }

    /// Reads whether an address is in a set.
    fn update_member(&mut self, program: &Program, atom: AtomId, set: &SetId, address: IpAddr) {
        let ports = ports_in(program, set, address);
        if ports.is_none() && !self.addresses.contains_key(&address) {
            return;
        }
        let one = self.addresses.entry(address).or_default();
        match (one.sets.binary_search_by_key(&atom, |(set, _)| *set), ports) {
            (Ok(at), Some(ports)) => one.sets[at].1 = ports,
            (Err(at), Some(ports)) => one.sets.insert(at, (atom, ports)),
            (Ok(at), None) => _ = one.sets.remove(at),
            (Err(_), None) => (),
        }
    }

    /// Writes the kind of an address after a change.
    fn refresh_address(&mut self, address: IpAddr) {
        self.update_kind(address);
        self.drop_unused(address);
        let write = self.address_write(address);
        if self.tables.apply(&write) {
            self.members.push(write);
        }
    }

    /// Marks networks, and the addresses within one, after a change of blocks.
    fn mark_networks(&mut self, changed: BTreeSet<IpNet>, within: IpNet) {
        self.dirty_networks.extend(changed);
        let addresses = self.addresses.range(within.network()..=within.broadcast());
        self.dirty.extend(addresses.map(|(address, _)| *address));
    }

    /// Writes the kind of a network after a change of blocks.
    fn refresh_network(&mut self, net: IpNet) {
        let blocks = self.classes.prefixes.blocks_of(&net);
        let atoms = blocks.map(|blocks| blocks.iter().map(|atom| (*atom, Vec::new())));
        let signature = atoms.map(Iterator::collect::<Signature>);
        let kind = signature.map(|signature| self.use_kind(signature));
        let old = match kind {
            Some(kind) => self.classes.networks.insert(net, kind),
            None => self.classes.networks.remove(&net),
        };
        if let Some(old) = old {
            self.release_kind(old);
        }
        let write = Write::Network(net, kind);
        if self.tables.apply(&write) {
            self.members.push(write);
        }
    }

    /// Forgets an address that is in no set and belongs to no pod. Its networks apply again.
    pub(crate) fn drop_unused(&mut self, address: IpAddr) {
        let is_unused = |one: &Address| one.sets.is_empty() && one.pod.is_none();
        if self.addresses.get(&address).is_some_and(is_unused)
            && let Some(one) = self.addresses.remove(&address)
        {
            self.release_kind(one.kind);
        }
    }

    /// Computes the kind of an address after a change of its sets or blocks.
    pub(crate) fn update_kind(&mut self, address: IpAddr) {
        let Some(one) = self.addresses.get(&address) else { return };
        let mut signature = one.sets.clone();
        let blocks = self.classes.prefixes.blocks(address).into_iter().flatten();
        signature.extend(blocks.map(|atom| (*atom, Vec::new())));
        signature.sort_unstable();
        let old = one.kind;
        let kind = self.use_kind(signature);
        if let Some(one) = self.addresses.get_mut(&address) {
            one.kind = kind;
        }
        self.release_kind(old);
    }

    /// Counts a use of the kind with a signature. A kind that comes into use has all its decisions.
    fn use_kind(&mut self, signature: Signature) -> u32 {
        if signature.is_empty() {
            return 0;
        }
        let number = match self.classes.kinds.get(&signature) {
            Some(number) => *number,
            None => {
                let digest = self.classes.kind_digest(&signature);
                let number = self.seeds.kinds.get(&digest).copied().unwrap_or_else(|| {
                    self.classes.next_kind += 1;
                    self.classes.next_kind - 1
                });
                self.is_full |= number > MAX_KINDS;
                self.classes.kinds.insert(signature.clone(), number);
                self.write_prepared(Write::Kind(number, digest));
                number
            }
        };
        if let Some(live) = self.classes.live_kinds.get_mut(&number) {
            live.uses += 1;
            return number;
        }
        let mut tiers = BTreeSet::new();
        for (atom, _) in &signature {
            let one = &mut self.classes.atoms[*atom as usize];
            one.kinds.insert(number);
            tiers.extend(one.tiers.iter().copied());
        }
        self.classes.live_kinds.insert(number, LiveKind { signature, uses: 1 });
        for tier in tiers {
            self.ensure_decision(tier, number);
        }
        number
    }

    fn release_kind(&mut self, number: u32) {
        let Some(live) = self.classes.live_kinds.get_mut(&number) else { return };
        live.uses -= 1;
        if live.uses == 0
            && let Some(live) = self.classes.live_kinds.remove(&number)
        {
            for (atom, _) in live.signature {
                self.classes.atoms[atom as usize].kinds.remove(&number);
            }
        }
    }

    /// Writes the decision of a tier about a kind, unless it is the usual one.
    fn ensure_decision(&mut self, tier: u32, kind: u32) {
        if self.tables.decisions.contains_key(&(tier, kind)) {
            return;
        }
        let classes = &self.classes;
        let (Some(rules), Some(live)) = (classes.tiers.get(&tier), classes.live_kinds.get(&kind))
        else {
            return;
        };
        let (usual, actions) = (rules.usual, rules.rules.decide(&live.signature));
        let decision = self.decision(&actions);
        if decision != usual {
            self.write_prepared(Write::Decision { tier, kind, decision });
        }
    }

    /// The decision with these actions. Equal lists of ports have one number.
    fn decision(&mut self, actions: &PortActions) -> Decision {
        let rest = actions.rest;
        if actions.listed.is_empty() {
            return Decision::always(rest);
        }
        let all = |list: u32| {
            let ranges = actions.listed.iter();
            ranges.flat_map(move |(range, action)| {
                prefixes(list, *range).into_iter().map(move |prefix| (prefix, *action))
            })
        };
        let mut content: Vec<_> =
            all(0).map(|(prefix, action)| list_element(&prefix, action)).collect();
        content.sort_unstable();
        let list = match self.classes.lists.get(&content) {
            Some(list) => *list,
            None => {
                let list = self.seeds.lists.get(&content).copied().unwrap_or_else(|| {
                    self.classes.next_list += 1;
                    self.classes.next_list - 1
                });
                self.is_full |= list > MAX_LISTS;
                self.classes.lists.insert(content, list);
                for (prefix, action) in all(list) {
                    self.write_prepared(Write::Ports(prefix, action));
                }
                list
            }
        };
        Decision { rest, list }
    }

    /// Whether maps with this content already decide as this planner's do. Numbers that nothing
    /// uses do not matter.
    pub(crate) fn is_in(&self, installed: &Tables) -> bool {
        let Tables { config, addresses, networks, pods, decisions, ports, kinds, tiers } =
            &self.tables;
        let classes = &self.classes;
        let is_used = |(tier, kind): &(u32, u32)| {
            classes.tiers.contains_key(tier) && classes.live_kinds.contains_key(kind)
        };
        let used_pods: BTreeSet<u32> = addresses.values().filter_map(Identity::pod).collect();
        let usual = classes.tiers.values().map(|tier| tier.usual.list);
        let used = decisions.iter().filter(|(key, _)| is_used(key));
        let lists: BTreeSet<u32> = used.map(|(_, decision)| decision.list).chain(usual).collect();
        config.has_isolated == installed.config.has_isolated
            && *addresses == installed.addresses
            && *networks == installed.networks
            && same(pods, &installed.pods, |number| used_pods.contains(number))
            && same(decisions, &installed.decisions, is_used)
            && same(ports, &installed.ports, |prefix| lists.contains(&prefix.list))
            && same(kinds, &installed.kinds, |kind| classes.live_kinds.contains_key(kind))
            && same(tiers, &installed.tiers, |tier| classes.tiers.contains_key(tier))
    }
}

/// Whether two maps have the same elements with keys for which `is_used` holds.
fn same<K: Ord, V: PartialEq>(
    one: &BTreeMap<K, V>,
    other: &BTreeMap<K, V>,
    is_used: impl Fn(&K) -> bool,
) -> bool {
    let used = |map: &'_ BTreeMap<K, V>| map.iter().filter(|(key, _)| is_used(key)).count();
    let mut elements = one.iter().filter(|(key, _)| is_used(key));
    used(one) == used(other) && elements.all(|(key, value)| other.get(key) == Some(value))
}
