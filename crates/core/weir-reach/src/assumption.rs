//! Blocks that decide about synthetic addresses: in a real cluster the pods have other addresses,
//! and the verdict may be another one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use weir_model::{
    Block, Chain, Direction, Endpoint, Flow, IpFamily, Location, Origin, Peers, PodId, PolicyId,
    PortOwners, Rule, RuleSet, Section, SetKey, Verdict, address_number,
};

use crate::{
    ReachState,
    indexed_chain::IndexedChain,
    port,
    port_set::{PortSets, SliceSet},
    view::{Membership, View, add_boundaries},
};

/// The synthetic addresses, and the addresses that the pods may have in a real cluster.
pub struct PodAddresses<'a> {
    /// The synthetic addresses of pods.
    pub synthetic: &'a BTreeSet<IpAddr>,
    /// The networks of the pods.
    pub networks: &'a [IpNet],
}

/// A block that decides about a synthetic address, where another address of the pod networks would
/// change the verdict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assumption {
    /// The policy with the block.
    pub policy: PolicyId,
    /// The rule.
    pub origin: Origin,
    /// Where the manifest defines the policy.
    pub location: Option<Location>,
    /// The block.
    pub block: Block,
    /// One of the pods at the other end.
    pub peer: PodId,
    /// The synthetic address of that pod.
    pub address: IpAddr,
    /// One of the pods that the policy applies to.
    pub subject: PodId,
}

