//! Merges the policies that isolate a pod, so that the cost does not depend on their number.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;
use weir_model::{
    Block, Direction, IpFamily, Peers, PortRange, Ports, Program, Protocol, Section, SetId,
};

use crate::{
    Entry, Kind, Match, Planner, Rule, Side, blocks, chain, feed::Share, name::comment,
    skeleton::allowed,
};

/// The traffic that policies allow, by the form of the peers.
#[derive(Debug, Default)]
pub(crate) struct Allowed {
    /// The ports that every peer can use, or `None`.
    anyone: Option<Ports>,
    sets: BTreeMap<SetId, Ports>,
    blocks: BTreeMap<Block, Ports>,
    port_sets: BTreeSet<SetId>,
}

/// Peers by their ports. Single ports go into sets together with the peers; ranges cannot.
#[derive(Debug)]
struct PeersByPorts<T> {
    anywhere: Vec<T>,
    at: Vec<(T, Vec<(Protocol, u16)>)>,
    within: BTreeMap<PortRange, Vec<T>>,
}

impl Allowed {
    pub(crate) fn from_sections(sections: &[Arc<Section>]) -> Self {
        let mut allowed = Allowed::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            match &rule.peers {
                Peers::Any => allowed.anyone = Some(and(allowed.anyone.as_ref(), &rule.ports)),
                Peers::Set(set) => extend(&mut allowed.sets, set, &rule.ports),
                Peers::Block(block) => extend(&mut allowed.blocks, block, &rule.ports),
                Peers::PortSet(set) => {
                    allowed.port_sets.insert(set.clone());
                }
            }
        }
        allowed
    }

    /// The rules that allow this traffic. Their number does not depend on the number of policies;
    /// each port range adds one.
    pub(crate) fn rules(
        &self,
        planner: &mut Planner,
        program: &Program,
        direction: Direction,
        family: IpFamily,
        policies: &str,
    ) -> Vec<Rule> {
        let word = comment(policies);
        let pass = |matches| Rule { matches, act: allowed(direction), comment: word.clone() };
        if self.anyone == Some(Ports::Any) {
            return vec![pass(Vec::new())];
        }
        let mut rules = Vec::new();
        rules.extend(self.members(planner, program, direction, family).into_iter().map(pass));
        rules.extend(self.networks(planner, direction, family).into_iter().map(pass));
        rules
    }

    /// Matches peers that are members of sets.
    fn members(
        &self,
        planner: &mut Planner,
        program: &Program,
        direction: Direction,
        family: IpFamily,
    ) -> Vec<Vec<Match>> {
        let there = Side::there(direction);
        let sorted = PeersByPorts::new(self.sets.iter().map(|(set, to)| (set.clone(), to)));
        let own = |sets: Vec<SetId>| sets.into_iter().map(|set| (set, Share::Own)).collect();
        let mut all = Vec::new();
        let mut at: Vec<(SetId, Share)> = own(self.port_sets.iter().cloned().collect());
        at.extend(sorted.at.into_iter().map(|(set, ports)| (set, Share::At(ports))));
        if !at.is_empty() {
            let name = planner.feed(program, (direction, family), Kind::Ports, at, None);
            all.push(vec![Match::In(name, vec![there, Side::Destination])]);
        }
        if !sorted.anywhere.is_empty() {
            let of = own(sorted.anywhere);
            let name = planner.feed(program, (direction, family), Kind::Addresses, of, None);
            all.push(vec![Match::In(name, vec![there])]);
        }
        for (range, sets) in sorted.within {
            let name = planner.feed(program, (direction, family), Kind::Addresses, own(sets), None);
            let to = chain::ports(&Ports::Of(vec![range]));
            all.extend(to.into_iter().map(|to| vec![to, Match::In(name.clone(), vec![there])]));
        }
        all
    }

    /// Matches peers in blocks, and all peers.
    fn networks(
        &self,
        planner: &mut Planner,
        direction: Direction,
        family: IpFamily,
    ) -> Vec<Vec<Match>> {
        let there = Side::there(direction);
        let everyone = vec![blocks::everything(family)];
        let each = self.blocks.iter().map(|(block, to)| (blocks::nets(block, family), to));
        let each = each.chain(self.anyone.iter().map(|to| (everyone.clone(), to)));
        let sorted = PeersByPorts::new(each.filter(|(nets, _)| !nets.is_empty()));
        let mut all = Vec::new();
        let mut by_port: BTreeMap<(Protocol, u16), Vec<Vec<IpNet>>> = BTreeMap::new();
        for (nets, ports) in sorted.at {
            ports.into_iter().for_each(|port| by_port.entry(port).or_default().push(nets.clone()));
        }
        let at = |((protocol, port), groups)| {
            union(groups).into_iter().map(move |net| Entry::BlockPort(net, protocol, port))
        };
        let at: BTreeSet<Entry> = by_port.into_iter().flat_map(at).collect();
        if !at.is_empty() {
            let name = planner.fixed(direction, family, Kind::BlockPorts, at);
            all.push(vec![Match::In(name, vec![there, Side::Destination])]);
        }
        let entries = |groups| union(groups).into_iter().map(Entry::Block).collect();
        if !sorted.anywhere.is_empty() {
            let name = planner.fixed(direction, family, Kind::Blocks, entries(sorted.anywhere));
            all.push(vec![Match::In(name, vec![there])]);
        }
        for (range, groups) in sorted.within {
            let to = chain::ports(&Ports::Of(vec![range])).into_iter();
            if groups.contains(&everyone) {
                all.extend(to.map(|to| vec![to]));
                continue;
            }
            let name = planner.fixed(direction, family, Kind::Blocks, entries(groups));
            all.extend(to.map(|to| vec![to, Match::In(name.clone(), vec![there])]));
        }
        all
    }
}

/// The union of networks, as the fewest networks that a set can hold.
fn union(groups: Vec<Vec<IpNet>>) -> Vec<IpNet> {
    IpNet::aggregate(&groups.concat()).into_iter().flat_map(blocks::halves).collect()
}

impl<T: Clone> PeersByPorts<T> {
    fn new<'a>(peers: impl Iterator<Item = (T, &'a Ports)>) -> Self {
        let mut sorted =
            PeersByPorts { anywhere: Vec::new(), at: Vec::new(), within: BTreeMap::new() };
        for (peer, ports) in peers {
            let Ports::Of(ranges) = ports else {
                sorted.anywhere.push(peer);
                continue;
            };
            let single = |range: &&PortRange| range.first == range.last;
            let at: Vec<_> =
                ranges.iter().filter(single).map(|range| (range.protocol, range.first)).collect();
            for range in ranges.iter().filter(|range| !single(range)) {
                sorted.within.entry(*range).or_default().push(peer.clone());
            }
            if !at.is_empty() {
                sorted.at.push((peer, at));
            }
        }
        sorted
    }
}

fn extend<K: Ord + Clone>(map: &mut BTreeMap<K, Ports>, key: &K, more: &Ports) {
    let all = and(map.get(key), more);
    map.insert(key.clone(), all);
}

/// The union of ports.
fn and(some: Option<&Ports>, more: &Ports) -> Ports {
    match (some, more) {
        (Some(Ports::Of(some)), Ports::Of(more)) => {
            Ports::from_ranges(some.iter().chain(more).copied()).unwrap_or(Ports::Any)
        }
        (Some(Ports::Any), _) | (_, Ports::Any) => Ports::Any,
        (None, more) => more.clone(),
    }
}
