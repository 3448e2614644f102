//! The chains that every packet passes before and after the rules of pods.
//!
//! ```text
//!   KUBE-NWPLCY-COMMON ─ established? ─────────► KUBE-NWPLCY-TAIL: of a pod? accept
//!     │ terminated? ─► KUBE-NWPLCY-CUT: drop
//!     ├ from a pod with a chain? ─► KUBE-POD-FW-EGRESS ─ by address ─► KUBE-POD-FW-…
//!     │                               └► KUBE-NWPLCY-… ─► KUBE-NWPLCY-DEFAULT
//!     ├ from an isolated pod? ────► KUBE-NWPLCY-EGRESS ─ granted? ─► KUBE-NWPLCY-DEFAULT
//!     │                               KUBE-NWPLCY-DEFAULT: the next two lines, or accept
//!     ├ to a pod with a chain? ───► KUBE-POD-FW-INGRESS ─ by address ─► KUBE-POD-FW-…
//!     │                               └► KUBE-NWPLCY-…: accept
//!     ├ to an isolated pod? ──────► KUBE-NWPLCY-INGRESS ─ granted? accept
//!     └► KUBE-NWPLCY-TAIL
//! ```
//!
//! A set lookup costs as much as comparing an address with fifteen to thirty others. Therefore one
//! comparison precedes each lookup, and only addresses near those of pods are looked up.

use std::net::IpAddr;

use ipnet::IpNet;
use weir_model::{Direction, IpFamily, Name};

use crate::{
    Hook, IptablesRule, IptablesTarget, Match, SrcDst,
    dispatch::shared_bits,
    skeleton::{
        common, cut, default, dispatch, grant_lookup, isolated, local, neighbours, tail, terminated,
    },
};

/// The state that these rules depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommonChains {
    /// A network that contains all pods of this node, or `None` without pods.
    pub(crate) net: Option<IpNet>,
    /// Whether some pod has an egress chain.
    pub(crate) egress: bool,
    /// Whether some pod has an ingress chain.
    pub(crate) ingress: bool,
    /// Whether connections were terminated, so that the rules must drop their replies.
    pub(crate) has_terminated: bool,
}

impl CommonChains {
    /// The chains, by name.
    pub(crate) fn chains(self, family: IpFamily) -> Vec<(Name, Vec<IptablesRule>)> {
        let output = self.net.map_or(Vec::new(), |net| {
            let to = IptablesTarget::Goto(common());
            // A packet that leaves the node with the address of another machine belongs to a
            // service, forwarded by IPVS.
            let mut sent_on = pod(SrcDst::Destination, net, family);
            sent_on.push(Match::Forwarded);
            vec![
                IptablesRule::new(pod(SrcDst::Source, net, family), to.clone()),
                IptablesRule::new(sent_on, to),
            ]
        });
        let ways_out = self.net.map_or(Vec::new(), |net| {
            let out = |side| IptablesRule::new(pod(side, net, family), IptablesTarget::Accept);
            vec![out(SrcDst::Source), out(SrcDst::Destination)]
        });
        let mut admitted = self.pod_rules(Direction::Ingress, family);
        admitted.push(IptablesRule::new([], IptablesTarget::Accept));
        vec![
            (Hook::Output.chain().into(), output),
            (common(), self.common(family)),
            (default(), admitted),
            (tail(), ways_out),
        ]
    }

    fn common(self, family: IpFamily) -> Vec<IptablesRule> {
        let mut rules = vec![IptablesRule::new([Match::Established], IptablesTarget::Goto(tail()))];
        if family == IpFamily::V6 {
            rules.push(IptablesRule::new([Match::Icmp6], IptablesTarget::Jump(neighbours())));
        }
        if self.has_terminated {
            let [from, to] = cut(family);
            let ended = [
                Match::In(from, vec![SrcDst::Source, SrcDst::Source, SrcDst::Destination]),
                Match::In(to, vec![SrcDst::Destination, SrcDst::Destination, SrcDst::Source]),
            ];
            rules.push(IptablesRule::new(ended, IptablesTarget::Goto(terminated())));
        }
        rules.extend(self.pod_rules(Direction::Egress, family));
        rules.extend(self.pod_rules(Direction::Ingress, family));
        rules.push(IptablesRule::new([], IptablesTarget::Goto(tail())));
        rules
    }

    /// The rules that lead to those of a pod. Packets without a pod return.
    fn pod_rules(self, direction: Direction, family: IpFamily) -> Vec<IptablesRule> {
        let Some(net) = self.net else { return Vec::new() };
        let has_chains = match direction {
            Direction::Egress => self.egress,
            Direction::Ingress => self.ingress,
        };
        let here = SrcDst::here(direction);
        let mut rules = Vec::new();
        if has_chains {
            rules.push(IptablesRule::new(
                near(here, net),
                IptablesTarget::Jump(dispatch(direction)),
            ));
        }
        let mut matches = near(here, net);
        matches.push(Match::In(isolated(direction, family), vec![here]));
        rules.push(IptablesRule::new(matches, IptablesTarget::Goto(grant_lookup(direction))));
        rules
    }
}

/// Matches a pod of this node at one end of a packet.
fn pod(side: SrcDst, net: IpNet, family: IpFamily) -> Vec<Match> {
    let mut matches = near(side, net);
    matches.push(Match::In(local(family), vec![side]));
    matches
}

fn near(side: SrcDst, net: IpNet) -> Vec<Match> {
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
