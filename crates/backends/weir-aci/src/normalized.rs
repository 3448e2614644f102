use std::collections::BTreeMap;

use weir_model::{Direction, Name, Policy, PolicyKind, PolicyRule, PortMatch, Protocol, Selector};

use crate::text;

/// A NetworkPolicy without the rules that match nothing, with its rules in canonical order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NormalizedPolicy {
    /// The namespace of the policy.
    pub(crate) namespace: Name,
    /// The pods that the policy selects.
    pub(crate) subject: Selector,
    ingress: Option<Vec<PolicyRule>>,
    egress: Option<Vec<PolicyRule>>,
}

/// A named port. Each pod resolves it to a number.
pub(crate) type PortName = (Name, Option<Protocol>);

impl NormalizedPolicy {
    /// Normalizes a policy. Returns `None` for other kinds than NetworkPolicy.
    pub(crate) fn from_policy(policy: &Policy) -> Option<Self> {
        if policy.id.kind != PolicyKind::NetworkPolicy || policy.staged {
            return None;
        }
        let namespace = policy.id.namespace.clone();
        let rules = |direction| {
            let mut rules: Vec<PolicyRule> =
                policy.rules(direction)?.iter().filter(|rule| can_match(rule)).cloned().collect();
            rules.sort_by_cached_key(|rule| text::canonical_rule(rule, &namespace));
            Some(rules)
        };
        Some(NormalizedPolicy {
            ingress: rules(Direction::Ingress),
            egress: rules(Direction::Egress),
            subject: policy.spec.subject.pods.clone(),
            namespace: namespace.clone(),
        })
    }

    /// A policy for all pods with these rules.
    pub(crate) fn of_all_pods(rules: &BTreeMap<Direction, Vec<PolicyRule>>) -> Self {
        let namespace = Name::default();
        let rules = |direction| {
            let mut rules = rules.get(&direction)?.clone();
            rules.retain(can_match);
            rules.sort_by_cached_key(|rule| text::canonical_rule(rule, &namespace));
            Some(rules)
        };
        NormalizedPolicy {
            ingress: rules(Direction::Ingress),
            egress: rules(Direction::Egress),
            subject: Selector::everything(),
            namespace: namespace.clone(),
        }
    }

    /// The rules of a direction, or `None` if the policy does not isolate it.
    pub(crate) fn rules(&self, direction: Direction) -> Option<&[PolicyRule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// The named ports of ingress rules, which the selected pods resolve. Sorted, without
    /// duplicates.
    pub(crate) fn own_ports(&self) -> Vec<PortName> {
        let rules = self.ingress.iter().flatten();
        let ports = rules.flat_map(|rule| rule.ports.iter().flatten());
        let mut names: Vec<PortName> = ports
            .filter_map(|port| match &port.ports {
                PortMatch::Named { name, protocol } => Some((name.clone(), *protocol)),
                PortMatch::Range(_) => None,
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// The selected pods as text, if the rules depend on them.
    pub(crate) fn subject_text(&self) -> Option<String> {
        let depends = !self.own_ports().is_empty();
        depends
            .then(|| format!("{{{};{}}}", text::canonical_selector(&self.subject), self.namespace))
    }
}

/// A rule with an empty list matches no peer or no port.
fn can_match(rule: &PolicyRule) -> bool {
    let empty = rule.peers.as_ref().is_some_and(Vec::is_empty)
        || rule.ports.as_ref().is_some_and(Vec::is_empty);
    !empty
}
