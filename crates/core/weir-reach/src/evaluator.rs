//! Evaluates rules for all ports together, once for everything that they cannot distinguish.
//!
//! ```text
//!  address ─► AddressFacts    the properties that rules can see, computed once
//!  AddressFacts × chain ─► only the sets and blocks that the chain names count ─► PortSetId, cached
//!  PortSetId × PortSetId  ─► the ports that both directions allow, cached
//! ```

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use weir_model::{Direction, IpFamily, Name, PodId, PortRange, RuleSet, SetKey};

use crate::{
    ReachState,
    indexed_chain::IndexedChain,
    partition::ReachEnd,
    port_set::{ALL_PORTS, NO_PORTS, PortSetId, PortSets, SliceSet},
    view::{Membership, View},
};

/// The index of an address in one state.
type AddressId = u32;

/// The open ports of a connection: per family that both ends have in all states, in the first state
/// and in the second. With one state, the second has no ports.
pub(crate) type OpenPorts = [Option<[PortSetId; 2]>; 2];

/// Evaluates connections in one or two states. A port set id has the same meaning in all of them.
pub(crate) struct Evaluator<'a> {
    states: Vec<StateRules<'a>>,
    view: View<'a>,
    port_sets: PortSets,
}

/// Ends that rules do not distinguish.
pub(crate) struct EndClass<'a> {
    members: Vec<EndMember<'a>>,
}

struct EndMember<'a> {
    end: ReachEnd<'a>,
    node: Option<&'a Name>,
    /// For each state, the address of each family.
    addresses: Vec<[Option<AddressId>; 2]>,
}

/// The rules of one state, indexed.
struct StateRules<'a> {
    state: &'a ReachState,
    addresses: Vec<AddressFacts<'a>>,
    address_ids: HashMap<IpAddr, AddressId>,
    chains: Vec<IndexedChain<'a>>,
    chain_ids: HashMap<(*const RuleSet, Direction), usize>,
    nodes: HashMap<IpAddr, Vec<&'a Name>>,
}

struct AddressFacts<'a> {
    address: IpAddr,
    sets: Vec<Membership>,
    owner: Option<AddressOwner<'a>>,
    /// The nodes that have the address.
    nodes: Vec<&'a Name>,
}

#[derive(Clone, Copy)]
struct AddressOwner<'a> {
    pod: &'a PodId,
    ingress: usize,
    egress: usize,
    node: Option<&'a Name>,
}