impl PodAddresses<'_> {
    /// All blocks of a state that decide about synthetic addresses, each once.
    pub fn assumptions(&self, state: &ReachState) -> Vec<Assumption> {
        let peers = self.peers(state);
        let mut subjects: BTreeMap<*const RuleSet, (&Endpoint, Vec<&PodId>)> = BTreeMap::new();
        for (id, endpoint) in &state.program.endpoints {
            let rules = Arc::as_ptr(&endpoint.rules);
            let (_, ids) = subjects.entry(rules).or_insert_with(|| (endpoint, Vec::new()));
            // Two pods suffice: no pod is its own peer.
            if ids.len() < 2 {
                ids.push(id);
            }
        }
        let mut search = None;
        let mut found: BTreeMap<(PolicyId, Origin), Assumption> = BTreeMap::new();
        for (endpoint, subjects) in subjects.into_values() {
            for direction in Direction::BOTH {
                let chain = endpoint.rules.chain(direction);
                let mut open = self.undetermined(chain);
                open.retain(|(section, rule, _)| {
                    !found.contains_key(&(section.policy.clone(), rule.origin.clone()))
                });
                if open.is_empty() {
                    continue;
                }
                let search = search.get_or_insert_with(|| Search::new(state));
                for assumption in search.assumptions(self, chain, open, &subjects, &peers) {
                    let key = (assumption.policy.clone(), assumption.origin.clone());
                    found.entry(key).or_insert(assumption);
                }
            }
        }
        found.into_values().collect()
    }

    /// The ends of a flow whose synthetic address decides its verdict.
    pub fn deciding(&self, state: &ReachState, flow: &Flow) -> Vec<IpAddr> {
        let mut sides = Vec::new();
        for direction in Direction::BOTH {
            let (_, there) = flow.ends(direction);
            let actual = state.program.side(flow, direction);
            let mut verdicts = BTreeSet::from([actual]);
            if let Some((_, endpoint)) = state.program.judged(flow, direction)
                && self.synthetic.contains(&there)
            {
                let chain = endpoint.rules.chain(direction);
                for address in self.candidates(chain, IpFamily::from(there)) {
                    let matches = |rule: &Rule| match block_of(&rule.peers) {
                        None => state.program.matches(rule, flow),
                        Some(block) => {
                            let is_port = match &rule.peers {
                                Peers::Block(_) => rule.ports.contains(flow.protocol, flow.port),
                                _ => declares(state, there, rule, flow),
                            };
                            is_port && block.contains(address)
                        }
                    };
                    verdicts.insert(state.program.side_by(flow, direction, &matches));
                }
            }
            sides.push((there, verdicts));
        }
        // A side that always denies decides alone.
        let denies = |verdicts: &BTreeSet<Verdict>| !verdicts.contains(&Verdict::Allow);
        if sides.iter().any(|(_, verdicts)| denies(verdicts)) {
            return Vec::new();
        }
        let deciding = sides.into_iter().filter(|(_, verdicts)| verdicts.len() > 1);
        deciding.map(|(there, _)| there).collect()
    }

    /// The pods with synthetic addresses.
    fn peers<'s>(&self, state: &'s ReachState) -> Vec<(&'s PodId, IpAddr)> {
        let pods = state.world.pods.values();
        let addresses = pods.flat_map(|pod| pod.own_addresses().iter().map(|a| (&pod.id, *a)));
        addresses.filter(|(_, address)| self.synthetic.contains(address)).collect()
    }

    /// One address of the pod networks for each segment that no block of a chain divides.
    fn candidates(&self, chain: &Chain, family: IpFamily) -> BTreeSet<IpAddr> {
        let mut boundaries = BTreeSet::new();
        for rule in chain.rules() {
            match &rule.peers {
                Peers::Block(_) => add_boundaries(rule, &mut boundaries),
                _ => boundaries.extend(block_of(&rule.peers).into_iter().flat_map(|block| {
                    let nets = std::iter::once(&block.net).chain(&block.except);
                    nets.flat_map(|net| [Some(net.network()), crate::view::after(net.broadcast())])
                        .flatten()
                })),
            }
        }
        let mut candidates = BTreeSet::new();
        for net in self.networks.iter().filter(|net| IpFamily::from(net.addr()) == family) {
            candidates.insert(net.network());
            candidates.extend(boundaries.range(net.network()..=net.broadcast()).copied());
        }
        candidates
    }

    /// The rules of a chain whose blocks contain some of the pod networks and not all.
    fn undetermined<'c>(&self, chain: &'c Chain) -> Vec<(&'c Section, &'c Rule, &'c Block)> {
        let sections = chain.admin.iter().chain(chain.isolation.iter().flatten());
        let rules = sections
            .chain(&chain.baseline)
            .flat_map(|section| section.rules.iter().map(move |rule| (&**section, rule)));
        let splits = |block: &Block| {
            let family = IpFamily::from(block.net.addr());
            let ends = block.intervals();
            let nets = self.networks.iter().filter(|net| IpFamily::from(net.addr()) == family);
            let inside: BTreeSet<Option<bool>> =
                nets.map(|net| contains_all_or_none(&ends, net)).collect();
            inside.len() > 1 || inside.contains(&None)
        };
        rules
            .filter_map(|(section, rule)| Some((section, rule, block_of(&rule.peers)?)))
            .filter(|(_, _, block)| splits(block))
            .collect()
    }
}

/// Whether intervals contain all addresses of a network or none; `None` if only some.
pub(crate) fn contains_all_or_none(intervals: &[(u128, u128)], net: &IpNet) -> Option<bool> {
    let (first, last) = (address_number(net.network()), address_number(net.broadcast()));
    let mut overlapping = intervals.iter().filter(|(start, end)| *start <= last && first <= *end);
    match overlapping.next() {
        None => Some(false),
        Some((start, end)) => (*start <= first && last <= *end).then_some(true),
    }
}

/// The block of a rule's peers, also of a rule with named ports.
fn block_of(peers: &Peers) -> Option<&Block> {
    fn of_set(key: &SetKey) -> Option<&Block> {
        match key {
            SetKey::Ports { owners: PortOwners::Block(block), .. } => Some(block),
            SetKey::HeldBy(_, key) => of_set(key),
            _ => None,
        }
    }
    match peers {
        Peers::Block(block) => Some(block),
        Peers::PortSet(set) => of_set(set),
        Peers::Any | Peers::Set(_) => None,
    }
}

