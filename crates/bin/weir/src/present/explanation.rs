//! The explanation of a connection, as text.

use std::io::{self, Write};

use weir_engine::{Explanation, Side};
use weir_model::{Direction, Verdict};

use super::{
    explanation_view::{
        self, ExplanationView, InputFacts, NearMissView, PolicyView, RemedyView, RuleView, SideView,
    },
    findings,
    plain::Plain,
    service_view,
    style::{FAINT, Painted, STRONG, of_verdict},
    table::{self, Cell},
    wrap,
};
use crate::why;

/// The maximum number of near misses to print.
const MAX_NEAREST: usize = 3;
/// The maximum number of findings to print.
const MAX_FINDINGS: usize = 5;

/// Writes the explanation, the verdict first.
pub(crate) fn write(
    out: &mut dyn Write,
    explanation: &Explanation,
    view: &ExplanationView,
) -> io::Result<()> {
    if let Some(service) = &view.service {
        service_view::write(out, service)?;
    }
    if let Some(route) = &view.route {
        service_view::write_route(out, route)?;
    }
    let verdict = Painted(of_verdict(explanation.verdict), why::past(explanation.verdict));
    let ExplanationView { from, to, port, protocol, .. } = view;
    let head = format!("{verdict}: {} → {} {port}/{protocol}", Plain(from), Plain(to));
    wrap::write(out, &head, 0)?;
    for note in &view.notes {
        wrap::write(out, &Painted(FAINT, note).to_string(), 0)?;
    }
    for (direction, side) in
        [(Direction::Egress, &view.egress), (Direction::Ingress, &view.ingress)]
    {
        let verdict = explanation.side(direction).verdict();
        writeln!(out)?;
        write_side(out, direction, verdict, side)?;
    }
    if !view.policy_findings.is_empty() {
        writeln!(out, "\n{}", Painted(STRONG, "worth a look:"))?;
        findings::write(out, view.policy_findings.iter().take(MAX_FINDINGS))?;
        if view.policy_findings.len() > MAX_FINDINGS {
            writeln!(out, "and {} more: weir lint", view.policy_findings.len() - MAX_FINDINGS)?;
        }
    }
    match &view.remedy {
        None => Ok(()),
        Some(remedy) => write_remedy(out, remedy),
    }
}

/// The sides of a connection that decide its verdict, as text.
pub(crate) fn deciding_sides(
    explanation: &Explanation,
    facts: InputFacts<'_>,
) -> io::Result<String> {
    let mut lines = Vec::new();
    for direction in [Direction::Egress, Direction::Ingress] {
        let side = explanation.side(direction);
        if side.verdict() == explanation.verdict && *side != Side::NoPod {
            let view = explanation_view::side(explanation, direction, facts);
            write_side(&mut lines, direction, side.verdict(), &view)?;
        }
    }
    Ok(String::from_utf8_lossy(&lines).into_owned())
}

fn write_side(
    out: &mut dyn Write,
    direction: Direction,
    verdict: Verdict,
    side: &SideView,
) -> io::Result<()> {
    let SideView {
        pod, address, synthetic, why, rule, passed, isolated_by, nearest, reason, ..
    } = side;
    let origin = if *synthetic { ", synthetic" } else { "" };
    let who = match pod {
        Some(pod) => format!("{direction} of {pod} ({address}{origin})"),
        None if *synthetic => format!("{direction} of {address} (synthetic)"),
        None => format!("{direction} of {address}"),
    };
    let word = Painted(of_verdict(verdict), why::past(verdict));
    wrap::write(out, &format!("{}: {word}", Painted(STRONG, who)), 0)?;
    if let Some(passed) = passed {
        wrap::write(out, &format!("deferred by {}", cite(passed)), 2)?;
        wrap::write(out, &terms(direction, passed), 4)?;
    }
    if let Some(rule) = rule {
        wrap::write(out, &format!("{word} by {}", cite(rule)), 2)?;
        wrap::write(out, &terms(direction, rule), 4)?;
    }
    if !isolated_by.is_empty() {
        writeln!(out, "  isolated by:")?;
        let row = |of: &PolicyView| {
            let origin = of.made_for.as_ref().map(|owner| format!("created for {owner}"));
            let location = of.location.clone().into_iter().chain(origin).collect::<Vec<_>>();
            vec![of.policy.as_str().into(), Cell::new(location.join(", "), FAINT)]
        };
        table::write_list(out, 4, &isolated_by.iter().map(row).collect::<Vec<_>>())?;
    }
    match (*reason, nearest.is_empty()) {
        ("isolated", true) => writeln!(out, "  no rule matches, not even partly")?,
        ("isolated", false) => {
            writeln!(out, "  no rule matches; nearest:")?;
            for NearMissView { why, rule, .. } in nearest.iter().take(MAX_NEAREST) {
                wrap::write(out, &format!("{}: {}", cite(rule), Plain(why)), 4)?;
                wrap::write(out, &terms(direction, rule), 6)?;
            }
            if nearest.len() > MAX_NEAREST {
                writeln!(out, "    and {} more; -o json lists all", nearest.len() - MAX_NEAREST)?;
            }
        }
        (_, _) if rule.is_none() => wrap::write(out, &Plain(why).to_string(), 2)?,
        _ => (),
    }
    Ok(())
}

fn cite(rule: &RuleView) -> String {
    let location =
        rule.location.as_deref().map(|location| format!(" {}", Painted(FAINT, location)));
    format!("{} {}{}", Plain(&rule.policy), rule.rule, location.unwrap_or_default())
}

fn terms(direction: Direction, rule: &RuleView) -> String {
    let word = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let ports = if rule.ports.is_empty() { String::new() } else { format!(", {}", rule.ports) };
    Plain(format_args!("{} {word} {}{ports}", rule.action, rule.peers)).to_string()
}

fn write_remedy(out: &mut dyn Write, remedy: &RemedyView) -> io::Result<()> {
    if let Some(rule) = &remedy.change {
        writeln!(
            out,
            "\nno added policy can override this rule; to allow the connection, change:"
        )?;
        return wrap::write(out, &cite(rule), 2);
    }
    if let Some(note) = &remedy.note {
        writeln!(out)?;
        wrap::write(out, &Plain(note).to_string(), 0)?;
    }
    if remedy.add.is_empty() {
        return Ok(());
    }
    let title = match remedy.note {
        None => "the smallest policy that would allow it:",
        Some(_) => "in addition, the smallest policy that would allow it:",
    };
    writeln!(out, "\n{}", Painted(STRONG, title))?;
    for (at, policy) in remedy.add.iter().enumerate() {
        if at > 0 {
            writeln!(out, "---")?;
        }
        for line in policy.trim_end().lines() {
            writeln!(out, "{}", Plain(line))?;
        }
    }
    Ok(())
}
