//! Why a connection passes or not, as data.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use serde::Serialize;
use weir_engine::{Cited, Explanation, Judgement, Miss, Missing, Reason, Remedy, Side};
use weir_model::{
    Direction, Finding, Flow, IpFamily, Peers, Pod, Policy, PortMatch, Protocol, Rule, Section,
    Verdict, Who, World,
};

use super::findings;
use crate::{end::End, source::Loaded, why};

/// An explanation as it is printed for programs.
#[derive(Serialize)]
pub(crate) struct Story {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) port: u16,
    pub(super) protocol: String,
    pub(super) family: String,
    pub(super) verdict: String,
    pub(super) why: String,
    pub(super) egress: SideOf,
    pub(super) ingress: SideOf,
    /// What would allow it; only if it is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<RemedyOf>,
    /// What reading the input found, and what is odd about the policies that refuse it.
    pub(super) findings: Vec<findings::Report>,
    /// What is special about the ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
    #[serde(skip)]
    pub(super) odd: Vec<Finding>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SideOf {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<String>,
    pub(super) address: String,
    /// Whether the manifests gave no address, so that one was made up.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) made_up: bool,
    pub(super) verdict: String,
    pub(super) reason: &'static str,
    pub(super) why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<RuleOf>,
    /// The admin rule that handed the decision on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) passed: Option<RuleOf>,
    pub(super) isolated_by: Vec<PolicyOf>,
    pub(super) nearest: Vec<MissOf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicyOf {
    pub(super) policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
    /// The object that a controller made it for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) made_for: Option<String>,
}

#[derive(Serialize)]
pub(super) struct RuleOf {
    pub(super) policy: String,
    pub(super) rule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
    pub(super) action: String,
    pub(super) peers: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) ports: String,
}

#[derive(Serialize)]
pub(super) struct MissOf {
    pub(super) missing: &'static str,
    /// What keeps it from matching, in words.
    pub(super) why: String,
    #[serde(flatten)]
    pub(super) rule: RuleOf,
}

#[derive(Serialize)]
pub(super) struct RemedyOf {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) change: Option<RuleOf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) add: Vec<String>,
    /// Why nothing can be added for one of the ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// What is known about the ends and the policies beside the explanation itself.
pub(crate) struct Beside<'a> {
    /// The two ends, as they were asked about.
    pub(crate) ends: [&'a End; 2],
    /// The world they are in.
    pub(crate) loaded: &'a Loaded,
    /// What is odd about the policies.
    pub(crate) odd: Vec<Finding>,
    /// What is special about the ends.
    pub(crate) notes: Vec<String>,
}

impl Story {
    /// The explanation of a connection between two ends.
    pub(crate) fn new(explanation: &Explanation, remedy: &Remedy, beside: Beside<'_>) -> Self {
        let Beside { ends, loaded, odd, notes } = beside;
        let mut findings = findings::reports(&loaded.findings);
        findings.extend(odd.iter().map(findings::Report::from));
        let Explanation { flow, verdict, .. } = explanation;
        let [from, to] = ends;
        let name = |end: &End| match end {
            End::Pod(id, _) => id.to_string(),
            End::Address(address) => address.to_string(),
        };
        Story {
            from: name(from),
            to: name(to),
            port: flow.port,
            protocol: flow.protocol.to_string(),
            verdict: verdict.to_string(),
            why: why::line(explanation),
            egress: side(explanation, Direction::Egress, loaded),
            ingress: side(explanation, Direction::Ingress, loaded),
            family: IpFamily::from(flow.to).to_string(),
            remedy: (*verdict == Verdict::Deny).then(|| remedy_of(remedy, ends, loaded)),
            findings,
            notes,
            odd,
        }
    }
}

fn remedy_of(remedy: &Remedy, ends: [&End; 2], loaded: &Loaded) -> RemedyOf {
    let policies = match remedy {
        Remedy::Add(policies) => policies,
        Remedy::Change(cited) => {
            return RemedyOf { change: Some(rule(cited)), add: Vec::new(), note: None };
        }
    };
    // A policy must not name an address that nobody has, or that is another's tomorrow.
    let passing = |policy: &Policy| {
        let rules = Direction::BOTH.into_iter().filter_map(|direction| policy.rules(direction));
        let peers = rules.flatten().flat_map(|rule| rule.peers.iter().flatten());
        peers.into_iter().find_map(|peer| match &peer.who {
            Who::Block(block) => not_lasting(block.net.addr(), ends, loaded),
            _ => None,
        })
    };
    RemedyOf {
        change: None,
        add: policies.iter().filter(|p| passing(p).is_none()).map(weir_api::manifest).collect(),
        note: policies.iter().find_map(passing),
    }
}

/// Why an address is none that a policy should name.
fn not_lasting(address: IpAddr, ends: [&End; 2], loaded: &Loaded) -> Option<String> {
    let whose = |pod: &&Pod| pod.addresses.contains(&address);
    if loaded.made_up.contains(&address) {
        let named = ends.into_iter().filter_map(|end| end.pod(loaded)).find(whose);
        let pod = named.or_else(|| loaded.world.pods.values().find(whose))?;
        return Some(format!(
            "{} has no address of its own yet: once it has one, allow that of its node with an ipBlock",
            pod.id
        ));
    }
    let mut owners = loaded.world.pods.values().filter(whose);
    let last = owners.clone().find(|pod| pod.finished)?;
    owners.all(|pod| pod.finished).then(|| {
        format!(
            "{address} was the address of {}, which has none any more: it may be anyone's next",
            last.id
        )
    })
}

