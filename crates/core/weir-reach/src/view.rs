//! The properties of addresses and pods that rules can see.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use weir_model::{
    Action, Block, Chain, Peers, PodId, Ports, Program, Protocol, Rule, RuleSet, Section, SetId,
    SetKey,
};

use crate::ReachState;

/// The properties of a pod that rules can see in one state: those of each of its addresses.
pub(crate) type PodView = Vec<AddressView>;

/// A set that contains an address, by number, with the port that the address has in it.
pub(crate) type Membership = (u32, Option<(Protocol, u16)>);

/// The properties of an address that rules can see.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AddressView {
    /// The rules of the pod that owns the address, by number; 0 if there are none or no pod owns
    /// it.
    rules: u32,
    /// The first address of the segment that no block divides.
    segment: IpAddr,
    /// The sets that contain the address.
    sets: Vec<Membership>,
}

/// Looks up the properties in several states. A number has the same meaning in all of them.
pub(crate) struct View<'a> {
    states: Vec<StateView<'a>>,
    set_numbers: BTreeMap<&'a SetId, u32>,
    /// The first address of each segment: where a block of any state starts or has just ended.
    pub(crate) boundaries: BTreeSet<IpAddr>,
}

struct StateView<'a> {
    state: &'a ReachState,
    sets: HashMap<IpAddr, Vec<Membership>>,
    rules: HashMap<*const RuleSet, u32>,
}

impl<'a> View<'a> {
    pub(crate) fn new(states: &[&'a ReachState]) -> Self {
        let mut boundaries =
            BTreeSet::from([Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]);
        let mut set_numbers: BTreeMap<&'a SetId, u32> = BTreeMap::new();
        let mut rule_numbers: HashMap<Decisions<'a>, u32> = HashMap::new();
        rule_numbers.insert(Decisions::default(), 0);
        let mut views = Vec::new();
        for state in states {
            let program = &state.program;
            let mut sets: HashMap<IpAddr, Vec<Membership>> = HashMap::new();
            for (id, members) in &program.sets {
                if matches!(**id, SetKey::Node(_)) {
                    continue;
                }
                let next = set_numbers.len() as u32;
                let number = *set_numbers.entry(id).or_insert(next);
                for member in members {
                    sets.entry(member.address).or_default().push((number, member.port));
                }
            }
            sets.values_mut().for_each(|list| list.sort_unstable());
            let mut rules = HashMap::new();
            for set in rule_sets(program) {
                let next = rule_numbers.len() as u32;
                let number = *rule_numbers.entry(Decisions::new(set)).or_insert(next);
                rules.insert(Arc::as_ptr(set), number);
                let all = set.ingress.rules().chain(set.egress.rules());
                all.for_each(|rule| add_boundaries(rule, &mut boundaries));
            }
            views.push(StateView { state, sets, rules });
        }
        View { states: views, set_numbers, boundaries }
    }

    /// The number of a set. All sets that have no members in any state share the largest number.
    pub(crate) fn set_number(&self, set: &SetId) -> u32 {
        self.set_numbers.get(set).copied().unwrap_or(u32::MAX)
    }

    /// The sets that contain an address.
    pub(crate) fn sets(&self, state: usize, address: IpAddr) -> &[Membership] {
        self.states[state].sets.get(&address).map(Vec::as_slice).unwrap_or_default()
    }

    /// The properties of a pod that the rules of a state can see.
    pub(crate) fn pod(&self, state: usize, id: &PodId) -> PodView {
        let pod = self.states[state].state.world.pods.get(id);
        let addresses = pod.map(|pod| pod.own_addresses()).unwrap_or_default();
        let mut views: PodView = addresses.iter().map(|a| self.address(state, *a)).collect();
        views.sort();
        views
    }

    /// The properties of an address that the rules of a state can see.
    pub(crate) fn address(&self, state: usize, address: IpAddr) -> AddressView {
        let view = &self.states[state];
        let owner = view.state.program.owner(address);
        let rules = owner.and_then(|(_, e)| view.rules.get(&Arc::as_ptr(&e.rules)));
        AddressView {
            rules: rules.copied().unwrap_or(0),
            segment: self.boundaries.range(..=address).next_back().copied().unwrap_or(address),
            sets: view.sets.get(&address).cloned().unwrap_or_default(),
        }
    }
}

/// The distinct rule sets of a program.
fn rule_sets(program: &Program) -> Vec<&Arc<RuleSet>> {
    let mut seen = BTreeSet::new();
    program
        .endpoints
        .values()
        .map(|endpoint| &endpoint.rules)
        .filter(|rules| seen.insert(Arc::as_ptr(rules)))
        .collect()
}

/// Adds the boundaries of a rule's block.
pub(crate) fn add_boundaries(rule: &Rule, boundaries: &mut BTreeSet<IpAddr>) {
    let Peers::Block(Block { net, except }) = &rule.peers else { return };
    for net in std::iter::once(net).chain(except) {
        boundaries.insert(net.network());
        boundaries.extend(after(net.broadcast()));
    }
}

/// The next address of the same family.
pub(crate) fn after(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().checked_add(1)?).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().checked_add(1)?).into(),
    })
}

/// The previous address of the same family.
pub(crate) fn before(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().checked_sub(1)?).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().checked_sub(1)?).into(),
    })
}

/// A rule set without its origins: equal values decide alike.
#[derive(Default, PartialEq, Eq, Hash)]
struct Decisions<'a>([ChainDecisions<'a>; 2]);

#[derive(Default, PartialEq, Eq, Hash)]
struct ChainDecisions<'a> {
    admin: Vec<(&'a Peers, &'a Ports, Action)>,
    isolation: Option<BTreeSet<(&'a Peers, &'a Ports)>>,
    baseline: Vec<(&'a Peers, &'a Ports, Action)>,
}

impl<'a> Decisions<'a> {
    fn new(rules: &'a RuleSet) -> Self {
        Decisions([ChainDecisions::new(&rules.ingress), ChainDecisions::new(&rules.egress)])
    }
}

impl<'a> ChainDecisions<'a> {
    fn new(chain: &'a Chain) -> Self {
        fn tier<'a>(
            sections: impl IntoIterator<Item = &'a Arc<Section>>,
        ) -> impl Iterator<Item = &'a Rule> {
            sections.into_iter().flat_map(|section| &section.rules)
        }
        let ordered = |sections: &'a [Arc<Section>]| {
            tier(sections).map(|rule| (&rule.peers, &rule.ports, rule.action)).collect()
        };
        ChainDecisions {
            admin: ordered(&chain.admin),
            isolation: chain
                .isolation
                .as_ref()
                .map(|sections| tier(sections).map(|rule| (&rule.peers, &rule.ports)).collect()),
            baseline: ordered(&chain.baseline),
        }
    }
}
