//! The chains that every packet passes before and after the rules of pods.
//!
//! ```text
//!   KUBE-NWPLCY-COMMON ─ established? ─► RETURN
//!     │ terminated? ─► KUBE-NWPLCY-CUT: drop
//!     ├ from the pods' network? ─► KUBE-POD-FW-EGRESS ─ by address ─► KUBE-POD-FW-…
//!     │                              │                  └► KUBE-NWPLCY-… ─► KUBE-NWPLCY-DEFAULT
//!     │                              └► KUBE-NWPLCY-EGRESS ─ granted? ─► KUBE-NWPLCY-DEFAULT
//!     │                            KUBE-NWPLCY-DEFAULT: the next line
//!     ├ to the pods' network? ───► KUBE-POD-FW-INGRESS ─ by address ─► KUBE-POD-FW-…
//!     │                              │                  └► KUBE-NWPLCY-… ─► RETURN
//!     │                              └► KUBE-NWPLCY-INGRESS ─ granted? ─► RETURN
//!     │                                   └ not isolated? ─► KUBE-NWPLCY-GROUPS: the next line
//!     └ to a group? ─────────────► KUBE-NWPLCY-GROUP ─ IGMP, DHCP? ─► RETURN; else deny
//! ```
//!
//! Packets to the node pass KUBE-ROUTER-INPUT, which leads to the same chains for egress.
//!
//! Every arrow is a goto. So RETURN leaves all of these chains, and the packet continues with the
//! rules of other programs in the built-in chain.
//!
//! A set lookup costs as much as comparing an address with fifteen to thirty others. Therefore one
//! comparison precedes each lookup, and only addresses near those of pods are looked up.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use weir_model::{Direction, IpFamily, Name};

use crate::{
    Hook, IptablesRule, IptablesTarget, Match, SrcDst,
    dispatch::shared_bits,
    skeleton::{
        common, cut, default, dispatch, grant_lookup, group, groups, ipvs, local, neighbours, tail,
        terminated,
    },
};

/// The network of the multicast addresses of IPv6.
const ALL_GROUPS_V6: Ipv6Addr = Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0);

/// The state that these rules depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommonChains {
    /// A network that contains all pods of this node, or `None` without pods.
    pub(crate) net: Option<IpNet>,
    /// Whether some pod has an egress chain.
    pub(crate) egress: bool,
    /// Whether some pod has an ingress chain.
    pub(crate) ingress: bool,
    /// Whether some pod is isolated for ingress, so that the rules must deny packets to groups.
    pub(crate) denies_groups: bool,
    /// Whether connections were terminated, so that the rules must drop their replies.
    pub(crate) has_terminated: bool,
}

impl CommonChains {
    /// The chains, by name.
    pub(crate) fn chains(self, family: IpFamily) -> Vec<(Name, Vec<IptablesRule>)> {
        let ways_out = self.net.map_or(Vec::new(), |net| {
            let out = |side| IptablesRule::new(pod(side, net, family), IptablesTarget::Accept);
            vec![out(SrcDst::Source), out(SrcDst::Destination)]
        });
        let mut all = vec![
            (Hook::Input.chain().into(), self.input(family)),
            (Hook::Output.chain().into(), self.output(family)),
            (common(), self.common(family)),
            (default(), self.receiver_rules(family)),
            (groups(), self.group_rules(family)),
            (tail(), ways_out),
        ];
        if family == IpFamily::V6 {
            let mut rules: Vec<_> = neighbour_discovery(Vec::new()).collect();
            rules.extend(self.new_packets(family));
            all.push((neighbours(), rules));
        }
        all
    }

    fn common(self, family: IpFamily) -> Vec<IptablesRule> {
        let mut rules = vec![IptablesRule::new([Match::Established], IptablesTarget::Return)];
        if family == IpFamily::V6 {
            rules.push(IptablesRule::new([Match::Icmp6], IptablesTarget::Goto(neighbours())));
        }
        rules.extend(self.new_packets(family));
        rules
    }

    /// The rules for packets from pods to this node: policies apply to their egress.
    fn input(self, family: IpFamily) -> Vec<IptablesRule> {
        let Some(net) = self.net else { return Vec::new() };
        let with = |one: Match| [near(SrcDst::Source, net), vec![one]].concat();
        let established = with(Match::Established);
        let mut rules = vec![IptablesRule::new(established, IptablesTarget::Return)];
        if family == IpFamily::V6 {
            rules.extend(neighbour_discovery(near(SrcDst::Source, net)));
        }
        // INPUT comes before IPVS. It sends such packets on, and policies apply in OUTPUT.
        let service = with(Match::In(ipvs(family), vec![SrcDst::Destination]));
        rules.push(IptablesRule::new(service, IptablesTarget::Return));
        rules.extend(self.pod_rules(Direction::Egress));
        rules
    }

