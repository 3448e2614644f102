use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr, sync::Arc};

use ipnet::IpNet;
use weir_model::{
    Action, Block, Direction, Name, Peer, Policy, PolicyId, PolicyKind, PolicyRule, PortSpec, Spec,
    Tier, Who,
};

use crate::{
    merge::merge,
    tree::{AllowedPorts, Leaf},
};

/// The key of a shard: a direction, and the network of its remote addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardKey {
    /// The only direction of the shard.
    pub direction: Direction,
    /// The network. The shard contains every allowed remote address in it.
    pub network: IpNet,
}

impl fmt::Display for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.direction {
            Direction::Ingress => 'i',
            Direction::Egress => 'e',
        };
        let length = self.network.prefix_len();
        match self.network.network() {
            IpAddr::V4(address) => write!(f, "{direction}4-{:08x}-{length}", u32::from(address)),
            IpAddr::V6(address) => write!(f, "{direction}6-{:032x}-{length}", u128::from(address)),
        }
    }
}

impl FromStr for ShardKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let (Some(head), Some(bits), Some(length), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        let direction = match head.as_bytes().first() {
            Some(b'i') => Direction::Ingress,
            Some(b'e') => Direction::Egress,
            _ => return Err(()),
        };
        let bits = u128::from_str_radix(bits, 16).map_err(|_| ())?;
        let address = match head.get(1..).ok_or(())? {
            "4" => IpAddr::from(u32::try_from(bits).map_err(|_| ())?.to_be_bytes()),
            "6" => IpAddr::from(bits.to_be_bytes()),
            _ => return Err(()),
        };
        let length = length.parse().map_err(|_| ())?;
        let key = ShardKey { direction, network: IpNet::new(address, length).map_err(|_| ())? };
        // Each key has exactly one name.
        (key.to_string() == text).then_some(key).ok_or(())
    }
}

/// The name of the base or of a shard of a policy with this uid. It does not contain the name of
/// the policy, which could make it too long.
pub fn shard_name(uid: &str, shard: Option<&ShardKey>) -> Name {
    match shard {
        None => format!("csnp-{uid}").into(),
        Some(key) => format!("csnp-{uid}-{key}").into(),
    }
}

/// The NetworkPolicy that isolates the pods of a policy, with its local peers and its address
/// blocks.
///
/// It lists the directions of the policy and exists as long as the policy, even without rules.
pub(crate) fn base(policy: &Policy, uid: &str) -> Policy {
    let rules = |direction| {
        // A rule that matches nothing cannot be written: the API server treats an empty list as
        // "match everything".
        let rules = policy.rules(direction)?.iter().filter(|rule| {
            !rule.peers.as_ref().is_some_and(Vec::is_empty)
                && !rule.ports.as_ref().is_some_and(Vec::is_empty)
        });
        Some(rules.zip(0..).map(|(rule, index)| as_written(rule, index)).collect())
    };
    let spec = Spec {
        tier: Tier::Namespace,
        subject: policy.spec.subject.clone(),
        ingress: rules(Direction::Ingress),
        egress: rules(Direction::Egress),
    };
    Policy {
        id: id(policy, shard_name(uid, None)),
        location: None,
        spec: Arc::new(spec),
        staged: false,
    }
}

/// The NetworkPolicy of a shard. It has one direction, so it does not isolate in the other.
pub(crate) fn shard(policy: &Policy, uid: &str, key: &ShardKey, rules: Vec<PolicyRule>) -> Policy {
    let (ingress, egress) = match key.direction {
        Direction::Ingress => (Some(rules), None),
        Direction::Egress => (None, Some(rules)),
    };
    let subject = policy.spec.subject.clone();
    let spec = Spec { tier: Tier::Namespace, subject, ingress, egress };
    Policy {
        id: id(policy, shard_name(uid, Some(key))),
        location: None,
        spec: Arc::new(spec),
        staged: false,
    }
}

/// One rule for each distinct list of ports in a leaf, sorted.
pub(crate) fn rules(leaf: &Leaf, merging: Merging) -> Vec<PolicyRule> {
    let mut by_ports: BTreeMap<&AllowedPorts, Vec<IpAddr>> = BTreeMap::new();
    for (address, allowed) in &leaf.addresses {
        for ports in allowed {
            by_ports.entry(ports).or_default().push(*address);
        }
    }
    let rules = by_ports.into_iter().zip(0..).map(|((ports, addresses), index)| {
        let networks = match merging {
            Merging::None => addresses.into_iter().map(IpNet::from).collect(),
            Merging::Exact => merge(addresses),
        };
        let peers = networks.into_iter().zip(0..).map(|(net, index)| Peer {
            index,
            line: 0,
            who: Who::Block(Block { net, except: Vec::new() }),
        });
        let ports = ports.as_ref().map(|ports| {
            ports.iter().map(|ports| PortSpec { line: 0, ports: ports.clone() }).collect()
        });
        let (name, action) = (None, Action::Allow);
        PolicyRule { index, name, line: 0, action, peers: Some(peers.collect()), ports }
    });
    rules.collect()
}

/// Whether adjacent addresses are merged into networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merging {
    /// Each address becomes a network by itself.
    #[default]
    None,
    /// A network is written if all of its addresses are allowed.
    Exact,
}

fn id(policy: &Policy, name: Name) -> PolicyId {
    let namespace = policy.id.namespace.clone();
    PolicyId { kind: PolicyKind::NetworkPolicy, namespace, name }
}

/// The rule as it is read back from the API server.
fn as_written(rule: &PolicyRule, index: u32) -> PolicyRule {
    let mut rule = PolicyRule { index, line: 0, ..rule.clone() };
    for (peer, index) in rule.peers.iter_mut().flatten().zip(0..) {
        (peer.index, peer.line) = (index, 0);
    }
    rule.ports.iter_mut().flatten().for_each(|port| port.line = 0);
    rule
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_key_can_be_parsed_from_its_name() {
        for network in ["0.0.0.0/0", "10.128.0.0/9", "fd00::/16", "10.0.0.1/32"] {
            for direction in Direction::BOTH {
                let key = ShardKey { direction, network: network.parse().unwrap() };
                assert_eq!(key.to_string().parse(), Ok(key));
            }
        }
        for text in
            ["", "i", "i4", "x4-0a000000-8", "i4-a000000-8", "i4-0a000000-33", "i6-0-0", "é4-0-0"]
        {
            assert_eq!(text.parse::<ShardKey>(), Err(()), "{text}");
        }
    }
}
