//! Address blocks in rules.

use std::net::IpAddr;

use ipnet::IpNet;
use weir_model::{Block, Direction, Finding, Peer, Pod, Policy, PolicyRule, Who};

use crate::{
    code::{BLOCK_COVERS_PODS, NEVER_MATCHES, ONE_FAMILY_BLOCK},
    cover,
    index::Index,
    site::{Site, is_additive, rules},
};

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for policy in index.world.policies.values() {
        for (direction, rule, peer, block) in blocks(policy) {
            let site = || Site::peer(policy, direction, rule, peer);
            if cover::is_empty(block) {
                findings.push(site().warning(
                    NEVER_MATCHES,
                    format!("the exceptions cover all of {}", block.net),
                    "remove an exception, or the whole entry",
                ));
            } else {
                findings.extend(covered_pods(index, block, site));
            }
        }
        if is_additive(policy) {
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
    /// Stop looking for a pod outside of the exceptions after this many.
    const MAX_SAMPLED_PODS: usize = 1000;
    if block.net.prefix_len() == 0 {
        return None;
    }
    let near = index.between(block.net.network(), block.net.broadcast());
    let (address, pod) =
        near.iter().take(MAX_SAMPLED_PODS).find(|(address, _)| block.contains(*address))?;
    let hint = "select pods by their labels; an ipBlock is for addresses outside the cluster";
    let is_host = block.net.prefix_len() == block.net.max_prefix_len();
    Some(if is_host {
        site().warning(
            BLOCK_COVERS_PODS,
            format!("{address} is the address of pod {} now, but pod addresses change", pod.id),
            hint,
        )
    } else {
        site().info(
            BLOCK_COVERS_PODS,
            format!("{} contains pod addresses, for example {address} of {}", block.net, pod.id),
            hint,
        )
    })
}

/// Rules that allow addresses of one family only, for pods that have both families.
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
        "only {this} addresses are allowed, but {} also has {that}: over {that} it is isolated",
        pod.id
    );
    let site = Site::peer(policy, direction, rule, peer);
    let whole = blocks().any(|(.., block)| block.net.prefix_len() == 0);
    Some(if whole {
        site.warning(ONE_FAMILY_BLOCK, message, format!("add an ipBlock with cidr: {all}"))
    } else {
        site.info(
            ONE_FAMILY_BLOCK,
            message,
            format!("add an ipBlock with the {that} addresses of the same peers, if they have any"),
        )
    })
}
