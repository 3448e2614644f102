//! The lookup from a pod's address to its chain. It is a tree, because iptables has no maps.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use weir_model::{Direction, Name};

use crate::{IptablesRule, IptablesTarget, Match, SrcDst, name, skeleton};

/// The most addresses that one chain compares one by one. More are divided into branches.
const MAX_LEAF_ADDRESSES: usize = 16;

/// The chain of each pod address.
pub(crate) type ChainsByAddress = BTreeMap<IpAddr, Name>;

/// The chains of the tree, including the root. A packet whose pod has no chain goes to the lookup of
/// grants.
pub(crate) fn dispatch_chains(
    direction: Direction,
    pods: &ChainsByAddress,
) -> Vec<(Name, Vec<IptablesRule>)> {
    let mut chains = Vec::new();
    let all: Vec<_> = pods.iter().collect();
    add_branch(direction, skeleton::dispatch(direction), &all, &mut chains);
    chains
}

fn add_branch(
    direction: Direction,
    name: Name,
    pods: &[(&IpAddr, &Name)],
    chains: &mut Vec<(Name, Vec<IptablesRule>)>,
) {
    let here = SrcDst::here(direction);
    let mut rules = Vec::new();
    if pods.len() <= MAX_LEAF_ADDRESSES {
        rules.extend(pods.iter().map(|(address, chain)| {
            IptablesRule::new(
                [Match::At(here, IpNet::from(**address))],
                IptablesTarget::Goto((*chain).clone()),
            )
        }));
    } else {
        for (net, inside) in split_by_prefix(pods) {
            let branch = name::branch(direction, &net.to_string());
            rules.push(IptablesRule::new(
                [Match::At(here, net)],
                IptablesTarget::Goto(branch.clone()),
            ));
            add_branch(direction, branch, inside, chains);
        }
    }
    rules.push(no_chain(direction));
    chains.push((name, rules));
}

/// The last rule of each chain of the tree.
pub(crate) fn no_chain(direction: Direction) -> IptablesRule {
    IptablesRule::new([], IptablesTarget::Goto(skeleton::grant_lookup(direction)))
}

/// Groups addresses, which are sorted and of one family, by the four bits after their common
/// prefix.
fn split_by_prefix<'a, 'p, T>(pods: &'a [(&'p IpAddr, T)]) -> Vec<(IpNet, &'a [(&'p IpAddr, T)])> {
    let (Some((first, _)), Some((last, _))) = (pods.first(), pods.last()) else {
        return Vec::new();
    };
    let whole = IpNet::from(**first).max_prefix_len();
    let length = (shared_bits(**first, **last) + 4).min(whole);
    let net = |address: &IpAddr| IpNet::new(*address, length).map(|net| net.trunc());
    pods.chunk_by(|(one, _), (other, _)| net(one) == net(other))
        .filter_map(|inside| Some((net(inside.first()?.0).ok()?, inside)))
        .collect()
}

/// The length of the common prefix of two addresses of one family, in bits.
pub(crate) fn shared_bits(one: IpAddr, other: IpAddr) -> u8 {
    let bits = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    };
    u8::try_from(bits).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chain of an address, or `None`, and the number of rules evaluated.
    fn look_up(
        chains: &BTreeMap<Name, Vec<IptablesRule>>,
        address: IpAddr,
    ) -> (Option<Name>, usize) {
        let mut chain = skeleton::dispatch(Direction::Ingress);
        let mut evaluated = 0;
        let grants = skeleton::grant_lookup(Direction::Ingress);
        while let Some(rules) = chains.get(&chain) {
            let fits = |rule: &&IptablesRule| {
                evaluated += 1;
                let is_there = |one: &Match| matches!(one, Match::At(SrcDst::Destination, net) if net.contains(&address));
                rule.matches.iter().all(is_there)
            };
            let rule = rules.iter().find(fits).expect("the last rule matches all packets");
            let IptablesTarget::Goto(next) = &rule.target else { panic!("every rule is a goto") };
            chain = next.clone();
        }
        (Some(chain).filter(|chain| *chain != grants), evaluated)
    }

    #[test]
    fn every_pod_is_found_in_few_steps_and_no_other_address() {
        for family in 0..2 {
            let address = |n: u32| match family {
                0 => IpAddr::from((0x0a00_0000 + n * 7).to_be_bytes()),
                _ => {
                    IpAddr::from((0xfd00_u128 << 112 | u128::from(n) << (n % 3 * 16)).to_be_bytes())
                }
            };
            let pods: ChainsByAddress =
                (1..250).map(|n| (address(n), format!("pod-{n}").into())).collect();
            let chains: BTreeMap<_, _> =
                dispatch_chains(Direction::Ingress, &pods).into_iter().collect();
            for (address, chain) in &pods {
                let (found, evaluated) = look_up(&chains, *address);
                assert_eq!(found.as_ref(), Some(chain));
                assert!(evaluated <= 64, "{evaluated} rules for {address}");
            }
            assert_eq!(look_up(&chains, address(10_000)).0, None);
        }
    }
}
