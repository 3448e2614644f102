//! Why a flow passes or not, read from the compiled rules.

use std::sync::Arc;

use weir_model::{
    Action, Direction, Endpoint, Flow, Member, Name, Peers, PodId, Program, Rule, Section, Verdict,
};

/// Why a flow passes or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The flow.
    pub flow: Flow,
    /// Whether it passes: both sides must allow it.
    pub verdict: Verdict,
    /// What the rules of the pod that opens it say.
    pub egress: Side,
    /// What the rules of the pod that it reaches say.
    pub ingress: Side,
}

impl Explanation {
    /// One of the sides.
    pub fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// One end of a flow and its say in the matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// No pod is there, so no policy is asked.
    NoPod,
    /// A pod speaks with itself, which is always allowed.
    Itself(PodId),
    /// A pod and the node it runs on, whose traffic is never judged.
    OwnNode(PodId, Name),
    /// The rules of a pod were asked.
    Judged(Judgement),
}

/// What the rules of one pod say about a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The pod.
    pub pod: PodId,
    /// Whether the flow passes here.
    pub verdict: Verdict,
    /// What decided.
    pub reason: Reason,
    /// The admin rule that handed the decision on, if one did.
    pub passed: Option<Cited>,
    /// The NetworkPolicies that isolate the pod in this direction.
    pub isolating: Vec<Arc<Section>>,
    /// The admin policies that speak for the pod in this direction and say nothing about the flow; only if nothing decided.
    pub silent: Vec<Arc<Section>>,
    /// The rules that nearly matched, nearest first; only for a pod that is isolated and refuses.
    pub misses: Vec<Miss>,
}

/// What decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A rule of the admin tier.
    Admin(Cited),
    /// A rule of a NetworkPolicy, which allows.
    Allowed(Cited),
    /// Policies isolate the pod and none of their rules matches.
    Isolated,
    /// A rule of the baseline tier.
    Baseline(Cited),
    /// No policy has anything to say: allowed.
    Default,
}

/// A rule and the policy it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cited {
    /// The section that the policy contributes.
    pub section: Arc<Section>,
    /// The index of the rule in the section; those that are idle come after the others.
    pub at: usize,
}

impl Cited {
    /// The rule itself.
    pub fn rule(&self) -> &Rule {
        let Section { rules, idle, .. } = &*self.section;
        rules.get(self.at).unwrap_or_else(|| &idle[self.at - rules.len()])
    }
}

/// A rule that would have allowed the flow, but for one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The rule.
    pub cited: Cited,
    /// What was missing.
    pub missing: Missing,
}

/// What kept a rule from matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// The peer matches, the port does not.
    Port,
    /// The peer matches, but the pod gives no port the name that the rule asks for.
    PortName,
    /// The port matches, the peer does not.
    Peer,
}

/// Explains what a program does to a flow.
pub fn explain(program: &Program, flow: &Flow) -> Explanation {
    let side = |direction| explain_side(program, flow, direction);
    let (egress, ingress) = (side(Direction::Egress), side(Direction::Ingress));
    let verdict = egress.verdict().and(ingress.verdict());
    Explanation { flow: *flow, verdict, egress, ingress }
}

impl Side {
    /// Whether the flow passes here.
    pub fn verdict(&self) -> Verdict {
        match self {
            Side::Judged(judgement) => judgement.verdict,
            Side::NoPod | Side::Itself(_) | Side::OwnNode(..) => Verdict::Allow,
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
        && program.is_own_node(endpoint, there)
    {
        return Side::OwnNode(id.clone(), node.clone());
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
    let isolating = chain.isolation.clone().unwrap_or_default();
    let first = |sections: &[Arc<Section>]| first_match(program, sections, flow);
    let admin = first(&chain.admin);
    let (reason, passed) = match admin {
        Some(cited) if cited.rule().action != Action::Pass => (Reason::Admin(cited), None),
        passed => {
            let reason = match &chain.isolation {
                Some(sections) => first(sections).map_or(Reason::Isolated, Reason::Allowed),
                None => first(&chain.baseline).map_or(Reason::Default, Reason::Baseline),
            };
            (reason, passed)
        }
    };
    let verdict = match &reason {
        Reason::Admin(cited) | Reason::Baseline(cited) if cited.rule().action == Action::Deny => {
            Verdict::Deny
        }
        Reason::Isolated => Verdict::Deny,
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
