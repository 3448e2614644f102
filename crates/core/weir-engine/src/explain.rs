//! Explains a verdict from the compiled rules.

use std::sync::Arc;

use weir_model::{
    Action, Direction, Endpoint, Flow, Member, Name, Peers, PodId, Program, Rule, Section,
    SectionList, Verdict,
};

/// The explanation of a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The flow.
    pub flow: Flow,
    /// The verdict: both sides must allow the flow.
    pub verdict: Verdict,
    /// The source: the egress rules of its pod.
    pub egress: Side,
    /// The destination: the ingress rules of its pod.
    pub ingress: Side,
}

impl Explanation {
    /// The side whose rules have this direction.
    pub fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// One end of a flow, and the verdict of its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The address belongs to no pod, so no policy applies.
    NoPod,
    /// A pod connects to itself, which is always allowed.
    Itself(PodId),
    /// A node connects to a pod that runs on it, which is always allowed.
    FromNode(PodId, Name),
    /// The rules of a pod decided.
    Judged(Judgement),
}

/// The verdict of the rules of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The pod.
    pub pod: PodId,
    /// Whether these rules allow the flow.
    pub verdict: Verdict,
    /// The reason for the verdict.
    pub reason: Reason,
    /// The admin rule that passed the decision to the next tier, if any.
    pub passed: Option<Cited>,
    /// The NetworkPolicies that isolate the pod in this direction.
    pub isolating: Vec<Arc<Section>>,
    /// The admin policies that select the pod in this direction but have no matching rule; only if
    /// no rule decided.
    pub silent: Vec<Arc<Section>>,
    /// The rules that nearly matched, nearest first; only if an isolated pod denies the flow.
    pub misses: Vec<Miss>,
}

/// The reason for a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A rule of the admin tier.
    Admin(Cited),
    /// A rule of a NetworkPolicy allows the flow.
    Allowed(Cited),
    /// NetworkPolicies isolate the pod and none of their rules matches.
    Isolated,
    /// Another pod holds an address of the pod as well, so nothing is allowed.
    Contested,
    /// A rule of the baseline tier.
    Baseline(Cited),
    /// No rule matches, so the flow is allowed.
    Default,
}

/// A rule and the policy it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cited {
    /// The compiled section of the policy.
    pub section: Arc<Section>,
    /// The index of the rule in the section; idle rules come last.
    pub at: usize,
}

impl Cited {
    /// The rule itself.
    pub fn rule(&self) -> &Rule {
        let Section { rules, idle, .. } = &*self.section;
        rules.get(self.at).unwrap_or_else(|| &idle[self.at - rules.len()])
    }
}

/// A rule that nearly matched the flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The rule.
    pub cited: Cited,
    /// The part that did not match.
    pub missing: Missing,
}

/// The part of a rule that did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// The peer matches, the port does not.
    Port,
    /// The peer matches, but the pod declares no port of the name that the rule requires.
    PortName,
    /// The port matches, the peer does not.
    Peer,
}

/// Explains the verdict of a program for a flow.
pub fn explain(program: &Program, flow: &Flow) -> Explanation {
    let side = |direction| explain_side(program, flow, direction);
    let (egress, ingress) = (side(Direction::Egress), side(Direction::Ingress));
    let verdict = egress.verdict().and(ingress.verdict());
    Explanation { flow: *flow, verdict, egress, ingress }
}

impl Side {
    /// Whether this side allows the flow.
    pub fn verdict(&self) -> Verdict {
        match self {
            Side::Judged(judgement) => judgement.verdict,
            Side::NoPod | Side::Itself(_) | Side::FromNode(..) => Verdict::Allow,
        }
    }
}

fn explain_side(program: &Program, flow: &Flow, direction: Direction) -> Side {
    let (here, there) = flow.ends(direction);
    let Some((id, endpoint)) = program.owner(here) else { return Side::NoPod };
    if endpoint.addresses.contains(&there) {
        return Side::Itself(id.clone());
    }
    if let Some(node) = &endpoint.node
        && direction == Direction::Ingress
        && program.is_own_node(endpoint, there)
    {
        return Side::FromNode(id.clone(), node.clone());
    }
    Side::Judged(judge(program, flow, direction, id, endpoint))
}

fn judge(
    program: &Program,
    flow: &Flow,
    direction: Direction,
    id: &PodId,
    endpoint: &Endpoint,
) -> Judgement {
    let chain = endpoint.rules.chain(direction);
    let isolating = chain.isolation.as_ref().map(SectionList::to_vec).unwrap_or_default();
    let first = |sections: &[Arc<Section>]| first_match(program, sections, flow);
    let admin = first(&chain.admin);
    let (reason, passed) = match admin {
        Some(cited) if cited.rule().action != Action::Pass => (Reason::Admin(cited), None),
        passed => {
            let reason = match &chain.isolation {
                Some(sections) if sections.is_empty() => Reason::Contested,
                Some(_) => first(&isolating).map_or(Reason::Isolated, Reason::Allowed),
                None => first(&chain.baseline).map_or(Reason::Default, Reason::Baseline),
            };
            (reason, passed)
        }
    };
    let verdict = match &reason {
        Reason::Admin(cited) | Reason::Baseline(cited) if cited.rule().action == Action::Deny => {
            Verdict::Deny
        }
        Reason::Isolated | Reason::Contested => Verdict::Deny,
        Reason::Admin(_) | Reason::Baseline(_) | Reason::Allowed(_) | Reason::Default => {
            Verdict::Allow
        }
    };
    let misses =
        if reason == Reason::Isolated { misses(program, &isolating, flow) } else { Vec::new() };
    let passing = passed.as_ref().map(|passed| &passed.section);
    let silent = match reason {
        Reason::Default => chain.admin.iter().chain(&chain.baseline),
        _ => [].iter().chain(&[]),
    };
    let silent = silent.filter(|section| Some(*section) != passing).cloned().collect();
    Judgement { pod: id.clone(), verdict, reason, passed, isolating, silent, misses }
}

fn cite(sections: &[Arc<Section>]) -> impl Iterator<Item = Cited> {
    sections.iter().flat_map(|section| {
        (0..section.rules.len()).map(|at| Cited { section: section.clone(), at })
    })
}

fn first_match(program: &Program, sections: &[Arc<Section>], flow: &Flow) -> Option<Cited> {
    cite(sections).find(|cited| program.matches(cited.rule(), flow))
}

fn misses(program: &Program, sections: &[Arc<Section>], flow: &Flow) -> Vec<Miss> {
    let miss = |cited: Cited| {
        let rule = cited.rule();
        let (_, there) = flow.ends(rule.origin.direction);
        let missing = match &rule.peers {
            Peers::PortSet(set) => {
                let members = program.sets.get(set)?;
                let at_some_port = |member: &Member| member.address == there;
                members.iter().any(at_some_port).then_some(Missing::Port)?
            }
            _ if cited.at >= cited.section.rules.len() => {
                program.matches_peer(rule, flow).then_some(Missing::PortName)?
            }
            _ if program.matches_peer(rule, flow) => Missing::Port,
            _ if rule.ports.contains(flow.protocol, flow.port) => Missing::Peer,
            _ => return None,
        };
        Some(Miss { cited, missing })
    };
    let idle = sections.iter().flat_map(|section| {
        let first = section.rules.len();
        (first..first + section.idle.len()).map(|at| Cited { section: section.clone(), at })
    });
    let mut misses: Vec<Miss> = cite(sections).chain(idle).filter_map(miss).collect();
    misses.sort_by_key(|miss| miss.missing);
    misses
}
