//! Policies whose rules are evaluated in order: the admin and the baseline tier.

use weir_model::{Direction, Finding, Policy, PolicyRule, Tier};

use crate::{
    code::{SAME_PRIORITY, SHADOWED},
    cover,
    index::Index,
    select,
    site::{Site, is_additive},
};

/// Rules that are never reached, because an earlier rule matches everything that they match.
pub(crate) fn shadowed(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let policies = in_order(index);
    for (at, policy) in policies.iter().enumerate() {
        let earlier: Vec<&Policy> = policies[..at]
            .iter()
            .copied()
            .filter(|e| precedes(e, policy))
            .filter(|e| {
                cover::subject(index, &policy.id.namespace, &e.spec.subject, &policy.spec.subject)
            })
            .collect();
        for direction in Direction::BOTH {
            let rules = policy.rules(direction).unwrap_or_default();
            for (position, rule) in rules.iter().enumerate() {
                let covers = |e: &&PolicyRule| cover::rule(index, &policy.id.namespace, e, rule);
                let own = rules[..position].iter().find(covers).map(|by| (*policy, by));
                let by = own.or_else(|| {
                    earlier.iter().find_map(|e| {
                        let mut rules = e.rules(direction).unwrap_or_default().iter();
                        Some((*e, rules.find(covers)?))
                    })
                });
                findings.extend(by.map(|by| never_reached(policy, direction, rule, by)));
            }
        }
    }
}

fn never_reached(
    policy: &Policy,
    direction: Direction,
    rule: &PolicyRule,
    (other, by): (&Policy, &PolicyRule),
) -> Finding {
    let whose = if other.id == policy.id { String::new() } else { format!(" of {}", other.id) };
    let hint = if by.action == rule.action {
        "remove it: the earlier rule does the same"
    } else if other.id == policy.id {
        "move it before that rule: the first rule that matches decides"
    } else {
        "give this policy a lower priority number, or narrow the earlier rule"
    };
    Site::rule(policy, direction, rule).warning(
        SHADOWED,
        format!(
            "never reached: {direction} rule {}{whose} ({}) already matches everything that this rule matches",
            by.index, by.action
        ),
        hint,
    )
}

/// Policies of one priority that conflict on some connections. The API does not define which one
/// wins.
pub(crate) fn same_priority(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let policies = in_order(index);
    for group in policies.chunk_by(|one, two| one.spec.tier == two.spec.tier) {
        for (at, policy) in group.iter().enumerate() {
            let rival = group[..at].iter().find(|rival| {
                share_pods(index, rival, policy)
                    && Direction::BOTH.into_iter().any(|d| disagree(rival, policy, d))
            });
            findings.extend(rival.map(|rival| {
                Site::priority(policy).warning(
                    SAME_PRIORITY,
                    format!("{} has the same priority, and the two disagree", rival.id),
                    "give them different priorities: the order of policies with equal priority is undefined",
                )
            }));
        }
    }
}

fn disagree(one: &Policy, two: &Policy, direction: Direction) -> bool {
    let two = two.rules(direction).unwrap_or_default();
    let clashes = |one: &PolicyRule| {
        two.iter().any(|two| one.action != two.action && cover::can_both_match(one, two))
    };
    one.rules(direction).unwrap_or_default().iter().any(clashes)
}

fn share_pods(index: &Index<'_>, one: &Policy, two: &Policy) -> bool {
    let pods = |policy: &Policy| {
        let subject = &policy.spec.subject;
        index.pods(&policy.id.namespace, &subject.scope, &subject.pods)
    };
    if index.world.pods.is_empty() {
        return select::contradiction(&[&one.spec.subject.pods, &two.spec.subject.pods]).is_none();
    }
    let (one, two) = (pods(one), pods(two));
    let (few, many) = if one.len() < two.len() { (one, two) } else { (two, one) };
    few.iter().any(|pod| many.binary_search_by(|other| other.id.cmp(&pod.id)).is_ok())
}

/// The policies that are evaluated in order, by tier and priority.
fn in_order<'w>(index: &Index<'w>) -> Vec<&'w Policy> {
    let mut policies: Vec<&Policy> =
        index.world.policies.values().filter(|policy| !is_additive(policy)).collect();
    policies.sort_by(|one, two| (one.spec.tier, &one.id).cmp(&(two.spec.tier, &two.id)));
    policies
}

/// Whether a matching rule of the first policy, even a pass, always precedes the second policy.
fn precedes(one: &Policy, two: &Policy) -> bool {
    match (one.spec.tier, two.spec.tier) {
        (Tier::Admin { priority: one }, Tier::Admin { priority: two })
        | (Tier::Baseline { priority: one }, Tier::Baseline { priority: two }) => one < two,
        // A pass ends only its own tier, so no rule surely precedes a policy of another tier.
        _ => false,
    }
}
