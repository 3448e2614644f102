//! The rules of a pod in one direction, indexed so that the ports that they open for a peer can be
//! found without a search through all rules.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
    rc::Rc,
    sync::Arc,
};

use weir_model::{
    Action, Block, Chain, IpFamily, Peers, PortRange, Ports, Rule, Section, SectionList,
    numbered_address,
};

use crate::{
    port_set::{PortSetId, PortSets, SliceSet},
    small_hash::IdMap,
    view::{Membership, View, add_boundaries, after},
};

/// A chain, with sets by number and ports by slice.
pub(crate) struct IndexedChain<'a> {
    admin: Vec<IndexedRule<'a>>,
    isolation: Option<IndexedIsolation>,
    baseline: Vec<IndexedRule<'a>>,
    /// The sets that the chain names, sorted.
    sets: Vec<u32>,
    /// The first address of each segment that no block of the chain divides, sorted.
    segments: Vec<IpAddr>,
    /// The open ports by segment, for peers in no set that the chain names.
    unselected: Vec<Option<PortSetId>>,
    /// The open ports by memberships and segment, for the others.
    selected: IdMap<Vec<Membership>, IdMap<usize, PortSetId>>,
}

struct IndexedRule<'a> {
    peers: IndexedPeers<'a>,
    ports: Rc<SliceSet>,
    action: Action,
}

enum IndexedPeers<'a> {
    Any,
    Set(u32),
    PortSet(u32),
    Block(&'a Block),
}

/// The rules of NetworkPolicies, which only allow, by distinct port list.
struct IndexedIsolation {
    /// The slices of each list.
    lists: Vec<Vec<Range<usize>>>,
    /// The lists that the members of a set can use.
    lists_of_set: HashMap<u32, Vec<usize>>,
    /// The sets of named ports.
    port_sets: BTreeSet<u32>,
    /// The ports that every address of a segment can use.
    by_segment: Vec<PortSetId>,
}

impl<'a> IndexedChain<'a> {
    pub(crate) fn new(chain: &'a Chain, view: &View<'a>, port_sets: &mut PortSets) -> Self {
        let mut index = |sections: &'a [Arc<Section>]| -> Vec<IndexedRule<'a>> {
            let rules = sections.iter().flat_map(|section| &section.rules);
            rules.map(|rule| IndexedRule::new(rule, view, port_sets)).collect()
        };
        let (admin, baseline) = (index(&chain.admin), index(&chain.baseline));
        let mut segments =
            BTreeSet::from([Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]);
        chain.rules().for_each(|rule| add_boundaries(rule, &mut segments));
        let segments: Vec<IpAddr> = segments.into_iter().collect();
        let isolation = chain.isolation.as_ref();
        let isolation =
            isolation.map(|sections| IndexedIsolation::new(sections, view, port_sets, &segments));
        let set = |rule: &Rule| match &rule.peers {
            Peers::Set(set) | Peers::PortSet(set) => Some(view.set_number(set)),
            Peers::Any | Peers::Block(_) => None,
        };
        let sets: BTreeSet<u32> = chain.rules().filter_map(set).collect();
        let sets = sets.into_iter().collect();
        let unselected = vec![None; segments.len()];
        let selected = IdMap::default();
        IndexedChain { admin, isolation, baseline, sets, segments, unselected, selected }
    }

    /// The start of the segment after the one with this address.
    pub(crate) fn next_segment(&self, address: IpAddr) -> Option<IpAddr> {
        self.segments.get(self.segments.partition_point(|start| *start <= address)).copied()
    }

    /// The memberships in sets that the chain names.
    pub(crate) fn relevant(&self, sets: &[Membership]) -> Vec<Membership> {
        let named = |set: &&Membership| self.sets.binary_search(&set.0).is_ok();
        match self.sets.is_empty() {
            true => Vec::new(),
            false => sets.iter().filter(named).copied().collect(),
        }
    }

