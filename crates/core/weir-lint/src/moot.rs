//! Policies that other policies make redundant.

use std::collections::{BTreeMap, HashMap};

use weir_model::{Direction, Finding, Name, Policy, PortMatch, Subject, Who};

use crate::{
    code::{DUPLICATE_POLICY, MOOT_POLICY},
    index::Index,
    select,
    site::{Site, is_additive},
};

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let mut namespaces: BTreeMap<&Name, Vec<&Policy>> = BTreeMap::new();
    for policy in index.world.policies.values().filter(|policy| is_additive(policy)) {
        namespaces.entry(&policy.id.namespace).or_default().push(policy);
    }
    for policies in namespaces.values() {
        let duplicates = report_duplicates(policies, findings);
        for direction in Direction::BOTH {
            moot(policies, &duplicates, direction, findings);
        }
    }
}

/// Policies without effect, because another policy allows everything for the same pods.
fn moot(
    policies: &[&Policy],
    duplicates: &[bool],
    direction: Direction,
    findings: &mut Vec<Finding>,
) {
    let opens = |policy: &Policy| {
        let mut rules = policy.rules(direction).unwrap_or_default().iter();
        rules.any(|rule| rule.peers.is_none() && rule.ports.is_none())
    };
    // One policy per selector is enough, and few policies allow everything.
    let mut open: BTreeMap<_, &Policy> = BTreeMap::new();
    for policy in policies.iter().filter(|policy| opens(policy)) {
        open.entry(&policy.spec.subject.pods).or_insert(policy);
    }
    for (policy, is_duplicate) in policies.iter().zip(duplicates) {
        if *is_duplicate || policy.rules(direction).is_none() {
            continue;
        }
        let pods = &policy.spec.subject.pods;
        let by = open
            .iter()
            .find(|(selector, wide)| wide.id != policy.id && select::covers(selector, pods));
        let Some((_, by)) = by else { continue };
        let what = match policy.rules(direction) {
            Some([]) => format!("denies nothing on {direction}"),
            _ => format!("changes nothing on {direction}"),
        };
        findings.push(Site::rules(policy, direction).warning(
            MOOT_POLICY,
            format!("{what}: {} allows everything for the same pods", by.id),
            format!(
                "policies are additive and never deny: delete or narrow {}, or delete this one",
                by.id
            ),
        ));
    }
}

type RuleContent<'a> = Option<Vec<(Option<Vec<&'a Who>>, Option<Vec<&'a PortMatch>>)>>;

/// Reports policies that equal an earlier one, and returns which ones do.
fn report_duplicates(policies: &[&Policy], findings: &mut Vec<Finding>) -> Vec<bool> {
    let mut first_by_content: HashMap<(&Subject, RuleContent<'_>, RuleContent<'_>), &Policy> =
        HashMap::new();
    let mut duplicates = Vec::with_capacity(policies.len());
    for policy in policies {
        let key = (
            &policy.spec.subject,
            rules(policy, Direction::Ingress),
            rules(policy, Direction::Egress),
        );
        let first = *first_by_content.entry(key).or_insert(policy);
        duplicates.push(first.id != policy.id);
        if first.id != policy.id {
            findings.push(Site::policy(policy).info(
                DUPLICATE_POLICY,
                format!("is equal to {}", first.id),
                "delete one of the two",
            ));
        }
    }
    duplicates
}

/// The rules without their lines.
fn rules(policy: &Policy, direction: Direction) -> RuleContent<'_> {
    let rules = policy.rules(direction)?;
    let plain = rules.iter().map(|rule| {
        (
            rule.peers.as_ref().map(|peers| peers.iter().map(|peer| &peer.who).collect()),
            rule.ports.as_ref().map(|ports| ports.iter().map(|port| &port.ports).collect()),
        )
    });
    Some(plain.collect())
}