fn miss_of(miss: &Miss, flow: &Flow, judgement: &Judgement, world: &World) -> MissOf {
    let mut told = rule(&miss.cited);
    let Rule { peers, origin, .. } = miss.cited.rule();
    let there = match origin.direction {
        Direction::Ingress => flow.from,
        Direction::Egress => flow.to,
    };
    let (missing, why) = match (miss.missing, peers) {
        (Missing::Port, _) => ("port", "the port does not fit".to_owned()),
        (Missing::PortName, _) => {
            let names = port_names(&miss.cited, world);
            told.ports = format!("port {}", names.join(", "));
            let pod = &judgement.pod;
            let known = world.pods.get(pod).map(|pod| pod.ports.as_slice()).unwrap_or_default();
            let known: BTreeSet<&str> = known.iter().map(|port| &*port.name).collect();
            let known = match known.is_empty() {
                true => "it names none".to_owned(),
                false => format!("it names {}", Vec::from_iter(known).join(", ")),
            };
            let what = format!("asks for a port named {}", names.join(" or "));
            ("port name", format!("{what}, which {pod} does not have ({known})"))
        }
        (Missing::Peer, Peers::Block(block)) => {
            let taken = block.except.iter().find(|except| except.contains(&there));
            let (own, other) = (IpFamily::from(block.net.addr()), IpFamily::from(there));
            let why = match taken {
                Some(except) => format!("{there} is in its exception {except}"),
                None if own != other => format!("{there} is {other}, the block {own}"),
                None => format!("{there} is not in the block"),
            };
            ("peer", why)
        }
        (Missing::Peer, _) => ("peer", "the peer does not fit".to_owned()),
    };
    MissOf { missing, why, rule: told }
}

/// The names of ports that a rule was written with.
fn port_names(cited: &Cited, world: &World) -> Vec<String> {
    let origin = &cited.rule().origin;
    let policy = world.policies.get(&cited.section.policy);
    let rules = policy.and_then(|policy| policy.rules(origin.direction)).unwrap_or_default();
    let rule = rules.iter().find(|rule| rule.index == origin.rule);
    let ports = rule.and_then(|rule| rule.ports.as_deref()).unwrap_or_default();
    let names = ports.iter().filter_map(|port| match &port.ports {
        PortMatch::Named { name, protocol } => Some(match protocol {
            None | Some(Protocol::Tcp) => name.to_string(),
            Some(protocol) => format!("{name}/{protocol}"),
        }),
        PortMatch::Range(_) => None,
    });
    names.collect()
}

fn side(explanation: &Explanation, direction: Direction, loaded: &Loaded) -> SideOf {
    let side = explanation.side(direction);
    let address = match direction {
        Direction::Egress => explanation.flow.from,
        Direction::Ingress => explanation.flow.to,
    };
    let mut told = SideOf {
        pod: None,
        address: address.to_string(),
        made_up: loaded.made_up.contains(&address),
        verdict: side.verdict().to_string(),
        reason: "no-pod",
        why: "no pod has this address, so no policy is asked".to_owned(),
        rule: None,
        passed: None,
        isolated_by: Vec::new(),
        nearest: Vec::new(),
    };
    match side {
        Side::NoPod => (),
        Side::Itself(pod) => {
            told.pod = Some(pod.to_string());
            told.reason = "itself";
            told.why = "a pod always reaches itself".to_owned();
        }
        Side::OwnNode(pod, node) => {
            told.pod = Some(pod.to_string());
            told.reason = "own-node";
            told.why = format!("it runs on node {node}; a pod and its node are never kept apart");
        }
        Side::Judged(judgement) => judged(&mut told, explanation, direction, judgement, loaded),
    }
    told
}

fn judged(
    told: &mut SideOf,
    explanation: &Explanation,
    direction: Direction,
    judgement: &Judgement,
    loaded: &Loaded,
) {
    told.pod = Some(judgement.pod.to_string());
    told.why = why::reason(direction, judgement);
    let (reason, cited) = match &judgement.reason {
        Reason::Admin(cited) => ("admin", Some(cited)),
        Reason::Allowed(cited) => ("allowed", Some(cited)),
        Reason::Isolated => ("isolated", None),
        Reason::Baseline(cited) => ("baseline", Some(cited)),
        Reason::Default => ("default", None),
    };
    told.reason = reason;
    told.rule = cited.map(rule);
    told.passed = judgement.passed.as_ref().map(rule);
    told.isolated_by = judgement.isolating.iter().map(|of| policy(of, loaded)).collect();
    told.nearest = judgement
        .misses
        .iter()
        .map(|miss| miss_of(miss, &explanation.flow, judgement, &loaded.world))
        .collect();
}

fn policy(section: &Arc<Section>, loaded: &Loaded) -> PolicyOf {
    PolicyOf {
        policy: section.policy.to_string(),
        place: why::place(section, 0),
        made_for: loaded.makers.get(&section.policy).map(ToString::to_string),
    }
}

fn rule(cited: &Cited) -> RuleOf {
    let Rule { peers, ports, action, origin } = cited.rule();
    RuleOf {
        policy: cited.section.policy.to_string(),
        rule: origin.to_string(),
        place: why::place(&cited.section, origin.line),
        action: action.to_string(),
        peers: peers.to_string(),
        ports: match peers {
            // The set itself names the port.
            Peers::PortSet(_) => String::new(),
            _ => ports.to_string(),
        },
    }
}
