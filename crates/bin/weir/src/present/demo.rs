//! The demo, as text that fits into 80 columns.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    net::IpAddr,
};

use weir_engine::Explanation;
use weir_model::{Flow, Protocol, Verdict, World};

use super::{
    count,
    plain::Plain,
    style::{BAD, FAINT, GOOD, Painted, STRONG, of_verdict},
    table::{self, Cell},
};
use crate::{
    demo::{Answer, End, Round, Step},
    why,
};

/// Letters in a line.
const WIDTH: usize = 80;

/// Answers that are not as the rules say to write out before saying how many more there are.
const SHOWN: usize = 3;

/// Writes what is going to happen.
pub(crate) fn opening(out: &mut dyn Write, world: &World, flows: usize) -> io::Result<()> {
    let nodes: BTreeSet<_> = world.pods.values().filter_map(|pod| pod.node.as_ref()).collect();
    let text = format!(
        "This builds a cluster of {} on {}, each a network namespace of this machine. Then it loads policies into the \
         kernel, one after the other, as nftables rules, and tries all {flows} connections for real each time. Nothing outside these \
         namespaces is touched, and at the end they are gone.",
        count(world.pods.len(), "pod"),
        count(nodes.len(), "node"),
    );
    wrapped(out, 0, &text)?;
    writeln!(out, "\n{}", Painted(STRONG, "Without policies"))
}

/// Writes which policy comes next, what it is for and what it says.
pub(crate) fn step(out: &mut dyn Write, number: usize, step: &Step) -> io::Result<()> {
    let Step { purpose, lines, policy } = step;
    writeln!(out, "\n{}", Painted(STRONG, format_args!("{number}. {}", policy.id)))?;
    wrapped(out, 3, purpose)?;
    lines.iter().try_for_each(|line| writeln!(out, "   {}", Painted(FAINT, line)))
}

/// Writes who reaches whom, what changed, why one of the changes came about, and what is not as the rules say.
pub(crate) fn round(out: &mut dyn Write, ends: &[End], round: &Round) -> io::Result<()> {
    writeln!(out)?;
    table::write(out, 2, &matrix(ends, round))?;
    let passed = round.answers.iter().filter(|answer| answer.real == Verdict::Allow).count();
    write!(out, "\n   {passed} of {} pass", count(round.answers.len(), "connection"))?;
    let mut example = None;
    for (verdict, what) in [(Verdict::Deny, "closed (-)"), (Verdict::Allow, "opened (+)")] {
        let changed = round.changed(verdict).count();
        if changed > 0 {
            write!(out, ", {}", Painted(of_verdict(verdict), format_args!("{changed} {what}")))?;
        }
        example = example.or_else(|| round.changed(verdict).find(|answer| !answer.is_wrong()));
    }
    writeln!(out)?;
    wrong(out, ends, round)?;
    match example {
        None => Ok(()),
        Some(answer) => reason(out, ends, answer),
    }
}

/// Writes what is not as the rules say.
fn wrong(out: &mut dyn Write, ends: &[End], round: &Round) -> io::Result<()> {
    let all: Vec<&Answer> = round.wrong().collect();
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "   {}", Painted(BAD, format_args!("{} not as the rules say:", all.len())))?;
    for Answer { real, explanation, .. } in all.iter().take(SHOWN) {
        let Explanation { flow, verdict, .. } = explanation;
        let flow = connection(ends, flow);
        wrapped(out, 5, &format!("{flow}: the kernel says {real}, the rules {verdict}"))?;
    }
    match all.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "     and {more} more"),
    }
}

/// Writes what the kernel reported about a connection that it refused.
pub(crate) fn dropped(
    out: &mut dyn Write,
    ends: &[End],
    answer: &Answer,
    reported: Option<&str>,
) -> io::Result<()> {
    let connection = connection(ends, &answer.explanation.flow);
    writeln!(out, "\n{}", Painted(STRONG, format_args!("A drop: {connection}")))?;
    wrapped(out, 3, "The node reports each packet that it drops; `weir drops` shows them.")?;
    match reported {
        Some(words) => wrapped(out, 3, &format!("Reported: {words}."))?,
        None => wrapped(out, 3, "This time nothing was reported.")?,
    }
    wrapped(out, 3, &format!("That is: {}.", why::line(&answer.explanation)))
}

