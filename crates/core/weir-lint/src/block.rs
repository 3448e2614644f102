//! Addresses in rules.

use std::net::IpAddr;

use ipnet::IpNet;
use weir_model::{Block, Direction, Finding, Peer, Pod, Policy, PolicyRule, Who};

use crate::{
    code::{BLOCK_COVERS_PODS, NEVER_MATCHES, ONE_FAMILY_BLOCK},
    cover,
    index::Index,
    site::{Site, adds_up, rules},
};

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for policy in index.world.policies.values() {
        for (direction, rule, peer, block) in blocks(policy) {
            let site = || Site::peer(policy, direction, rule, peer);
            if cover::is_empty(block) {
                findings.push(site().warning(
                    NEVER_MATCHES,
                    format!("the exceptions leave nothing of {}", block.net),
                    "remove an exception, or the whole entry",
                ));
            } else {
                findings.extend(covered_pods(index, block, site));
            }
        }
        if adds_up(policy) {
            findings
                .extend(Direction::BOTH.into_iter().filter_map(|d| one_family(index, policy, d)));
        }
    }
}

fn blocks(policy: &Policy) -> impl Iterator<Item = (Direction, &PolicyRule, &Peer, &Block)> {
    rules(policy).flat_map(|(direction, rule)| {
        rule.peers.iter().flatten().filter_map(move |peer| match &peer.who {
            Who::Block(block) => Some((direction, rule, peer, block)),
            _ => None,
        })
    })
}

fn covered_pods(index: &Index<'_>, block: &Block, site: impl Fn() -> Site) -> Option<Finding> {
    /// Pods to look at before taking the exceptions' word that all are taken out.
    const SAMPLE: usize = 1000;
    if block.net.prefix_len() == 0 {
        return None;
    }
    let near = index.between(block.net.network(), block.net.broadcast());
    let (address, pod) = near.iter().take(SAMPLE).find(|(address, _)| block.contains(*address))?;
    let hint = "name pods by their labels; an ipBlock is for addresses outside the cluster";
    Some(match block.net.prefix_len() == block.net.max_prefix_len() {
        true => site().warning(
            BLOCK_COVERS_PODS,
            format!("{address} is the address of pod {} now, and of another pod tomorrow", pod.id),
            hint,
        ),
        false => site().info(
            BLOCK_COVERS_PODS,
            format!("{} contains pod addresses, for example {address} of {}", block.net, pod.id),
            hint,
        ),
    })
}

/// Rules with addresses of one family only, for pods that have both.
fn one_family(index: &Index<'_>, policy: &Policy, direction: Direction) -> Option<Finding> {
    if policy.rules(direction)?.iter().any(|rule| rule.peers.is_none()) {
        return None;
    }
    let blocks = || blocks(policy).filter(|(d, ..)| *d == direction);
    let (_, rule, peer, first) = blocks().next()?;
    let is_v4 = |net: &IpNet| matches!(net, IpNet::V4(_));
    if blocks().any(|(.., block)| is_v4(&block.net) != is_v4(&first.net)) {
        return None;
    }
    let same = |address: &IpAddr| address.is_ipv4() == is_v4(&first.net);
    let has_both = |pod: &&&Pod| pod.addresses.iter().any(same) && !pod.addresses.iter().all(same);
    let pods =
        index.pods(&policy.id.namespace, &policy.spec.subject.scope, &policy.spec.subject.pods);
    let pod = pods.iter().find(has_both)?;
    let (this, that, all) = match first.net {
        IpNet::V4(_) => ("IPv4", "IPv6", "::/0"),
        IpNet::V6(_) => ("IPv6", "IPv4", "0.0.0.0/0"),
    };
    let message = format!(
        "only {this} addresses are admitted, but {} has {that} too: over {that} it is cut off",
        pod.id
    );
    let site = Site::peer(policy, direction, rule, peer);
    let whole = blocks().any(|(.., block)| block.net.prefix_len() == 0);
    Some(match whole {
        true => site.warning(ONE_FAMILY_BLOCK, message, format!("add an ipBlock with cidr: {all}")),
        false => site.info(
            ONE_FAMILY_BLOCK,
            message,
            format!("add an ipBlock with the {that} addresses of the same peers, if they have any"),
        ),
    })
}
