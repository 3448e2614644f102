//! The reason for a verdict, in one line.

use weir_engine::{Cited, Explanation, Judgement, Missing, Reason, Side};
use weir_model::{Direction, Location, Section, Verdict};

/// The reason for a verdict, in one line: the sides that deny the flow, or both if none does.
pub fn line(explanation: &Explanation) -> String {
    let sides = [Direction::Egress, Direction::Ingress].map(|d| (d, explanation.side(d)));
    let reasons: Vec<String> = sides
        .iter()
        .filter(|(_, side)| side.verdict() == explanation.verdict)
        .filter_map(|(direction, side)| side_reason(*direction, side))
        .collect();
    if reasons.is_empty() {
        "no policy applies: neither end is a pod".to_owned()
    } else {
        reasons.join("; ")
    }
}

fn side_reason(direction: Direction, side: &Side) -> Option<String> {
    match side {
        Side::NoPod => None,
        Side::Itself(pod) => Some(format!("{pod} always reaches itself")),
        Side::FromNode(pod, node) => {
            Some(format!("{pod} runs on node {node}, and a node always reaches its pods"))
        }
        Side::Judged(judgement) => {
            Some(format!("{direction} of {}: {}", judgement.pod, reason(direction, judgement)))
        }
    }
}

/// The reason for the verdict at one pod.
pub fn reason(direction: Direction, judgement: &Judgement) -> String {
    match &judgement.reason {
        Reason::Admin(cited) | Reason::Baseline(cited) => {
            format!("{} by {}", past(judgement.verdict), rule(cited))
        }
        Reason::Allowed(cited) => format!("allowed by {}", rule(cited)),
        Reason::Default if judgement.silent.is_empty() => {
            format!("no policy isolates it for {direction}")
        }
        Reason::Default => format!(
            "no rule of {} matches, and no NetworkPolicy isolates it for {direction}",
            policies(&judgement.silent)
        ),
        Reason::Contested => "another pod has the same address, so weir allows nothing".to_owned(),
        Reason::Isolated => {
            let mut text = format!("isolated by {}", policies(&judgement.isolating));
            match judgement.misses.first() {
                None => text.push_str(", and no rule matches"),
                Some(miss) => {
                    let what = match miss.missing {
                        Missing::Port => "matches except for the port",
                        Missing::PortName => "uses a port name that the pod does not define",
                        Missing::Peer => "matches except for the peer",
                    };
                    text.push_str(&format!(", and no rule matches; {} {what}", rule(&miss.cited)));
                }
            }
            text
        }
    }
}

/// `allowed` or `denied`.
pub fn past(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allowed",
        Verdict::Deny => "denied",
    }
}

/// A rule: its policy, its index and its location.
pub fn rule(cited: &Cited) -> String {
    let location = location(&cited.section, cited.rule().origin.line);
    let location = location.map(|location| format!(" ({location})")).unwrap_or_default();
    format!("{} {}{location}", cited.section.policy, cited.rule().origin)
}

/// The file and line inside a policy.
pub fn location(section: &Section, line: u32) -> Option<Location> {
    let mut location = section.location.clone()?;
    if line > 0 {
        location.line = line;
    }
    Some(location)
}

fn policies(sections: &[std::sync::Arc<Section>]) -> String {
    const MAX_POLICIES: usize = 3;
    let name = |section: &std::sync::Arc<Section>| {
        let location =
            section.location.as_ref().map(|location| format!(" ({location})")).unwrap_or_default();
        format!("{}{location}", section.policy)
    };
    let mut names: Vec<String> = sections.iter().take(MAX_POLICIES).map(name).collect();
    if sections.len() > MAX_POLICIES {
        names.push(format!("{} more", sections.len() - MAX_POLICIES));
    }
    names.join(" and ")
}