impl<'a> Evaluator<'a> {
    /// An evaluator that distinguishes the given slices and no other ports.
    pub(crate) fn new(states: &[&'a ReachState], slices: &[PortRange]) -> Self {
        let view = View::new(states);
        let mut port_sets = PortSets::new(slices);
        let states =
            states.iter().map(|state| StateRules::new(state, &view, &mut port_sets)).collect();
        Evaluator { states, view, port_sets }
    }

    /// Registers ends that rules do not distinguish.
    pub(crate) fn class(&mut self, ends: impl IntoIterator<Item = ReachEnd<'a>>) -> EndClass<'a> {
        /// The members differ only in their identity and their node, so a few of them suffice to
        /// find a pair that is neither one pod nor a pod and its node.
        const MAX_MEMBERS: usize = 50;
        let members = ends.into_iter().take(MAX_MEMBERS).map(|end| self.member(end)).collect();
        EndClass { members }
    }

    fn member(&mut self, end: ReachEnd<'a>) -> EndMember<'a> {
        let mut addresses = Vec::with_capacity(self.states.len());
        let mut node = None;
        for (at, rules) in self.states.iter_mut().enumerate() {
            let state = rules.state;
            addresses.push(
                IpFamily::BOTH.map(|family| {
                    Some(rules.address_id(&self.view, at, end.address(state, family)?))
                }),
            );
            node = end.node(state);
        }
        EndMember { end, node, addresses }
    }

    /// The open ports from one class to another. `None` if the classes contain no two different
    /// ends.
    pub(crate) fn open(&mut self, from: &EndClass<'a>, to: &EndClass<'a>) -> Option<OpenPorts> {
        let (from, to) = representatives(from, to)?;
        Some([0, 1].map(|family| {
            let mut open = [NO_PORTS; 2];
            for (at, rules) in self.states.iter_mut().enumerate() {
                let (from, to) = (from.addresses[at][family]?, to.addresses[at][family]?);
                open[at] = rules.open(&mut self.port_sets, from, to);
            }
            Some(open)
        }))
    }

    /// The first address after this one where the rules of a pod class may treat addresses without
    /// a set and without a node differently, in any state.
    pub(crate) fn next_boundary(
        &self,
        pods: &EndClass<'a>,
        direction: Direction,
        address: IpAddr,
    ) -> Option<IpAddr> {
        let first = pods.members.first()?;
        let family = usize::from(address.is_ipv6());
        let chains = self.states.iter().zip(&first.addresses).filter_map(|(rules, own)| {
            let owner = rules.addresses[own[family]? as usize].owner?;
            Some(
                &rules.chains[match direction {
                    Direction::Ingress => owner.ingress,
                    Direction::Egress => owner.egress,
                }],
            )
        });
        // The addresses of IPv6 follow those of IPv4.
        let other_family = address.is_ipv4().then_some(Ipv6Addr::UNSPECIFIED.into());
        chains.filter_map(|chain| chain.next_segment(address)).chain(other_family).min()
    }

    /// Whether a port set contains a slice.
    #[cfg(test)]
    pub(crate) fn contains(&self, ports: PortSetId, slice: usize) -> bool {
        self.port_sets.sets[ports as usize].contains(slice)
    }

    /// The slices that are in all of some port sets, and those that are in any of them.
    pub(crate) fn in_all_and_any(&self, ports: &[PortSetId]) -> [SliceSet; 2] {
        let (mut all, mut any) = (self.port_sets.all(), SliceSet::new(self.port_sets.slices.len()));
        for set in ports.iter().map(|id| &self.port_sets.sets[*id as usize]) {
            all = all.and(set);
            any.add(set);
        }
        [all, any]
    }

    /// The slices in a port set.
    pub(crate) fn slices_in(&self, ports: PortSetId) -> Vec<PortRange> {
        let PortSets { slices, sets, .. } = &self.port_sets;
        sets[ports as usize].iter().map(|at| slices[at]).collect()
    }

    /// The slices that are in one port set and not in the other.
    pub(crate) fn difference(&self, one: PortSetId, other: PortSetId) -> Vec<PortRange> {
        let PortSets { slices, sets, .. } = &self.port_sets;
        let mut difference = SliceSet::clone(&sets[one as usize]);
        difference.remove(&sets[other as usize]);
        difference.iter().map(|at| slices[at]).collect()
    }

    /// All slices.
    pub(crate) fn slices(&self) -> &[PortRange] {
        &self.port_sets.slices
    }

    /// The index of the slice that contains a port.
    pub(crate) fn slice(&self, port: PortRange) -> usize {
        self.port_sets
            .slices
            .partition_point(|s| (s.protocol, s.last) < (port.protocol, port.first.max(1)))
    }
}

/// The two ends that stand for their classes: two different pods, a pod and an address outside, or
/// an address outside and a pod of another node. `None` if there is no such pair.
fn representatives<'p, 'a>(
    from: &'p EndClass<'a>,
    to: &'p EndClass<'a>,
) -> Option<(&'p EndMember<'a>, &'p EndMember<'a>)> {
    let pairs = from.members.iter().flat_map(|f| to.members.iter().map(move |t| (f, t)));
    let mut connections = pairs.filter(|(from, to)| match (from.end, to.end) {
        (ReachEnd::Pod(from), ReachEnd::Pod(to)) => !is_one_pod(from, to),
        (ReachEnd::Pod(_), ReachEnd::Outside(_)) => true,
        (ReachEnd::Outside(_), ReachEnd::Pod(_)) => from.node.is_none() || from.node != to.node,
        (ReachEnd::Outside(_), ReachEnd::Outside(_)) => false,
    });
    // Rules exempt an address and itself, so two pods that claim one address do not stand for others.
    let first = connections.next()?;
    if !share_an_address(first.0, first.1) {
        return Some(first);
    }
    Some(connections.find(|(from, to)| !share_an_address(from, to)).unwrap_or(first))
}

fn share_an_address(one: &EndMember<'_>, other: &EndMember<'_>) -> bool {
    let pairs = one.addresses.iter().flatten().zip(other.addresses.iter().flatten());
    pairs.into_iter().any(|(one, other)| one.is_some() && one == other)
}

/// Equality that compares the names first: most pairs of pods share a namespace.
fn is_one_pod(one: &PodId, two: &PodId) -> bool {
    one.name == two.name && one.namespace == two.namespace
}

impl<'a> StateRules<'a> {
    fn new(state: &'a ReachState, view: &View<'a>, port_sets: &mut PortSets) -> Self {
        let mut rules = StateRules {
            state,
            addresses: Vec::new(),
            address_ids: HashMap::new(),
            chains: Vec::new(),
            chain_ids: HashMap::new(),
            nodes: HashMap::new(),
        };
        for (id, members) in &state.program.sets {
            let SetKey::Node(node) = &**id else { continue };
            for member in members {
                rules.nodes.entry(member.address).or_default().push(node);
            }
        }
        for endpoint in state.program.endpoints.values() {
            for direction in Direction::BOTH {
                let chains = &mut rules.chains;
                let key = (Arc::as_ptr(&endpoint.rules), direction);
                rules.chain_ids.entry(key).or_insert_with(|| {
                    let chain = endpoint.rules.chain(direction);
                    chains.push(IndexedChain::new(chain, view, port_sets));
                    chains.len() - 1
                });
            }
        }
        rules
    }

    fn address_id(&mut self, view: &View<'a>, at: usize, address: IpAddr) -> AddressId {
        if let Some(id) = self.address_ids.get(&address) {
            return *id;
        }
        let owner = self.state.program.owner(address).and_then(|(pod, endpoint)| {
            let rules = Arc::as_ptr(&endpoint.rules);
            let chain = |direction| self.chain_ids.get(&(rules, direction)).copied();
            Some(AddressOwner {
                pod,
                ingress: chain(Direction::Ingress)?,
                egress: chain(Direction::Egress)?,
                node: endpoint.node.as_ref(),
            })
        });
        let id = self.addresses.len() as AddressId;
        self.addresses.push(AddressFacts {
            address,
            sets: view.sets(at, address).to_vec(),
            owner,
            nodes: self.nodes.get(&address).cloned().unwrap_or_default(),
        });
        self.address_ids.insert(address, id);
        id
    }

    fn open(&mut self, port_sets: &mut PortSets, from: AddressId, to: AddressId) -> PortSetId {
        let (from, to) = (&self.addresses[from as usize], &self.addresses[to as usize]);
        // A pod always reaches itself, at any of its addresses.
        let is_self = from.owner.zip(to.owner).is_some_and(|(a, b)| is_one_pod(a.pod, b.pod));
        if is_self || from.address == to.address {
            return ALL_PORTS;
        }
        let egress = match from.owner {
            None => ALL_PORTS,
            Some(owner) => self.chains[owner.egress].open(port_sets, &to.sets, to.address),
        };
        // Ingress rules exempt traffic from a node to its pods.
        let applies =
            |owner: &AddressOwner<'_>| owner.node.is_none_or(|node| !from.nodes.contains(&node));
        let ingress = match to.owner.filter(applies) {
            None => ALL_PORTS,
            Some(owner) => self.chains[owner.ingress].open(port_sets, &from.sets, from.address),
        };
        port_sets.intersect(egress, ingress)
    }
}
