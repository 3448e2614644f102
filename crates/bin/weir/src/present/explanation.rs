//! Why a connection passes or not, as text.

use std::io::{self, Write};

use weir_engine::Explanation;
use weir_model::{Direction, Verdict};

use super::{
    findings,
    plain::Plain,
    story::{MissOf, PolicyOf, RemedyOf, RuleOf, SideOf, Story},
    style::{FAINT, Painted, STRONG, of_verdict},
    table::{self, Cell},
};
use crate::why;

/// Rules that nearly matched to write out.
const NEAREST: usize = 3;
/// Findings to write out.
const ODD: usize = 5;

/// Writes the explanation for people: the verdict first.
pub(crate) fn write(
    out: &mut dyn Write,
    explanation: &Explanation,
    story: &Story,
) -> io::Result<()> {
    let verdict = Painted(of_verdict(explanation.verdict), why::past(explanation.verdict));
    let Story { from, to, port, protocol, .. } = story;
    writeln!(out, "{verdict}: {} → {} {port}/{protocol}", Plain(from), Plain(to))?;
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
        findings::write(out, story.odd.iter().take(ODD))?;
        if story.odd.len() > ODD {
            writeln!(out, "and {} more: weir lint", story.odd.len() - ODD)?;
        }
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
        None if *made_up => format!("{direction} of {address} (made up)"),
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
            let origin = of.made_for.as_ref().map(|owner| format!("made for {owner}"));
            let place = of.place.clone().into_iter().chain(origin).collect::<Vec<_>>();
            vec![of.policy.as_str().into(), Cell::new(place.join(", "), FAINT)]
        };
        table::write(out, 4, &isolated_by.iter().map(row).collect::<Vec<_>>())?;
    }
    match (*reason, nearest.is_empty()) {
        ("isolated", true) => writeln!(out, "  no rule matches, not even in part")?,
        ("isolated", false) => {
            writeln!(out, "  no rule matches; nearest")?;
            for MissOf { why, rule, .. } in nearest.iter().take(NEAREST) {
                writeln!(out, "    {}: {}", cite(rule), Plain(why))?;
                writeln!(out, "      {}", terms(direction, rule))?;
            }
            if nearest.len() > NEAREST {
                writeln!(out, "    and {} more; -o json lists all", nearest.len() - NEAREST)?;
            }
        }
        (_, _) if rule.is_none() => writeln!(out, "  {}", Plain(why))?,
        _ => (),
    }
    Ok(())
}

fn cite(rule: &RuleOf) -> String {
    let place = rule.place.as_deref().map(|place| format!(" {}", Painted(FAINT, place)));
    format!("{} {}{}", Plain(&rule.policy), rule.rule, place.unwrap_or_default())
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
    Plain(format_args!("{} {word} {}{ports}", rule.action, rule.peers)).to_string()
}

fn remedy_to(out: &mut dyn Write, remedy: &RemedyOf) -> io::Result<()> {
    if let Some(rule) = &remedy.change {
        writeln!(out, "\nno policy can come before this rule; to allow it, change")?;
        return writeln!(out, "  {}", cite(rule));
    }
    if let Some(note) = &remedy.note {
        writeln!(out, "\n{}", Plain(note))?;
    }
    if remedy.add.is_empty() {
        return Ok(());
    }
    let title = match remedy.note {
        None => "the smallest addition that would allow it:",
        Some(_) => "beside that, the smallest addition that would allow it:",
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
