//! Merges the policies that isolate a pod, so that the cost does not depend on their number.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weir_datapath::Allowed;
use weir_model::{PortRange, Ports, Protocol, SetId};

use crate::{
    Entry, IpSetKind, IptablesRule, Match, blocks,
    chain::{ChainCompiler, match_ports},
    derived_set::EntryForm,
    name::comment,
    skeleton,
};

/// Peers by their ports. Single ports go into sets together with the peers; ranges cannot.
#[derive(Debug)]
struct PeersByPorts<T> {
    any: Vec<T>,
    single: Vec<(T, Vec<(Protocol, u16)>)>,
    ranges: BTreeMap<PortRange, Vec<T>>,
}

impl ChainCompiler<'_> {
    /// The rules that allow this traffic. Their number does not depend on the number of policies;
    /// each port range adds one.
    pub(crate) fn isolation_rules(
        &mut self,
        allowed: &Allowed,
        policies: &str,
    ) -> Vec<IptablesRule> {
        let (target, comment) = (skeleton::allowed(self.direction), comment(policies));
        let matches = if allowed.anyone == Some(Ports::Any) {
            vec![Vec::new()]
        } else {
            let mut all = self.match_members(allowed);
            all.extend(self.match_networks(allowed));
            all
        };
        let allow =
            |matches| IptablesRule { matches, target: target.clone(), comment: comment.clone() };
        matches.into_iter().map(allow).collect()
    }

    /// Matches peers that are members of sets.
    fn match_members(&mut self, allowed: &Allowed) -> Vec<Vec<Match>> {
        let sorted = PeersByPorts::new(allowed.sets.iter().map(|(set, to)| (set.clone(), to)));
        let own = |sets: Vec<SetId>| sets.into_iter().map(|set| (set, EntryForm::Own)).collect();
        let mut all = Vec::new();
        let mut at: Vec<(SetId, EntryForm)> = own(allowed.port_sets.iter().cloned().collect());
        at.extend(sorted.single.into_iter().map(|(set, ports)| (set, EntryForm::At(ports))));
        if !at.is_empty() {
            all.push(vec![self.match_derived_set(IpSetKind::Ports, at, None)]);
        }
        if !sorted.any.is_empty() {
            all.push(vec![self.match_derived_set(IpSetKind::Addresses, own(sorted.any), None)]);
        }
        for (range, sets) in sorted.ranges {
            let members = self.match_derived_set(IpSetKind::Addresses, own(sets), None);
            let ports = match_ports(&Ports::from(range)).into_iter();
            all.extend(ports.map(|ports| vec![ports, members.clone()]));
        }
        all
    }

    /// Matches peers in blocks, and all peers.
    fn match_networks(&mut self, allowed: &Allowed) -> Vec<Vec<Match>> {
        let family = self.family;
        let everyone = vec![blocks::everything(family)];
        let each = allowed.blocks.iter().map(|(block, to)| (blocks::nets(block, family), to));
        let each = each.chain(allowed.anyone.iter().map(|to| (everyone.clone(), to)));
        let sorted = PeersByPorts::new(each.filter(|(nets, _)| !nets.is_empty()));
        let mut all = Vec::new();
        let mut by_port: BTreeMap<(Protocol, u16), Vec<Vec<IpNet>>> = BTreeMap::new();
        for (nets, ports) in sorted.single {
            ports.into_iter().for_each(|port| by_port.entry(port).or_default().push(nets.clone()));
        }
        let at = |((protocol, port), groups)| {
            union(groups).into_iter().map(move |net| Entry::BlockPort(net, protocol, port))
        };
        let at: BTreeSet<Entry> = by_port.into_iter().flat_map(at).collect();
        if !at.is_empty() {
            all.push(vec![self.match_fixed_set(IpSetKind::BlockPorts, at)]);
        }
        let entries = |groups| union(groups).into_iter().map(Entry::Block).collect();
        if !sorted.any.is_empty() {
            all.push(vec![self.match_fixed_set(IpSetKind::Blocks, entries(sorted.any))]);
        }
        for (range, groups) in sorted.ranges {
            let ports = match_ports(&Ports::from(range)).into_iter();
            if groups.contains(&everyone) {
                all.extend(ports.map(|ports| vec![ports]));
                continue;
            }
            let networks = self.match_fixed_set(IpSetKind::Blocks, entries(groups));
            all.extend(ports.map(|ports| vec![ports, networks.clone()]));
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
            PeersByPorts { any: Vec::new(), single: Vec::new(), ranges: BTreeMap::new() };
        for (peer, ports) in peers {
            let Ports::Of(ranges) = ports else {
                sorted.any.push(peer);
                continue;
            };
            let single = |range: &&PortRange| range.first == range.last;
            let at: Vec<_> =
                ranges.iter().filter(single).map(|range| (range.protocol, range.first)).collect();
            for range in ranges.iter().filter(|range| !single(range)) {
                sorted.ranges.entry(*range).or_default().push(peer.clone());
            }
            if !at.is_empty() {
                sorted.single.push((peer, at));
            }
        }
        sorted
    }
}
