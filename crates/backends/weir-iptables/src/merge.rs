//! Merges the policies that isolate a pod, so that the cost does not depend on their number.
//!
//! Up to a few ports, a peer and each of its ports become one entry. A longer list would multiply
//! with its peers. The peers of such a list become a set, and the list becomes a comparison or another
//! set. A packet must match both.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{Block, Peers, PortList, PortRange, Ports, Protocol, Section, SetId};

use crate::{
    Entry, IpSetKind, IptablesRule, Match, SrcDst, blocks,
    chain::{ChainCompiler, match_ports},
    derived_set::EntryForm,
    name::comment,
    skeleton,
};

/// Up to this many comparisons match a long list of ports without a set.
const MAX_COMPARISONS: usize = 2;

/// Up to this many comparisons match networks without a set. The kernel finds a set by name in a list
/// of all sets, so a set for each of thousands of port ranges takes seconds.
const MAX_COMPARED_NETWORKS: usize = 4;

/// The traffic that policies allow.
#[derive(Debug, Default)]
struct Allowed<'r> {
    /// The peers that can use every port.
    any_port: PeerGroup<'r>,
    /// The peers of each long list of ports.
    lists: BTreeMap<PortList, PeerGroup<'r>>,
    /// The few ports of the members of each set.
    sets: BTreeMap<&'r SetId, Vec<PortRange>>,
    /// The blocks that can use a port, or a range of ports.
    ports: BTreeMap<PortRange, BTreeSet<&'r Block>>,
    /// The ports that every peer can use.
    anyone: Vec<PortRange>,
    /// Whether every peer can use every port.
    is_open: bool,
    /// The sets of peers with their named ports.
    port_sets: BTreeSet<&'r SetId>,
}

/// Peers with the same ports.
#[derive(Debug, Default)]
struct PeerGroup<'r> {
    sets: BTreeSet<&'r SetId>,
    blocks: BTreeSet<&'r Block>,
}

impl<'r> Allowed<'r> {
    fn from_sections(sections: &'r [Arc<Section>], max_paired_ports: usize) -> Self {
        let mut allowed = Allowed::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            let list = match &rule.ports {
                Ports::Any => None,
                Ports::Of(list) => Some(list),
            };
            let group = match list {
                None => Some(&mut allowed.any_port),
                Some(list) if list.len() > max_paired_ports => {
                    Some(allowed.lists.entry(list.clone()).or_default())
                }
                Some(_) => None,
            };
            let ranges = list.into_iter().flatten().copied();
            match (&rule.peers, group) {
                (Peers::PortSet(set), _) => _ = allowed.port_sets.insert(set),
                (Peers::Any, _) if list.is_none() => allowed.is_open = true,
                (Peers::Any, _) => allowed.anyone.extend(ranges),
                (Peers::Set(set), Some(group)) => _ = group.sets.insert(set),
                (Peers::Set(set), None) => allowed.sets.entry(set).or_default().extend(ranges),
                (Peers::Block(block), Some(group)) => _ = group.blocks.insert(block),
                (Peers::Block(block), None) => ranges.for_each(|range| {
                    allowed.ports.entry(range).or_default().insert(block);
                }),
            }
        }
        // The policies of a pod can give a set many ports in small portions.
        for (set, ranges) in std::mem::take(&mut allowed.sets) {
            let Some(Ports::Of(list)) = Ports::from_ranges(ranges) else { continue };
            if list.len() > max_paired_ports {
                allowed.lists.entry(list).or_default().sets.insert(set);
            } else {
                allowed.sets.insert(set, list.to_vec());
            }
        }
        allowed
    }
}