/// Writes how it went, and what to try next.
pub(crate) fn closing(out: &mut dyn Write, rounds: &[Round]) -> io::Result<()> {
    let tried = rounds.iter().map(|round| round.answers.len()).sum();
    let wrong: usize = rounds.iter().map(|round| round.wrong().count()).sum();
    let tried = count(tried, "real connection");
    let verdict = match wrong {
        0 => Painted(GOOD, "each went as the rules say".to_owned()),
        _ => Painted(BAD, format!("{wrong} not as the rules say")),
    };
    writeln!(out, "\n{tried} tried, {verdict}; nothing is left behind.")?;
    if wrong > 0 {
        writeln!(
            out,
            "That is a mistake in weir, or a kernel without nftables; please report it."
        )?;
    }
    writeln!(out, "\nNext, with manifests of your own:")?;
    let rows = [
        ("weir matrix -f DIR", "who reaches whom"),
        ("weir explain -f DIR --from A --to B --port 80", "why, and what would allow it"),
        ("weir test FILE --datapath nftables", "real connections, as here"),
    ];
    let rows: Vec<Vec<Cell>> =
        rows.into_iter().map(|(command, answers)| vec![command.into(), answers.into()]).collect();
    table::write(out, 2, &rows)
}

/// Who reaches whom: ends in rows, their ports in columns.
fn matrix(ends: &[End], round: &Round) -> Vec<Vec<Cell>> {
    let port = |end: &End| match end.protocol {
        Protocol::Tcp => end.port.to_string(),
        other => format!("{}/{other}", end.port),
    };
    let head = |first: &str, of: &dyn Fn(&End) -> Cell| {
        let mut row = vec![Cell::new(first, FAINT)];
        row.extend(ends.iter().map(of));
        row
    };
    let mut rows = vec![
        head("", &|end| Cell::new(&end.namespace, FAINT)),
        head("from ↓  to →", &|end| Cell::new(&end.name, STRONG)),
        head("port", &|end| Cell::new(port(end), FAINT)),
    ];
    let mut answers = round.answers.iter();
    for from in ends {
        let mut row = vec![Cell::new(name(from), STRONG)];
        for to in ends {
            row.push(match from.address == to.address {
                true => Cell::new("·", FAINT),
                false => answers.next().map_or_else(|| "".into(), cell),
            });
        }
        rows.push(row);
    }
    rows
}

fn cell(answer: &Answer) -> Cell {
    let style = of_verdict(answer.real);
    let changed = answer.before.is_some_and(|before| before != answer.real);
    match (answer.real, changed) {
        (Verdict::Allow, false) => Cell::new("✓", style),
        (Verdict::Deny, false) => Cell::new("✗", style),
        (Verdict::Allow, true) => Cell::new("✓+", style.bold()),
        (Verdict::Deny, true) => Cell::new("✗-", style.bold()),
    }
}

fn reason(out: &mut dyn Write, ends: &[End], answer: &Answer) -> io::Result<()> {
    let Answer { real, explanation, .. } = answer;
    let connection = connection(ends, &explanation.flow);
    let state = match real {
        Verdict::Allow => "open",
        Verdict::Deny => "closed",
    };
    writeln!(out, "   Why is {} {state}?", Painted(STRONG, connection))?;
    wrapped(out, 5, &why::line(explanation))
}

fn connection(ends: &[End], flow: &Flow) -> String {
    let named = |address: IpAddr| {
        ends.iter().find(|end| end.address == address).map_or_else(|| address.to_string(), name)
    };
    format!("{} → {} {}/{}", named(flow.from), named(flow.to), flow.port, flow.protocol)
}

fn name(end: &End) -> String {
    match &*end.namespace {
        "" => end.name.clone(),
        namespace => format!("{namespace}/{}", end.name),
    }
}

/// Writes a text in lines that are not too long.
fn wrapped(out: &mut dyn Write, indent: usize, text: &str) -> io::Result<()> {
    let mut line = String::new();
    for word in text.split_whitespace() {
        let width = indent + line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && width > WIDTH {
            writeln!(out, "{:indent$}{}", "", Plain(&line))?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{:indent$}{}", "", Plain(&line))
}
