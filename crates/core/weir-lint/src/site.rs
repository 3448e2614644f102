//! The subject of a finding: the object, the field and the line.

use weir_model::{
    Direction, Finding, Location, ObjectRef, Peer, Pod, Policy, PolicyKind, PolicyRule, Severity,
    Tier, Who,
};

/// The object, field and line that a finding is about.
pub(crate) struct Site {
    location: Option<Location>,
    object: Option<ObjectRef>,
    field: String,
}

impl Site {
    /// The whole input.
    pub(crate) fn input() -> Self {
        Site { location: None, object: None, field: String::new() }
    }

    /// A whole pod.
    pub(crate) fn pod(pod: &Pod) -> Self {
        let (location, object) = (pod.location.clone(), Some(ObjectRef::from(&pod.id)));
        Site { location, object, field: String::new() }
    }

    /// The whole policy.
    pub(crate) fn policy(policy: &Policy) -> Self {
        let (location, object) = (policy.location.clone(), Some(ObjectRef::from(&policy.id)));
        Site { location, object, field: String::new() }
    }

    /// The field that selects the pods of a policy.
    pub(crate) fn subject(policy: &Policy) -> Self {
        let field = match policy.id.kind {
            kind if kind.is_namespaced() => "spec.podSelector",
            _ => "spec.subject",
        };
        Site { field: field.to_owned(), ..Site::policy(policy) }
    }

    /// The priority of a policy.
    pub(crate) fn priority(policy: &Policy) -> Self {
        Site { field: "spec.priority".to_owned(), ..Site::policy(policy) }
    }

    /// All rules of a direction.
    pub(crate) fn rules(policy: &Policy, direction: Direction) -> Self {
        let line = policy.rules(direction).and_then(|r| r.first()).map_or(0, |rule| rule.line);
        Site::inside(policy, line, format!("spec.{direction}"))
    }

    /// One rule.
    pub(crate) fn rule(policy: &Policy, direction: Direction, rule: &PolicyRule) -> Self {
        Site::inside(policy, rule.line, format!("spec.{direction}[{}]", rule.index))
    }

    /// One peer of a rule.
    pub(crate) fn peer(
        policy: &Policy,
        direction: Direction,
        rule: &PolicyRule,
        peer: &Peer,
    ) -> Self {
        let list = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        let networks = !policy.id.kind.is_namespaced();
        let inner = match &peer.who {
            Who::Pods { .. } => "",
            Who::Block(_) if networks => ".networks",
            Who::Block(_) => ".ipBlock",
            Who::Nodes(_) => ".nodes",
            Who::Domain(_) => ".domainNames",
        };
        let field = format!("spec.{direction}[{}].{list}[{}]{inner}", rule.index, peer.index);
        Site::inside(policy, if peer.line == 0 { rule.line } else { peer.line }, field)
    }

    /// One entry of a rule's ports.
    pub(crate) fn port(
        policy: &Policy,
        direction: Direction,
        rule: &PolicyRule,
        position: usize,
    ) -> Self {
        let list = match policy.id.kind {
            PolicyKind::ClusterNetworkPolicy => "protocols",
            _ => "ports",
        };
        let field = format!("spec.{direction}[{}].{list}[{position}]", rule.index);
        let line = rule.ports.as_ref().and_then(|ports| ports.get(position)).map_or(0, |p| p.line);
        Site::inside(policy, if line == 0 { rule.line } else { line }, field)
    }

    fn inside(policy: &Policy, line: u32, field: String) -> Self {
        let mut site = Site { field, ..Site::policy(policy) };
        if let (Some(location), 1..) = (&mut site.location, line) {
            location.line = line;
        }
        site
    }

    /// Creates a warning: probably not what the author meant.
    pub(crate) fn warning(
        self,
        code: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Finding {
        self.finding(code, Severity::Warning, message, hint)
    }

    /// Creates a note.
    pub(crate) fn info(
        self,
        code: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Finding {
        self.finding(code, Severity::Info, message, hint)
    }

    /// Creates a finding.
    pub(crate) fn finding(
        self,
        code: &'static str,
        severity: Severity,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Finding {
        let Site { location, object, field } = self;
        Finding {
            location,
            code,
            severity,
            object,
            field,
            message: message.into(),
            hint: hint.into(),
        }
    }
}

/// All rules of a policy with their direction, in order.
pub(crate) fn rules(policy: &Policy) -> impl Iterator<Item = (Direction, &PolicyRule)> {
    Direction::BOTH.into_iter().flat_map(move |direction| {
        policy.rules(direction).unwrap_or_default().iter().map(move |rule| (direction, rule))
    })
}

/// Whether the policy's rules are additive, instead of evaluated in order.
pub(crate) fn is_additive(policy: &Policy) -> bool {
    policy.spec.tier == Tier::Namespace
}
