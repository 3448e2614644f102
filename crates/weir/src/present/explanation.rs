//! Why a connection passes or not, as text and as data.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    net::IpAddr,
    sync::Arc,
};

use serde::Serialize;
use weir_engine::{Cited, Explanation, Judgement, Missing, Reason, Remedy, Side};
use weir_model::{Direction, Finding, Peers, Rule, Section, Verdict};

use super::{
    findings,
    style::{FAINT, Painted, STRONG, of_verdict},
    table::{self, Cell},
};
use crate::{end::End, why};

/// Rules that nearly matched to write out.
const NEAREST: usize = 3;

/// An explanation as it is printed for programs.
#[derive(Serialize)]
pub(crate) struct Story {
    from: String,
    to: String,
    port: u16,
    protocol: String,
    verdict: String,
    why: String,
    egress: SideOf,
    ingress: SideOf,
    /// What would allow it; only if it is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<RemedyOf>,
    /// What is odd about the policies that refuse it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<findings::Report>,
    /// What is special about the ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    #[serde(skip)]
    odd: Vec<Finding>,
}

#[derive(Serialize)]
struct SideOf {
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    address: String,
    /// Whether the manifests gave no address, so that one was made up.
    #[serde(skip_serializing_if = "is_false")]
    made_up: bool,
    verdict: String,
    reason: &'static str,
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<RuleOf>,
    /// The admin rule that handed the decision on.
    #[serde(skip_serializing_if = "Option::is_none")]
    passed: Option<RuleOf>,
    isolated_by: Vec<PolicyOf>,
    nearest: Vec<MissOf>,
}

#[derive(Serialize)]
struct PolicyOf {
    policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
}

#[derive(Serialize)]
struct RuleOf {
    policy: String,
    rule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    action: String,
    peers: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    ports: String,
}

#[derive(Serialize)]
struct MissOf {
    missing: &'static str,
    #[serde(flatten)]
    rule: RuleOf,
}

#[derive(Serialize)]
struct RemedyOf {
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<RuleOf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    add: Vec<String>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// What is known about the ends and the policies beside the explanation itself.
pub(crate) struct Beside<'a> {
    /// The two ends, as they were asked about.
    pub(crate) ends: [&'a End; 2],
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
        let Beside { ends, odd, notes, made_up } = beside;
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
            findings: odd.iter().map(findings::Report::from).collect(),
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

/// Writes the explanation for people: the verdict first.
pub(crate) fn write(
    out: &mut dyn Write,
    explanation: &Explanation,
    story: &Story,
) -> io::Result<()> {
    let verdict = Painted(of_verdict(explanation.verdict), why::past(explanation.verdict));
    let Story { from, to, port, protocol, .. } = story;
    writeln!(out, "{verdict}: {from} → {to} {port}/{protocol}")?;
    for note in &story.notes {
        writeln!(out, "{}", Painted(FAINT, note))?;
    }
    for (direction, side) in
        [(Direction::Egress, &story.egress), (Direction::Ingress, &story.ingress)]
    {
        let verdict = explanation.side(direction).verdict();
        writeln!(out)?;
        side_to(out, direction, verdict, side)?;
    }
    if !story.odd.is_empty() {
        writeln!(out, "\n{}", Painted(STRONG, "worth a look:"))?;
        findings::write(out, &story.odd)?;
    }
    match &story.remedy {
        None => Ok(()),
        Some(remedy) => remedy_to(out, remedy),
    }
}

fn side_to(
    out: &mut dyn Write,
    direction: Direction,
    verdict: Verdict,
    side: &SideOf,
) -> io::Result<()> {
    let SideOf { pod, address, made_up, why, rule, passed, isolated_by, nearest, reason, .. } =
        side;
    let origin = if *made_up { ", made up" } else { "" };
    let who = match pod {
        Some(pod) => format!("{direction} of {pod} ({address}{origin})"),
        None => format!("{direction} of {address}"),
    };
    let word = Painted(of_verdict(verdict), why::past(verdict));
    writeln!(out, "{}: {word}", Painted(STRONG, who))?;
    if let Some(passed) = passed {
        writeln!(out, "  passed on by {}", cite(passed))?;
        writeln!(out, "    {}", terms(direction, passed))?;
    }
    if let Some(rule) = rule {
        writeln!(out, "  {word} by {}", cite(rule))?;
        writeln!(out, "    {}", terms(direction, rule))?;
    }
    if !isolated_by.is_empty() {
        writeln!(out, "  isolated by")?;
        let row = |of: &PolicyOf| {
            vec![of.policy.as_str().into(), Cell::new(of.place.as_deref().unwrap_or(""), FAINT)]
        };
        table::write(out, 4, &isolated_by.iter().map(row).collect::<Vec<_>>())?;
    }
    match (*reason, nearest.is_empty()) {
        ("isolated", true) => writeln!(out, "  no rule matches, not even in part")?,
        ("isolated", false) => {
            writeln!(out, "  no rule matches; nearest")?;
            for MissOf { missing, rule } in nearest.iter().take(NEAREST) {
                writeln!(out, "    {}: the {missing} does not fit", cite(rule))?;
                writeln!(out, "      {}", terms(direction, rule))?;
            }
        }
        (_, _) if rule.is_none() => writeln!(out, "  {why}")?,
        _ => (),
    }
    Ok(())
}

fn cite(rule: &RuleOf) -> String {
    let place = rule.place.as_deref().map(|place| format!(" {}", Painted(FAINT, place)));
    format!("{} {}{}", rule.policy, rule.rule, place.unwrap_or_default())
}

fn terms(direction: Direction, rule: &RuleOf) -> String {
    let word = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let ports = match rule.ports.is_empty() {
        true => String::new(),
        false => format!(", {}", rule.ports),
    };
    format!("{} {word} {}{ports}", rule.action, rule.peers)
}

fn remedy_to(out: &mut dyn Write, remedy: &RemedyOf) -> io::Result<()> {
    if let Some(rule) = &remedy.change {
        writeln!(out, "\nno policy can come before this rule; to allow it, change")?;
        return writeln!(out, "  {}", cite(rule));
    }
    if remedy.add.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", Painted(STRONG, "the smallest addition that would allow it:"))?;
    for (at, policy) in remedy.add.iter().enumerate() {
        if at > 0 {
            writeln!(out, "---")?;
        }
        writeln!(out, "{}", policy.trim_end())?;
    }
    Ok(())
}
