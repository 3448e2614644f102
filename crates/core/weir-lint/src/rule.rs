//! Rules of one policy that say too little or too much.

use weir_model::{Direction, Finding, Policy, PolicyRule, Who};

use crate::{
    code::{REDUNDANT_RULE, WORLD_OPEN},
    cover,
    index::Index,
    site::{Site, adds_up, rules},
};

/// Above this many rules in a direction they are not compared: people do not write such lists by hand.
const HAND_WRITTEN: usize = 64;

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for policy in index.world.policies.values().filter(|policy| adds_up(policy)) {
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
    if rules.len() > HAND_WRITTEN {
        return;
    }
    let covers = |wide: &PolicyRule, narrow| cover::rule(index, &policy.id.namespace, wide, narrow);
    for (at, rule) in rules.iter().enumerate() {
        let by = rules.iter().enumerate().find(|(other, wide)| {
            // Of two that say the same, the first one stays.
            *other != at && covers(wide, rule) && (*other < at || !covers(rule, wide))
        });
        findings.extend(by.map(|(_, wide)| {
            Site::rule(policy, direction, rule).warning(
                REDUNDANT_RULE,
                format!("rule {} already allows all that this one does", wide.index),
                format!(
                    "remove this rule, or make rule {} narrower if it was not meant to be so wide",
                    wide.index
                ),
            )
        }));
    }
}

/// A rule that lets everyone in, everywhere.
fn open(policy: &Policy, rule: &PolicyRule) -> Option<Finding> {
    let hint = "say `from` and `ports`, unless this policy is there to open these pods";
    match &rule.peers {
        None => Some(Site::rule(policy, Direction::Ingress, rule).info(
            WORLD_OPEN,
            "everyone may connect to every port, from outside the cluster too",
            hint,
        )),
        Some(peers) => {
            let whole = peers.iter().find(|peer| match &peer.who {
                Who::Block(block) => block.net.prefix_len() == 0 && block.except.is_empty(),
                _ => false,
            })?;
            Some(Site::peer(policy, Direction::Ingress, rule, whole).info(
                WORLD_OPEN,
                "every address may connect to every port",
                hint,
            ))
        }
    }
}