impl ChainCompiler<'_> {
    /// The rules that allow the traffic of these policies. Their number does not depend on the
    /// number of policies; each port range, and each long list of ports, adds one.
    pub(crate) fn isolation_rules(
        &mut self,
        sections: &[Arc<Section>],
        policies: &str,
    ) -> Vec<IptablesRule> {
        let (target, comment) = (skeleton::allowed(self.direction), comment(policies));
        let allowed = Allowed::from_sections(sections, self.planner.max_paired_ports);
        let matches = if allowed.is_open {
            vec![Vec::new()]
        } else {
            let mut all = self.match_members(&allowed);
            all.extend(self.match_networks(&allowed));
            for (list, peers) in &allowed.lists {
                all.extend(self.match_list(list, peers));
            }
            all
        };
        let allow =
            |matches| IptablesRule { matches, target: target.clone(), comment: comment.clone() };
        matches.into_iter().map(allow).collect()
    }

    /// Matches peers that are members of sets and have few ports, or every port.
    fn match_members(&mut self, allowed: &Allowed<'_>) -> Vec<Vec<Match>> {
        let mut at = own(&allowed.port_sets);
        let mut ranges: BTreeMap<PortRange, BTreeSet<&SetId>> = BTreeMap::new();
        for (set, list) in &allowed.sets {
            let (single, several) = split(list);
            if !single.is_empty() {
                at.push(((*set).clone(), EntryForm::At(single)));
            }
            several.into_iter().for_each(|range| _ = ranges.entry(range).or_default().insert(set));
        }
        let mut all = Vec::new();
        if !at.is_empty() {
            all.push(vec![self.match_derived_set(IpSetKind::Ports, at, None)]);
        }
        all.extend(self.match_sets(&allowed.any_port.sets).map(|members| vec![members]));
        for (range, sets) in ranges {
            let members = self.match_sets(&sets);
            let ports = match_ports(&[range]).into_iter();
            all.extend(ports.map(|ports| [ports].into_iter().chain(members.clone()).collect()));
        }
        all
    }

    /// Matches peers in blocks that have few ports, or every port, and the ports of all peers.
    fn match_networks(&mut self, allowed: &Allowed<'_>) -> Vec<Vec<Match>> {
        let family = self.family;
        let everything = blocks::everything(family);
        let mut by_range: BTreeMap<PortRange, BTreeSet<&Block>> = BTreeMap::new();
        for (range, blocks) in &allowed.ports {
            let blocks = blocks.iter().filter(|block| blocks::is_in_family(block, family));
            by_range.entry(*range).or_default().extend(blocks);
        }
        for range in Ports::from_ranges(allowed.anyone.iter().copied()).iter().flat_map(ranges) {
            by_range.entry(*range).or_default().insert(&everything);
        }
        let mut single = BTreeSet::new();
        let mut several = Vec::new();
        for (range, blocks) in by_range {
            if range.first == range.last {
                let at = |entry| blocks::at_port(entry, range.protocol, range.first);
                single.extend(blocks::entries(blocks).into_iter().map(at));
            } else if !blocks.is_empty() {
                several.push((range, blocks));
            }
        }
        let mut all = Vec::new();
        if !single.is_empty() {
            all.push(vec![self.match_fixed_set(IpSetKind::BlockPorts, single)]);
        }
        all.extend(self.match_blocks(allowed.any_port.blocks.iter().copied()));
        for (range, blocks) in several {
            all.extend(pairs(&match_ports(&[range]), &self.match_blocks(blocks)));
        }
        all
    }

    /// Matches peers with a long list of ports.
    fn match_list(&mut self, list: &PortList, peers: &PeerGroup<'_>) -> Vec<Vec<Match>> {
        let members = self.match_sets(&peers.sets).map(|members| vec![members]);
        let networks = self.match_blocks(peers.blocks.iter().copied());
        let peers: Vec<Vec<Match>> = members.into_iter().chain(networks).collect();
        if peers.is_empty() {
            return Vec::new();
        }
        pairs(&self.match_long_list(list), &peers)
    }

    /// Matches a long list of ports: by a few comparisons, or else by a set. The kernel searches sets
    /// by name in a list, so thousands of them are slow to add.
    fn match_long_list(&mut self, list: &PortList) -> Vec<Match> {
        let compared = match_ports(list);
        if compared.len() <= MAX_COMPARISONS {
            return compared;
        }
        let (single, several) = split(list);
        let everything = blocks::everything(self.family);
        let halves = blocks::entries([&everything]);
        let at = |(protocol, port): (Protocol, u16)| {
            halves.iter().map(move |half| blocks::at_port(half.clone(), protocol, port))
        };
        let single: BTreeSet<Entry> = single.into_iter().flat_map(at).collect();
        let mut ports = match_ports(&several);
        if !single.is_empty() {
            ports.push(self.match_fixed_set(IpSetKind::BlockPorts, single));
        }
        ports
    }

    /// Matches the members of sets. `None` if there are no sets.
    fn match_sets(&mut self, sets: &BTreeSet<&SetId>) -> Option<Match> {
        let of = own(sets);
        (!of.is_empty()).then(|| self.match_derived_set(IpSetKind::Addresses, of, None))
    }

    /// Matches the addresses of blocks, with a list of matches for each rule. Blocks that contain
    /// every address need no match.
    fn match_blocks<'b>(&mut self, blocks: impl IntoIterator<Item = &'b Block>) -> Vec<Vec<Match>> {
        let ours = blocks.into_iter().filter(|block| blocks::is_in_family(block, self.family));
        let ours: Vec<&Block> = ours.collect();
        let entries = blocks::entries(ours.iter().copied());
        if entries == blocks::entries([&blocks::everything(self.family)]) {
            return vec![Vec::new()];
        }
        let are_networks = ours.iter().all(|block| block.except.is_empty());
        if are_networks && ours.len() <= MAX_COMPARED_NETWORKS {
            let peer = SrcDst::there(self.direction);
            return ours.iter().map(|block| vec![Match::At(peer, block.net)]).collect();
        }
        match entries.is_empty() {
            true => Vec::new(),
            false => vec![vec![self.match_fixed_set(IpSetKind::Blocks, entries)]],
        }
    }
}

/// The matches of all pairs of ports and peers. Comparisons of addresses come first.
fn pairs(ports: &[Match], peers: &[Vec<Match>]) -> Vec<Vec<Match>> {
    let pair = |peers: &Vec<Match>, ports: &Match| {
        let (nets, sets): (Vec<&Match>, Vec<&Match>) =
            peers.iter().partition(|one| matches!(one, Match::At(..)));
        nets.into_iter().chain([ports]).chain(sets).cloned().collect()
    };
    peers.iter().flat_map(|peers| ports.iter().map(move |ports| pair(peers, ports))).collect()
}

/// Program sets whose members become entries unchanged.
fn own(sets: &BTreeSet<&SetId>) -> Vec<(SetId, EntryForm)> {
    sets.iter().map(|set| ((*set).clone(), EntryForm::Own)).collect()
}

fn ranges(ports: &Ports) -> impl Iterator<Item = &PortRange> {
    match ports {
        Ports::Any => [].iter(),
        Ports::Of(list) => list.iter(),
    }
}

/// Separates single ports, which can be in sets, from ranges.
fn split(list: &[PortRange]) -> (Vec<(Protocol, u16)>, Vec<PortRange>) {
    let (single, several): (Vec<PortRange>, _) =
        list.iter().partition(|range| range.first == range.last);
    (single.into_iter().map(|range| (range.protocol, range.first)).collect(), several)
}
