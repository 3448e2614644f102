//! Rules of one policy that are redundant or too wide.

use weir_model::{Direction, Finding, Policy, PolicyRule, Who};

use crate::{
    MAX_COMPARED,
    code::{REDUNDANT_RULE, WORLD_OPEN},
    cover,
    index::Index,
    site::{Site, is_additive, rules},
};

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for policy in index.world.policies.values().filter(|policy| is_additive(policy)) {
        for direction in Direction::BOTH {
            redundant(index, policy, direction, findings);
        }
        for (direction, rule) in rules(policy) {
            if direction == Direction::Ingress && rule.ports.is_none() {
                findings.extend(open(policy, rule));
            }
        }
    }
}

fn redundant(
    index: &Index<'_>,
    policy: &Policy,
    direction: Direction,
    findings: &mut Vec<Finding>,
) {
    let rules = policy.rules(direction).unwrap_or_default();
    if rules.len() > MAX_COMPARED {
        return;
    }
    let covers = |wide: &PolicyRule, narrow| cover::rule(index, &policy.id.namespace, wide, narrow);
    for (at, rule) in rules.iter().enumerate() {
        let by = rules.iter().enumerate().find(|(other, wide)| {
            // Of two equal rules, the first one stays.
            *other != at && covers(wide, rule) && (*other < at || !covers(rule, wide))
        });
        findings.extend(by.map(|(_, wide)| {
            Site::rule(policy, direction, rule).warning(
                REDUNDANT_RULE,
                format!("rule {} already allows everything that this rule allows", wide.index),
                format!("remove this rule, or make rule {} narrower if it is too wide", wide.index),
            )
        }));
    }
}

/// A rule that allows every peer on every port.
fn open(policy: &Policy, rule: &PolicyRule) -> Option<Finding> {
    let hint = "add `from` and `ports`, unless this policy is meant to open these pods";
    match &rule.peers {
        None => Some(Site::rule(policy, Direction::Ingress, rule).info(
            WORLD_OPEN,
            "any address can connect to every port, also from outside the cluster",
            hint,
        )),
        Some(peers) => {
            let whole = peers.iter().find(|peer| match &peer.who {
                Who::Block(block) => block.net.prefix_len() == 0 && block.except.is_empty(),
                _ => false,
            })?;
            Some(Site::peer(policy, Direction::Ingress, rule, whole).info(
                WORLD_OPEN,
                "any address can connect to every port",
                hint,
            ))
        }
    }
}
