//! Many sets of a pod's rules in a few sets of the kernel.
//!
//! The kernel finds a set by name in a list of all sets of the table. So the time to add sets grows
//! with the square of their number, and thousands of them take seconds. A pod whose rules need many
//! sets has *numbered* sets instead. They share a set of the kernel, and each key begins with the
//! number of its set:
//!
//! ```text
//!   meta mark & 0x00000007 | 0x00000007 . ip saddr @numbered-peers4-…    return
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use hashbrown::HashMap;
use ipnet::IpNet;
use weir_model::{Action, Block, Direction, IpFamily, Name, PortList, Program, SetId};

use crate::{
    ElementKey, Field, Match, NftSet, Planner, SetKind,
    layout::{Level, Slot},
    names::comment,
    peers::PeerSets,
};

/// The most elements of a set of intervals. A lookup takes time by their number.
const MAX_INTERVALS: usize = 512;

/// The numbered sets of a pod for one direction and family.
#[derive(Clone, Debug)]
pub(crate) struct NumberedSets {
    direction: Direction,
    family: IpFamily,
    /// A digest of all rules, for the names of the sets.
    digest: String,
    /// The last number.
    last: u32,
    /// The numbers of unions of sets of the program.
    peers: HashMap<Vec<SetId>, u32>,
    /// The lookups of ports.
    ports: HashMap<PortList, Match>,
    /// The sets of the kernel whose elements never change.
    constant: BTreeMap<Name, (SetKind, BTreeSet<ElementKey>)>,
    /// The number of full sets of intervals.
    full: usize,
}

impl NumberedSets {
    pub(crate) fn new(direction: Direction, family: IpFamily, digest: String) -> Self {
        NumberedSets {
            direction,
            family,
            digest,
            last: 0,
            peers: HashMap::new(),
            ports: HashMap::new(),
            constant: BTreeMap::new(),
            full: 0,
        }
    }

    /// The digest of all rules.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// The lookup of a peer in the union of some sets of the program.
    pub(crate) fn match_peers(&mut self, sets: Vec<SetId>) -> Match {
        let NumberedSets { last, peers, .. } = self;
        let number = *peers.entry(sets).or_insert_with(|| next(last));
        Match::In(vec![Field::Number(number), self.address()], self.peers_name())
    }

    /// The lookup of the port of a packet in a list.
    pub(crate) fn match_ports(&mut self, ports: &PortList) -> Match {
        if let Some(known) = self.ports.get(ports) {
            return known.clone();
        }
        let number = next(&mut self.last);
        let is_single = ports.iter().all(|range| range.first == range.last);
        let (kind, field) = match is_single {
            true => (SetKind::NumberedServices, Field::Number(number)),
            false => (SetKind::NumberedServiceRanges, Field::IntervalNumber(number)),
        };
        let elements = ports.iter().map(|range| ElementKey::NumberedService(number, *range));
        let set = self.add(kind, elements.collect());
        let lookup = Match::In(vec![field, Field::Protocol, Field::DestinationPort], set);
        self.ports.insert(ports.clone(), lookup.clone());
        lookup
    }

    /// The matches of all blocks, each with the matches of one rule.
    ///
    /// A block with exceptions is a comparison and a lookup of the exceptions. As intervals between
    /// them, they would take much more memory: the kernel divides an interval into networks.
    pub(crate) fn match_blocks(&mut self, blocks: &BTreeSet<Block>) -> Vec<Vec<Match>> {
        let ours = blocks.iter().filter(|block| IpFamily::from(block.net.addr()) == self.family);
        let (plain, with_exceptions): (Vec<&Block>, Vec<&Block>) =
            ours.partition(|block| block.except.is_empty());
        let mut all = Vec::new();
        if !plain.is_empty() {
            let (key, set) = self.add_networks(plain.into_iter().map(|block| block.net));
            all.push(vec![Match::In(key, set)]);
        }
        for block in with_exceptions {
            let (first, last) = ends(block.net);
            let (key, set) = self.add_networks(block.except.iter().copied());
            let net = Match::Between(self.address(), first, last);
            all.push(vec![net, Match::NotIn(key, set)]);
        }
        all
    }

    /// Adds a set of networks. Returns its key and the set of the kernel.
    fn add_networks(&mut self, nets: impl Iterator<Item = IpNet>) -> (Vec<Field>, Name) {
        let number = next(&mut self.last);
        // The kernel rejects intervals that overlap. Sorted, a network precedes those inside it.
        let mut nets: Vec<IpNet> = nets.collect();
        nets.sort_unstable_by_key(|net| (net.network(), net.prefix_len()));
        nets.dedup_by(|next, last| last.contains(&*next));
        let element = |net: &IpNet| {
            let (first, last) = ends(*net);
            ElementKey::NumberedBlock(number, first, last)
        };
        let set =
            self.add(SetKind::NumberedBlocks(self.family), nets.iter().map(element).collect());
        (vec![Field::IntervalNumber(number), self.address()], set)
    }

    /// Adds elements to a set of the kernel, and returns its name.
    fn add(&mut self, kind: SetKind, elements: Vec<ElementKey>) -> Name {
        let name = |full| -> Name {
            let word = match kind {
                SetKind::NumberedBlocks(family) => format!("blocks{}-{full}", family.digit()),
                SetKind::NumberedServiceRanges => format!("ranges-{full}"),
                _ => "services".to_owned(),
            };
            format!("numbered-{word}-{}", self.digest).into()
        };
        let length = self.constant.get(&name(self.full)).map_or(0, |(_, elements)| elements.len());
        if kind.has_key_ranges() && length > 0 && length + elements.len() > MAX_INTERVALS {
            self.full += 1;
        }
        let name = name(self.full);
        let (_, all) = self.constant.entry(name.clone()).or_insert((kind, BTreeSet::new()));
        all.extend(elements);
        name
    }

    fn address(&self) -> Field {
        Field::peer(self.direction, self.family)
    }

    fn peers_name(&self) -> Name {
        format!("numbered-peers{}-{}", self.family.digit(), self.digest).into()
    }
}

impl Planner {
    /// Adds the sets of the kernel that hold the numbered sets, if there are any.
    pub(crate) fn add_numbered_sets(&mut self, program: &Program) {
        let Some(mut numbered) = self.objects.numbered.take() else { return };
        for (name, (kind, elements)) in mem::take(&mut numbered.constant) {
            let meaning = comment(&format!("{} elements of numbered sets", elements.len()));
            let elements = elements.into_iter().map(|key| (key, None)).collect();
            self.objects.add_set(&name, NftSet { kind, comment: meaning, elements });
        }
        if numbered.peers.is_empty() {
            return;
        }
        let (family, set) = (numbered.family, numbered.peers_name());
        let unions: BTreeMap<u32, Vec<SetId>> =
            numbered.peers.into_iter().map(|(sets, number)| (number, sets)).collect();
        let slot = |number: &u32| Slot {
            set: set.clone(),
            kind: SetKind::NumberedAddresses(family),
            level: Level::AllPorts,
            action: Action::Allow,
            number: Some(*number),
        };
        let slots: Vec<Slot> = unions.keys().map(slot).collect();
        let meaning = comment(&format!("{} numbered sets", slots.len()));
        let unions = unions.into_values().collect();
        let create = || PeerSets::numbered(slots.clone(), family, unions);
        self.add_peer_sets(program, create, &slots, |_| meaning.clone());
    }
}

fn next(last: &mut u32) -> u32 {
    *last += 1;
    *last
}

fn ends(net: IpNet) -> (IpAddr, IpAddr) {
    (net.network(), net.broadcast())
}
