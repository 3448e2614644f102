use weir_model::{
    Action, Direction, Peer, PolicyRule, PortSpec, Scope, Selector, Spec, Subject, Tier,
};

/// Merges two different definitions of a policy: everything that either denies, and nothing that
/// only one allows.
pub(crate) fn stricter(one: &Spec, other: &Spec) -> Spec {
    let subject = if one.subject == other.subject {
        one.subject.clone()
    } else {
        let scope = match one.tier {
            Tier::Namespace => Scope::Own,
            Tier::Admin { .. } | Tier::Baseline { .. } => Scope::Matching(Selector::everything()),
        };
        Subject { scope, pods: Selector::everything() }
    };
    let side = |direction| match (one.rules(direction), other.rules(direction)) {
        (None, None) => None,
        (a, b) => {
            let rules = a.unwrap_or_default().iter().chain(b.unwrap_or_default());
            let denying = rules.filter(|rule| rule.action != Action::Allow);
            Some(denying.map(|rule| PolicyRule { action: Action::Deny, ..rule.clone() }).collect())
        }
    };
    Spec {
        tier: one.tier.min(other.tier),
        subject,
        ingress: side(Direction::Ingress),
        egress: side(Direction::Egress),
    }
}

/// The spec without line numbers.
pub(crate) fn without_lines(spec: &Spec) -> Spec {
    let peer = |peer: &Peer| Peer { line: 0, ..peer.clone() };
    let port = |port: &PortSpec| PortSpec { line: 0, ..port.clone() };
    let rule = |rule: &PolicyRule| PolicyRule {
        line: 0,
        peers: rule.peers.as_ref().map(|peers| peers.iter().map(peer).collect()),
        ports: rule.ports.as_ref().map(|ports| ports.iter().map(port).collect()),
        ..rule.clone()
    };
    let side =
        |direction| spec.rules(direction).map(|rules| rules.iter().map(rule).collect::<Vec<_>>());
    Spec { ingress: side(Direction::Ingress), egress: side(Direction::Egress), ..spec.clone() }
}
