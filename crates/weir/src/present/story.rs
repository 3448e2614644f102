//! Why a connection passes or not, as data.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use serde::Serialize;
use weir_engine::{Cited, Explanation, Judgement, Missing, Reason, Remedy, Side};
use weir_model::{Direction, Finding, Peers, Rule, Section, Verdict};

use super::findings;
use crate::{end::End, why};

/// An explanation as it is printed for programs.
#[derive(Serialize)]
pub(crate) struct Story {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) port: u16,
    pub(super) protocol: String,
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
pub(super) struct PolicyOf {
    pub(super) policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
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
    #[serde(flatten)]
    pub(super) rule: RuleOf,
}

#[derive(Serialize)]
pub(super) struct RemedyOf {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) change: Option<RuleOf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) add: Vec<String>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// What is known about the ends and the policies beside the explanation itself.
pub(crate) struct Beside<'a> {
    /// The two ends, as they were asked about.
    pub(crate) ends: [&'a End; 2],
    /// What reading the input found.
    pub(crate) read: &'a [Finding],
    /// What is odd about the policies.
    pub(crate) odd: Vec<Finding>,
    /// What is special about the ends.
    pub(crate) notes: Vec<String>,
    /// The addresses that were made up.
    pub(crate) made_up: &'a BTreeSet<IpAddr>,
}

impl Story {
    /// The explanation of a connection between two ends.
    pub(crate) fn new(explanation: &Explanation, remedy: &Remedy, beside: Beside<'_>) -> Self {
        let Beside { ends, read, odd, notes, made_up } = beside;
        let mut findings = findings::reports(read);
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
            egress: side(explanation, Direction::Egress, made_up),
            ingress: side(explanation, Direction::Ingress, made_up),
            remedy: (*verdict == Verdict::Deny).then(|| remedy_of(remedy)),
            findings,
            notes,
            odd,
        }
    }
}

fn remedy_of(remedy: &Remedy) -> RemedyOf {
    match remedy {
        Remedy::Add(policies) => {
            RemedyOf { change: None, add: policies.iter().map(weir_api::manifest).collect() }
        }
        Remedy::Change(cited) => RemedyOf { change: Some(rule(cited)), add: Vec::new() },
    }
}

fn side(explanation: &Explanation, direction: Direction, made_up: &BTreeSet<IpAddr>) -> SideOf {
    let side = explanation.side(direction);
    let address = match direction {
        Direction::Egress => explanation.flow.from,
        Direction::Ingress => explanation.flow.to,
    };
    let mut told = SideOf {
        pod: None,
        address: address.to_string(),
        made_up: made_up.contains(&address),
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
        Side::Judged(judgement) => judged(&mut told, direction, judgement),
    }
    told
}

fn judged(told: &mut SideOf, direction: Direction, judgement: &Judgement) {
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
    told.isolated_by = judgement.isolating.iter().map(policy).collect();
    told.nearest = judgement
        .misses
        .iter()
        .map(|miss| MissOf {
            missing: match miss.missing {
                Missing::Port => "port",
                Missing::PortName => "port name",
                Missing::Peer => "peer",
            },
            rule: rule(&miss.cited),
        })
        .collect();
}

fn policy(section: &Arc<Section>) -> PolicyOf {
    PolicyOf { policy: section.policy.to_string(), place: why::place(section, 0) }
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