/// Whether the pod with an address declares the port of a flow under a name of the rule.
fn declares(state: &ReachState, address: IpAddr, rule: &Rule, flow: &Flow) -> bool {
    let Peers::PortSet(set) = &rule.peers else { return false };
    let Some((id, _)) = state.program.owner(address) else { return false };
    let ports = state.world.pods.get(id).map(|pod| pod.ports.as_slice()).unwrap_or_default();
    ports
        .iter()
        .filter(|port| port.protocol == flow.protocol && port.port == flow.port)
        .any(|port| names_port(set, port))
}

fn names_port(key: &SetKey, port: &weir_model::NamedPort) -> bool {
    match key {
        SetKey::Ports { names, .. } => names.iter().any(|(name, protocol)| {
            *name == port.name && protocol.is_none_or(|protocol| protocol == port.protocol)
        }),
        SetKey::HeldBy(_, key) => names_port(key, port),
        _ => false,
    }
}

/// The search for assumptions in the chains of a state.
struct Search<'a> {
    state: &'a ReachState,
    view: View<'a>,
    port_sets: PortSets,
}

impl<'a> Search<'a> {
    fn new(state: &'a ReachState) -> Self {
        let slices = port::slices(&[&state.program]);
        Search { state, view: View::new(&[state]), port_sets: PortSets::new(&slices) }
    }

    /// The undetermined rules that decide about a peer of a chain.
    fn assumptions(
        &mut self,
        addresses: &PodAddresses<'_>,
        chain: &'a Chain,
        mut undetermined: Vec<(&'a Section, &'a Rule, &'a Block)>,
        subjects: &[&PodId],
        peers: &[(&PodId, IpAddr)],
    ) -> Vec<Assumption> {
        let mut found = Vec::new();
        let mut indexed = IndexedChain::new(chain, &self.view, &mut self.port_sets);
        let candidates = IpFamily::BOTH.map(|family| addresses.candidates(chain, family));
        let mut differing: HashMap<(bool, Vec<Membership>), SliceSet> = HashMap::new();
        for (peer, address) in peers {
            let Some(subject) = subjects.iter().find(|subject| *subject != peer) else { continue };
            if undetermined.is_empty() {
                break;
            }
            let sets = indexed.relevant(self.view.sets(0, *address));
            let candidates = &candidates[usize::from(address.is_ipv6())];
            let ports =
                differing.entry((address.is_ipv6(), sets)).or_insert_with_key(|(_, sets)| {
                    let open = candidates
                        .iter()
                        .map(|candidate| indexed.open(&mut self.port_sets, sets, *candidate))
                        .collect::<BTreeSet<_>>();
                    let (mut any, mut all) =
                        (SliceSet::new(self.port_sets.slices.len()), self.port_sets.all());
                    for set in open {
                        let set = &self.port_sets.sets[set as usize];
                        any.add(set);
                        all = all.and(set);
                    }
                    any.remove(&all);
                    any
                });
            undetermined.retain(|(section, rule, block)| {
                let is_family = block.net.addr().is_ipv4() == address.is_ipv4();
                let decides = match &rule.peers {
                    Peers::PortSet(set) => {
                        let pod = self.state.world.pods.get(*peer);
                        pod.is_some_and(|pod| pod.ports.iter().any(|port| names_port(set, port)))
                    }
                    _ => ports.and(&self.port_sets.slices_of(&rule.ports)).iter().next().is_some(),
                };
                if is_family && decides {
                    found.push(Assumption {
                        policy: section.policy.clone(),
                        origin: rule.origin.clone(),
                        location: section.location.clone(),
                        block: (*block).clone(),
                        peer: (*peer).clone(),
                        address: *address,
                        subject: (*subject).clone(),
                    });
                }
                !(is_family && decides)
            });
        }
        found
    }
}