    /// The ports that the chain opens for a peer with these memberships.
    pub(crate) fn open(
        &mut self,
        port_sets: &mut PortSets,
        sets: &[Membership],
        address: IpAddr,
    ) -> PortSetId {
        let sets = self.relevant(sets);
        let segment = self.segments.partition_point(|start| *start <= address).saturating_sub(1);
        let known = match sets.is_empty() {
            true => self.unselected[segment],
            false => self.selected.get(&sets).and_then(|known| known.get(&segment)).copied(),
        };
        if let Some(open) = known {
            return open;
        }
        let open = self.evaluate(port_sets, &sets, segment);
        let open = port_sets.intern(open);
        match sets.is_empty() {
            true => self.unselected[segment] = Some(open),
            false => _ = self.selected.entry(sets).or_default().insert(segment, open),
        }
        open
    }

    fn evaluate(&self, port_sets: &PortSets, sets: &[Membership], segment: usize) -> SliceSet {
        let address = self.segments[segment];
        let mut undecided = port_sets.all();
        let mut open = SliceSet::new(port_sets.slices.len());
        let mut passed = SliceSet::new(port_sets.slices.len());
        for (rule, ports) in matching(&self.admin, port_sets, sets, address) {
            let decided = undecided.and(&ports);
            undecided.remove(&decided);
            match rule.action {
                Action::Allow => open.add(&decided),
                Action::Deny => (),
                Action::Pass => passed.add(&decided),
            }
        }
        undecided.add(&passed);
        match &self.isolation {
            Some(isolation) => {
                let allowed = isolation.allowed(port_sets, sets, segment);
                open.add(&undecided.and(&allowed));
            }
            None => {
                for (rule, ports) in matching(&self.baseline, port_sets, sets, address) {
                    let decided = undecided.and(&ports);
                    undecided.remove(&decided);
                    if rule.action != Action::Deny {
                        open.add(&decided);
                    }
                }
                open.add(&undecided);
            }
        }
        open
    }
}

impl IndexedIsolation {
    fn new(
        sections: &SectionList,
        view: &View<'_>,
        port_sets: &mut PortSets,
        segments: &[IpAddr],
    ) -> Self {
        let mut numbers: HashMap<&Ports, usize> = HashMap::new();
        let (mut lists, mut anyone, mut blocks) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut lists_of_set: HashMap<u32, Vec<usize>> = HashMap::new();
        let mut named = BTreeSet::new();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            let mut list = || {
                *numbers.entry(&rule.ports).or_insert_with(|| {
                    lists.push(port_sets.ranges_of(&rule.ports));
                    lists.len() - 1
                })
            };
            match &rule.peers {
                Peers::Any => _ = anyone.insert(list()),
                Peers::Set(set) => {
                    lists_of_set.entry(view.set_number(set)).or_default().push(list());
                }
                Peers::PortSet(set) => _ = named.insert(view.set_number(set)),
                Peers::Block(block) => blocks.push((block, list())),
            }
        }
        let by_segment = sweep(port_sets, &lists, anyone, &blocks, segments);
        IndexedIsolation { lists, lists_of_set, port_sets: named, by_segment }
    }

    /// The ports that a peer with these memberships can use.
    fn allowed(&self, port_sets: &PortSets, sets: &[Membership], segment: usize) -> SliceSet {
        let mut allowed = SliceSet::clone(&port_sets.sets[self.by_segment[segment] as usize]);
        let mut lists: BTreeSet<usize> = BTreeSet::new();
        for (set, port) in sets {
            lists.extend(self.lists_of_set.get(set).into_iter().flatten());
            if let Some((protocol, port)) = port.filter(|_| self.port_sets.contains(set)) {
                allowed.add(&port_sets.slices_of(&PortRange::one(protocol, port).into()));
            }
        }
        for list in lists {
            self.lists[list].iter().cloned().flatten().for_each(|at| allowed.insert(at));
        }
        allowed
    }
}