    /// The rules for packets that the node sends. Only those of pods that IPVS forwards, and
    /// replies of terminated connections, are filtered.
    fn output(self, family: IpFamily) -> Vec<IptablesRule> {
        let Some(net) = self.net else { return Vec::new() };
        let mut rules = Vec::new();
        if self.has_terminated {
            rules.push(IptablesRule::new([Match::Established], IptablesTarget::Return));
            rules.push(drop_terminated(family));
        }
        let to = IptablesTarget::Goto(common());
        // A packet that leaves the node with the address of another machine belongs to a service,
        // forwarded by IPVS.
        let mut sent_on = pod(SrcDst::Destination, net, family);
        sent_on.push(Match::Forwarded);
        rules.push(IptablesRule::new(pod(SrcDst::Source, net, family), to.clone()));
        rules.push(IptablesRule::new(sent_on, to));
        rules
    }

    /// The rules for packets that belong to no known connection.
    fn new_packets(self, family: IpFamily) -> Vec<IptablesRule> {
        let mut rules = Vec::new();
        if self.has_terminated {
            rules.push(drop_terminated(family));
        }
        rules.extend(self.pod_rules(Direction::Egress));
        rules.extend(self.receiver_rules(family));
        rules
    }

    /// The rules for the receivers of a packet.
    fn receiver_rules(self, family: IpFamily) -> Vec<IptablesRule> {
        let mut rules = self.pod_rules(Direction::Ingress);
        rules.extend(self.group_rules(family));
        rules
    }

    /// The rules for packets on a bridge that have more than one receiver. The rules of these
    /// receivers cannot apply, because the packet does not have their addresses. So it is denied.
    fn group_rules(self, family: IpFamily) -> Vec<IptablesRule> {
        if !self.denies_groups {
            return Vec::new();
        }
        let to = |net: [u8; 4], length| IpNet::new_assert(net.into(), length);
        let nets = match family {
            IpFamily::V4 => vec![to([224, 0, 0, 0], 4), to([255; 4], 32)],
            IpFamily::V6 => vec![IpNet::new_assert(ALL_GROUPS_V6.into(), 8)],
        };
        let nets = nets.into_iter().map(|net| Match::At(SrcDst::Destination, net));
        let rule = |one| IptablesRule::new([one], IptablesTarget::Goto(group()));
        nets.chain([Match::ToStations]).map(rule).collect()
    }

    /// The rule that leads to those of a pod.
    fn pod_rules(self, direction: Direction) -> Vec<IptablesRule> {
        let Some(net) = self.net else { return Vec::new() };
        let has_chains = match direction {
            Direction::Egress => self.egress,
            Direction::Ingress => self.ingress,
        };
        let to = if has_chains { dispatch(direction) } else { grant_lookup(direction) };
        vec![IptablesRule::new(near(SrcDst::here(direction), net), IptablesTarget::Goto(to))]
    }
}

/// The rule for replies of terminated connections.
fn drop_terminated(family: IpFamily) -> IptablesRule {
    let [from, to] = cut(family);
    let ended = [
        Match::In(from, vec![SrcDst::Source, SrcDst::Source, SrcDst::Destination]),
        Match::In(to, vec![SrcDst::Destination, SrcDst::Destination, SrcDst::Source]),
    ];
    IptablesRule::new(ended, IptablesTarget::Goto(terminated()))
}

/// The rules that let neighbour discovery pass.
fn neighbour_discovery(matches: Vec<Match>) -> impl Iterator<Item = IptablesRule> {
    (133..=137).map(move |number| {
        let mut matches = matches.clone();
        matches.push(Match::NeighbourDiscovery(number));
        IptablesRule::new(matches, IptablesTarget::Return)
    })
}

/// Matches a pod of this node at one end of a packet.
fn pod(side: SrcDst, net: IpNet, family: IpFamily) -> Vec<Match> {
    let mut matches = near(side, net);
    matches.push(Match::In(local(family), vec![side]));
    matches
}

/// Matches one end of a packet in a network.
pub(crate) fn near(side: SrcDst, net: IpNet) -> Vec<Match> {
    // A match of all addresses would be useless.
    (net.prefix_len() > 0).then_some(Match::At(side, net)).into_iter().collect()
}

/// A network that contains all addresses between two of one family. Its size changes in large
/// steps, so that it rarely changes with a pod.
pub(crate) fn around(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let whole = IpNet::from(first).max_prefix_len();
    let step = if first.is_ipv4() { 8 } else { 16 };
    let length = shared_bits(first, last).min(whole - step);
    IpNet::new(first, length - length % step).map(|net| net.trunc()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_around_pods_grows_in_large_steps() {
        let net = |first: &str, last: &str| {
            let [first, last] = [first, last].map(|text| text.parse().expect("an address"));
            around(first, last).expect("one family").to_string()
        };
        assert_eq!(net("10.0.0.7", "10.0.0.7"), "10.0.0.0/24");
        assert_eq!(net("10.0.0.7", "10.0.0.255"), "10.0.0.0/24");
        assert_eq!(net("10.0.0.7", "10.0.1.0"), "10.0.0.0/16");
        assert_eq!(net("10.0.0.7", "11.0.0.0"), "0.0.0.0/0");
        assert_eq!(net("fd00::7", "fd00::7"), "fd00::/112");
        assert_eq!(net("fd00::7", "fd00::1:0:7"), "fd00::/80");
    }
}
