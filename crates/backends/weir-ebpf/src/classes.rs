//! Atoms, kinds and tiers: which addresses rules can tell apart, and what the rules decide.

mod atoms;
mod kinds;
mod tiers;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ipnet::IpNet;
use weir_model::Section;

use crate::{
    digest::{Digest, digest},
    installed::Seeds,
    layout::{Decision, Identity},
    planner::EbpfPlanner,
    prefix_table::PrefixTable,
    tables::Tables,
    tier::{AtomId, AtomKey, Signature, TierRole, TierRules},
};

/// How much more memory an atom takes than its number in a signature.
const ATOM_SIZE: usize = 8;

/// The atoms, kinds and tiers of a planner. Their numbers are not used again for something else.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    atoms: Vec<Atom>,
    atoms_by_key: HashMap<AtomKey, AtomId>,
    /// Kinds by the signature for new connections, and the other one for established connections if
    /// names had the address before.
    kinds: HashMap<(Signature, Signature), u32>,
    live_kinds: BTreeMap<u32, LiveKind>,
    /// The atoms of all these signatures, also of those that are no longer in use.
    pub(crate) signature_atoms: usize,
    /// The atoms and the exceptions of blocks, also those that are no longer in use.
    atom_parts: usize,
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
    /// The decisions by the numbers of the rules that match. Thousands of kinds can have few of them.
    decided: HashMap<Vec<usize>, Decision>,
    uses: usize,
    sections: Vec<(TierRole, Vec<Arc<Section>>)>,
    digest: Digest,
}

pub(crate) fn sections_key(role: TierRole, sections: &[Arc<Section>]) -> (TierRole, Vec<usize>) {
    (role, sections.iter().map(|section| Arc::as_ptr(section) as usize).collect())
}

impl Classes {
    pub(crate) fn new(seeds: &Seeds) -> Self {
        let next = |highest: Option<&u32>| highest.map_or(1, |highest| highest.saturating_add(1));
        Classes {
            atoms: Vec::new(),
            atoms_by_key: HashMap::new(),
            kinds: HashMap::from([(<_>::default(), 0)]),
            live_kinds: BTreeMap::new(),
            signature_atoms: 0,
            atom_parts: 0,
            next_kind: seeds.highest_kind.saturating_add(1),
            tiers: BTreeMap::new(),
            tiers_by_digest: HashMap::new(),
            tiers_by_sections: HashMap::new(),
            next_tier: seeds.highest_tier.saturating_add(1),
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
        self.atom_parts += match &key {
            AtomKey::Set(_) => 1,
            AtomKey::Block(block) => 1 + block.except.len(),
        };
        let (tiers, kinds) = (BTreeSet::new(), BTreeSet::new());
        self.atoms.push(Atom { key: key.clone(), tiers, kinds });
        self.atoms_by_key.insert(key, number);
        number
    }

    /// The size of all atoms and signatures, in atoms of signatures.
    pub(crate) fn kept(&self) -> usize {
        self.signature_atoms + ATOM_SIZE * self.atom_parts
    }

    fn add_kind(&mut self, signatures: (Signature, Signature), number: u32) {
        self.signature_atoms += signatures.0.len() + signatures.1.len();
        self.kinds.insert(signatures, number);
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