/// The ports that the blocks of lists, and the lists for any peer, open in each segment.
///
/// It visits the segments in order and counts the open lists of each slice. A list changes the
/// counts only where one of its blocks starts or ends.
fn sweep(
    port_sets: &mut PortSets,
    lists: &[Vec<Range<usize>>],
    anyone: BTreeSet<usize>,
    blocks: &[(&Block, usize)],
    segments: &[IpAddr],
) -> Vec<PortSetId> {
    let mut starts: BTreeMap<IpAddr, Vec<usize>> = BTreeMap::new();
    let mut ends: BTreeMap<IpAddr, Vec<usize>> = BTreeMap::new();
    for (block, list) in blocks {
        let family = IpFamily::from(block.net.addr());
        for (first, last) in block.intervals() {
            starts.entry(numbered_address(first, family)).or_default().push(*list);
            // The addresses of IPv6 follow those of IPv4.
            let end = after(numbered_address(last, family));
            let end = end.or((family == IpFamily::V4).then_some(Ipv6Addr::UNSPECIFIED.into()));
            if let Some(end) = end {
                ends.entry(end).or_default().push(*list);
            }
        }
    }
    let mut blocks_in = vec![0_u32; lists.len()];
    let mut lists_in = vec![0_u32; port_sets.slices.len()];
    for range in anyone.into_iter().flat_map(|list| lists[list].iter()) {
        lists_in[range.clone()].iter_mut().for_each(|count| *count += 1);
    }
    let mut open = port_sets.intern(SliceSet::from_counts(&lists_in));
    let mut by_segment = Vec::with_capacity(segments.len());
    for start in segments {
        let (starting, ending) = (starts.get(start), ends.get(start));
        for list in starting.into_iter().flatten() {
            blocks_in[*list] += 1;
            if blocks_in[*list] == 1 {
                for range in &lists[*list] {
                    lists_in[range.clone()].iter_mut().for_each(|count| *count += 1);
                }
            }
        }
        for list in ending.into_iter().flatten() {
            blocks_in[*list] -= 1;
            if blocks_in[*list] == 0 {
                for range in &lists[*list] {
                    lists_in[range.clone()].iter_mut().for_each(|count| *count -= 1);
                }
            }
        }
        if starting.is_some() || ending.is_some() {
            open = port_sets.intern(SliceSet::from_counts(&lists_in));
        }
        by_segment.push(open);
    }
    by_segment
}

impl<'a> IndexedRule<'a> {
    fn new(rule: &'a Rule, view: &View<'a>, port_sets: &mut PortSets) -> Self {
        let peers = match &rule.peers {
            Peers::Any => IndexedPeers::Any,
            Peers::Set(set) => IndexedPeers::Set(view.set_number(set)),
            Peers::PortSet(set) => IndexedPeers::PortSet(view.set_number(set)),
            Peers::Block(block) => IndexedPeers::Block(block),
        };
        IndexedRule { peers, ports: port_sets.cached_slices_of(&rule.ports), action: rule.action }
    }
}

/// The rules that match a peer, with the ports that they match for it.
fn matching<'c, 'a>(
    rules: &'c [IndexedRule<'a>],
    port_sets: &'c PortSets,
    sets: &'c [Membership],
    address: IpAddr,
) -> impl Iterator<Item = (&'c IndexedRule<'a>, Rc<SliceSet>)> {
    rules.iter().filter_map(move |rule| {
        let matches = match rule.peers {
            IndexedPeers::Any => true,
            IndexedPeers::Block(block) => block.contains(address),
            IndexedPeers::Set(set) => sets.iter().any(|(number, _)| *number == set),
            IndexedPeers::PortSet(set) => {
                let entries = sets.iter().filter(|(number, _)| *number == set);
                let ports = entries.filter_map(|(_, port)| *port);
                let ports = Ports::from_ranges(
                    ports.map(|(protocol, port)| PortRange::one(protocol, port)),
                )?;
                return Some((rule, Rc::new(port_sets.slices_of(&ports))));
            }
        };
        matches.then(|| (rule, rule.ports.clone()))
    })
}
