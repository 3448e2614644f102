//! The policies and rules that decide about a connection.

use std::{net::IpAddr, sync::Arc};

use weir_flows::{DecidingRule, Decision, RuleDirection, RuleEffect};
use weir_model::{
    Action, Direction, Flow, Peers, PolicyId, Ports, Program, Protocol, Rule, Section, Verdict,
};

/// The most isolating policies that a decision lists.
const MAX_ISOLATING: usize = 16;

/// The decision of the rules of each side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decided {
    /// The egress rules of the source, and the ingress rules of the destination.
    sides: Vec<(Direction, Verdict, Decision)>,
}

impl Decided {
    /// The rules that allowed the connection; none if these rules deny it.
    pub(crate) fn allowing(self) -> Decision {
        if self.sides.iter().any(|(_, verdict, _)| *verdict == Verdict::Deny) {
            return Decision::default();
        }
        join(self.sides.into_iter())
    }

    /// The rules that deny the connection, of one direction if it is given.
    pub(crate) fn denying(self, only: Option<Direction>) -> Decision {
        let is_wanted = |(direction, verdict, _): &(Direction, Verdict, Decision)| {
            *verdict == Verdict::Deny && only.is_none_or(|only| only == *direction)
        };
        join(self.sides.into_iter().filter(is_wanted))
    }
}

fn join(sides: impl Iterator<Item = (Direction, Verdict, Decision)>) -> Decision {
    let mut joined = Decision::default();
    for (_, _, decision) in sides {
        joined.rules.extend(decision.rules);
        joined.more_policies += decision.more_policies;
    }
    joined
}

/// Finds the rules that decide about a connection. Without a port, only rules about every port
/// match.
pub(crate) fn decide(
    program: &Program,
    (from, to): (IpAddr, IpAddr),
    port: Option<(Protocol, u16)>,
) -> Decided {
    let (protocol, number) = port.unwrap_or((Protocol::Tcp, 0));
    let flow = Flow { from, to, protocol, port: number };
    let matches = |rule: &Rule| match port {
        Some(_) => program.matches(rule, &flow),
        None => {
            let has_ports = rule.ports != Ports::Any || matches!(rule.peers, Peers::PortSet(_));
            !has_ports && program.matches_peer(rule, &flow)
        }
    };
    let sides = [Direction::Egress, Direction::Ingress].into_iter().filter_map(|direction| {
        let (_, endpoint) = program.judged(&flow, direction)?;
        let (verdict, decision) = decide_side(endpoint.rules.chain(direction), direction, &matches);
        Some((direction, verdict, decision))
    });
    Decided { sides: sides.collect() }
}

fn decide_side(
    chain: &weir_model::Chain,
    direction: Direction,
    matches: &dyn Fn(&Rule) -> bool,
) -> (Verdict, Decision) {
    let decided_by = |section: &Arc<Section>| {
        let rule = section.rules.iter().find(|rule| matches(rule))?;
        Some((rule.action, deciding(&section.policy, direction, Some(rule))))
    };
    let mut decision = Decision::default();
    if let Some((action, rule)) = chain.admin.iter().find_map(decided_by) {
        decision.rules.push(rule);
        match action {
            Action::Allow => return (Verdict::Allow, decision),
            Action::Deny => return (Verdict::Deny, decision),
            Action::Pass => (),
        }
    }
    match &chain.isolation {
        Some(sections) => match sections.iter().find_map(decided_by) {
            Some((_, rule)) => {
                decision.rules.push(rule);
                (Verdict::Allow, decision)
            }
            None => {
                let isolating = sections.iter().take(MAX_ISOLATING);
                let isolating = isolating.map(|section| deciding(&section.policy, direction, None));
                decision.rules.extend(isolating);
                decision.more_policies = sections.len().saturating_sub(MAX_ISOLATING);
                (Verdict::Deny, decision)
            }
        },
        None => match chain.baseline.iter().find_map(decided_by) {
            Some((action, rule)) => {
                decision.rules.push(rule);
                let denies = action == Action::Deny;
                (if denies { Verdict::Deny } else { Verdict::Allow }, decision)
            }
            None => (Verdict::Allow, decision),
        },
    }
}

fn deciding(policy: &PolicyId, direction: Direction, rule: Option<&Rule>) -> DecidingRule {
    DecidingRule {
        kind: policy.kind.to_string(),
        namespace: (!policy.namespace.is_empty()).then(|| policy.namespace.to_string()),
        name: policy.name.to_string(),
        direction: match direction {
            Direction::Ingress => RuleDirection::Ingress,
            Direction::Egress => RuleDirection::Egress,
        },
        rule: rule.map(|rule| rule.origin.rule),
        effect: match rule.map(|rule| rule.action) {
            None => RuleEffect::Isolate,
            Some(Action::Allow) => RuleEffect::Allow,
            Some(Action::Deny) => RuleEffect::Deny,
            Some(Action::Pass) => RuleEffect::Pass,
        },
    }
}
