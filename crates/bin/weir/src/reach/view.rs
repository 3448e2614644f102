//! What rules can see of an address or a pod.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use weir_model::{
    Action, Block, Chain, Peers, PodId, Ports, Program, Protocol, Rule, RuleSet, Section, SetId,
    SetKey,
};

use super::State;

/// What rules can see of a pod in one state: what they see of each of its addresses.
pub(crate) type Sight = Vec<Spot>;

/// A set that an address is in, by number, with the port it has there.
pub(crate) type Membership = (u32, Option<(Protocol, u16)>);

type Memberships = Vec<Membership>;

/// What rules can see of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    /// The rules of the pod that owns it, by number; 0 if they are open or no pod does.
    rules: u32,
    /// The first address of the stretch that no block tells apart.
    stretch: IpAddr,
    /// The sets it is in.
    sets: Memberships,
}

/// Answers for some states, in numbers that mean the same in all of them.
pub(crate) struct View<'a> {
    states: Vec<Seen<'a>>,
    numbers: BTreeMap<&'a SetId, u32>,
    /// Where blocks begin and end, over all states.
    pub(crate) cuts: BTreeSet<IpAddr>,
    /// The same as a list, by number.
    starts: Vec<IpAddr>,
}

struct Seen<'a> {
    state: &'a State,
    sets: HashMap<IpAddr, Memberships>,
    rules: HashMap<*const RuleSet, u32>,
}

impl<'a> View<'a> {
    pub(crate) fn new(states: &[&'a State]) -> Self {
        let mut cuts = BTreeSet::from([Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]);
        let mut set_numbers: BTreeMap<&'a SetId, u32> = BTreeMap::new();
        let mut rule_numbers: HashMap<Bare<'a>, u32> = HashMap::new();
        rule_numbers.insert(Bare::default(), 0);
        let mut seen = Vec::new();
        for state in states {
            let program = &state.program;
            let mut sets: HashMap<IpAddr, Memberships> = HashMap::new();
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
                let number = *rule_numbers.entry(Bare::new(set)).or_insert(next);
                rules.insert(Arc::as_ptr(set), number);
                let all = set.ingress.rules().chain(set.egress.rules());
                all.for_each(|rule| cut(rule, &mut cuts));
            }
            seen.push(Seen { state, sets, rules });
        }
        let starts = cuts.iter().copied().collect();
        View { states: seen, numbers: set_numbers, cuts, starts }
    }

    /// The number of a set; one that has no members in any state is the last.
    pub(crate) fn number(&self, set: &SetId) -> u32 {
        self.numbers.get(set).copied().unwrap_or(u32::MAX)
    }

    /// The sets that an address is in.
    pub(crate) fn sets(&self, state: usize, address: IpAddr) -> &[Membership] {
        self.states[state].sets.get(&address).map(Vec::as_slice).unwrap_or_default()
    }

    /// The stretch that an address is in, by number.
    pub(crate) fn stretch(&self, address: IpAddr) -> u32 {
        self.starts.partition_point(|start| *start <= address).saturating_sub(1) as u32
    }

    /// The first address of a stretch.
    pub(crate) fn start(&self, stretch: u32) -> IpAddr {
        self.starts[stretch as usize]
    }

    /// What the rules of a state see of a pod.
    pub(crate) fn pod(&self, state: usize, id: &PodId) -> Sight {
        let pod = self.states[state].state.world.pods.get(id);
        let addresses = pod.map(|pod| pod.own_addresses()).unwrap_or_default();
        let mut spots: Vec<Spot> = addresses.iter().map(|a| self.spot(state, *a)).collect();
        spots.sort();
        spots
    }

    /// What the rules of a state see of an address.
    pub(crate) fn spot(&self, state: usize, address: IpAddr) -> Spot {
        let seen = &self.states[state];
        let owner = seen.state.program.owner(address);
        let rules = owner.and_then(|(_, e)| seen.rules.get(&Arc::as_ptr(&e.rules)));
        Spot {
            rules: rules.copied().unwrap_or(0),
            stretch: self.cuts.range(..=address).next_back().copied().unwrap_or(address),
            sets: seen.sets.get(&address).cloned().unwrap_or_default(),
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

/// Marks where the block of a rule begins and ends.
fn cut(rule: &Rule, cuts: &mut BTreeSet<IpAddr>) {
    let Peers::Block(Block { net, except }) = &rule.peers else { return };
    for net in std::iter::once(net).chain(except) {
        cuts.insert(net.network());
        cuts.extend(after(net.broadcast()));
    }
}

/// The next address of the same family.
pub(crate) fn after(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().checked_add(1)?).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().checked_add(1)?).into(),
    })
}

/// The address before, of the same family.
pub(crate) fn before(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().checked_sub(1)?).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().checked_sub(1)?).into(),
    })
}

/// A rule set without the names and lines it comes from: two that are equal decide alike.
#[derive(Default, PartialEq, Eq, Hash)]
struct Bare<'a>([BareChain<'a>; 2]);

#[derive(Default, PartialEq, Eq, Hash)]
struct BareChain<'a> {
    admin: Vec<(&'a Peers, &'a Ports, Action)>,
    isolation: Option<BTreeSet<(&'a Peers, &'a Ports)>>,
    baseline: Vec<(&'a Peers, &'a Ports, Action)>,
}

impl<'a> Bare<'a> {
    fn new(rules: &'a RuleSet) -> Self {
        Bare([BareChain::new(&rules.ingress), BareChain::new(&rules.egress)])
    }
}

impl<'a> BareChain<'a> {
    fn new(chain: &'a Chain) -> Self {
        fn tier(sections: &[Arc<Section>]) -> impl Iterator<Item = &Rule> {
            sections.iter().flat_map(|section| &section.rules)
        }
        let ordered = |sections: &'a [Arc<Section>]| {
            tier(sections).map(|rule| (&rule.peers, &rule.ports, rule.action)).collect()
        };
        BareChain {
            admin: ordered(&chain.admin),
            isolation: chain
                .isolation
                .as_ref()
                .map(|sections| tier(sections).map(|rule| (&rule.peers, &rule.ports)).collect()),
            baseline: ordered(&chain.baseline),
        }
    }
}
