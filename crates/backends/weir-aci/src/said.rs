use weir_model::{Direction, Name, Policy, PolicyKind, PolicyRule, PortMatch, Protocol, Selector};

use crate::text;

/// What a NetworkPolicy says, without the rules that can match nothing, and in an order of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// Where it is.
    pub(crate) namespace: Name,
    /// The pods it speaks for.
    pub(crate) subject: Selector,
    ingress: Option<Vec<PolicyRule>>,
    egress: Option<Vec<PolicyRule>>,
}

/// A port that only the pods it is on can tell the number of.
pub(crate) type PortName = (Name, Option<Protocol>);

impl Said {
    /// What a policy says; nothing here if it is of another kind.
    pub(crate) fn of(policy: &Policy) -> Option<Self> {
        if policy.id.kind != PolicyKind::NetworkPolicy {
            return None;
        }
        let namespace = policy.id.namespace.clone();
        let rules = |direction| {
            let mut rules: Vec<PolicyRule> =
                policy.rules(direction)?.iter().filter(|rule| can_match(rule)).cloned().collect();
            rules.sort_by_cached_key(|rule| text::canonical_rule(rule, &namespace));
            Some(rules)
        };
        Some(Said {
            ingress: rules(Direction::Ingress),
            egress: rules(Direction::Egress),
            subject: policy.spec.subject.pods.clone(),
            namespace: namespace.clone(),
        })
    }

    /// The rules of one direction; `None` if it does not speak about it.
    pub(crate) fn rules(&self, direction: Direction) -> Option<&[PolicyRule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// The names that the pods it speaks for must tell the numbers of: sorted, without repeats.
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

    /// Whom it speaks for, if what it says depends on that.
    pub(crate) fn subject_text(&self) -> Option<String> {
        let depends = !self.own_ports().is_empty();
        depends
            .then(|| format!("{{{};{}}}", text::canonical_selector(&self.subject), self.namespace))
    }
}

/// A rule whose lists have come out empty is about nobody, or about no port.
fn can_match(rule: &PolicyRule) -> bool {
    let empty = rule.peers.as_ref().is_some_and(Vec::is_empty)
        || rule.ports.as_ref().is_some_and(Vec::is_empty);
    !empty
}
