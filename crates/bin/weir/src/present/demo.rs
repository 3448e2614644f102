//! The demo, as text of at most 80 columns.

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
    demo::{Participant, ProbeResult, Round, Step},
    why,
};

/// The maximum width of a line, in characters.
const MAX_WIDTH: usize = 80;

/// The maximum number of wrong verdicts to print.
const MAX_WRONG: usize = 3;

/// Writes the introduction.
pub(crate) fn opening(out: &mut dyn Write, world: &World, flows: usize) -> io::Result<()> {
    let nodes: BTreeSet<_> = world.pods.values().filter_map(|pod| pod.node.as_ref()).collect();
    let text = format!(
        "This demo builds a cluster of {} on {}. Each of them is a network namespace on this machine. Then it applies \
         network policies, one after the other, as nftables rules, and tries all {flows} connections after each one. It touches \
         nothing outside these namespaces, and removes them at the end.",
        count(world.pods.len(), "pod"),
        count(nodes.len(), "node"),
    );
    wrapped(out, 0, &text)?;
    let legend = "✓ connects   ✗ blocked   + opened by this policy   - closed by this policy";
    writeln!(out, "\n{legend}")?;
    writeln!(out, "\n{}", Painted(STRONG, "Without policies"))
}

/// Writes the next policy: its name, its purpose and its spec.
pub(crate) fn step(out: &mut dyn Write, number: usize, step: &Step) -> io::Result<()> {
    let Step { purpose, lines, policy } = step;
    writeln!(out, "\n{}", Painted(STRONG, format_args!("{number}. {}", policy.id)))?;
    wrapped(out, 3, purpose)?;
    lines.iter().try_for_each(|line| writeln!(out, "   {}", Painted(FAINT, line)))
}

/// Writes the matrix of a round, the number of changes, the reason for one of them, and all wrong
/// verdicts.
pub(crate) fn round(out: &mut dyn Write, ends: &[Participant], round: &Round) -> io::Result<()> {
    writeln!(out)?;
    table::write(out, 2, &matrix(ends, round))?;
    let passed = round.results.iter().filter(|result| result.real == Verdict::Allow).count();
    write!(out, "\n   {passed} of {} pass", count(round.results.len(), "connection"))?;
    let mut example = None;
    for (verdict, what) in [(Verdict::Deny, "closed (-)"), (Verdict::Allow, "opened (+)")] {
        let changed = round.changed(verdict).count();
        if changed > 0 {
            write!(out, ", {}", Painted(of_verdict(verdict), format_args!("{changed} {what}")))?;
        }
        example = example.or_else(|| round.changed(verdict).find(|result| !result.is_wrong()));
    }
    writeln!(out)?;
    wrong(out, ends, round)?;
    match example {
        None => Ok(()),
        Some(result) => reason(out, ends, result),
    }
}

/// Writes the verdicts of the kernel that differ from the compiled rules.
fn wrong(out: &mut dyn Write, ends: &[Participant], round: &Round) -> io::Result<()> {
    let all: Vec<&ProbeResult> = round.wrong().collect();
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "   {}", Painted(BAD, format_args!("{}:", differing(all.len()))))?;
    for ProbeResult { real, explanation, .. } in all.iter().take(MAX_WRONG) {
        let Explanation { flow, verdict, .. } = explanation;
        let flow = connection(ends, flow);
        let verb = |verdict: Verdict| match verdict {
            Verdict::Allow => "allows",
            Verdict::Deny => "denies",
        };
        let rules = verdict.to_string();
        let text = format!("{flow}: the kernel {} it, the rules {rules} it", verb(*real));
        wrapped(out, 5, &text)?;
    }
    match all.len().saturating_sub(MAX_WRONG) {
        0 => Ok(()),
        more => writeln!(out, "     and {more} more"),
    }
}

/// Writes the report of the kernel about a connection that it denied.
pub(crate) fn dropped(
    out: &mut dyn Write,
    ends: &[Participant],
    result: &ProbeResult,
    reported: Option<&str>,
) -> io::Result<()> {
    let connection = connection(ends, &result.explanation.flow);
    writeln!(out, "\n{}", Painted(STRONG, format_args!("A dropped packet: {connection}")))?;
    wrapped(out, 3, "The node reports each packet that it drops; `weir drops` lists them.")?;
    match reported {
        Some(packet) => wrapped(out, 3, &format!("Report: {packet}."))?,
        None => wrapped(out, 3, "The node reported nothing this time.")?,
    }
    wrapped(out, 3, &format!("Reason: {}.", why::line(&result.explanation)))
}

/// Draws the final matrix as a picture.
pub(crate) fn summary(
    out: &mut dyn Write,
    ends: &[Participant],
    round: &Round,
    policies: usize,
) -> io::Result<()> {
    let title = format_args!("The result of {}", count(policies, "policy"));
    writeln!(out, "\n{}\n", Painted(STRONG, title))?;
    let first = ends.iter().map(|end| name(end).chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = ends.iter().map(|end| end.name.chars().count()).collect();
    let line = |left: &str, middle: &str, right: &str| {
        let columns: Vec<String> =
            [first].iter().chain(&widths).map(|width| "─".repeat(width + 2)).collect();
        format!("  {left}{}{right}", columns.join(middle))
    };
    writeln!(out, "{}", line("┌", "┬", "┐"))?;
    write!(out, "  │ {:first$} │", "from ↓  to →")?;
    for end in ends {
        write!(out, " {} │", Painted(STRONG, &end.name))?;
    }
    writeln!(out, "\n{}", line("├", "┼", "┤"))?;
    let mut results = round.results.iter();
    for from in ends {
        let pad = first - name(from).chars().count();
        write!(out, "  │ {}{:pad$} │", Painted(STRONG, name(from)), "")?;
        for (to, width) in ends.iter().zip(&widths) {
            let (mark, style) = if from.address == to.address {
                ("·", FAINT)
            } else {
                match results.next().map_or(Verdict::Deny, |result| result.real) {
                    Verdict::Allow => ("✓", GOOD),
                    Verdict::Deny => ("✗", BAD),
                }
            };
            let space = width.saturating_sub(1);
            let left = space / 2;
            write!(
                out,
                " {:left$}{}{:right$} │",
                "",
                Painted(style, mark),
                "",
                right = space - left
            )?;
        }
        writeln!(out)?;
    }
    writeln!(out, "{}", line("└", "┴", "┘"))
}

/// `1 verdict … differs`, `2 verdicts … differ`.
fn differing(wrong: usize) -> String {
    let verb = if wrong == 1 { "differs" } else { "differ" };
    format!("{} {verb} from the compiled rules", count(wrong, "verdict"))
}

/// Writes the totals, and commands to try next.
pub(crate) fn closing(out: &mut dyn Write, rounds: &[Round]) -> io::Result<()> {
    let tried = rounds.iter().map(|round| round.results.len()).sum();
    let wrong: usize = rounds.iter().map(|round| round.wrong().count()).sum();
    let tried = count(tried, "real connection");
    let verdict = match wrong {
        0 => Painted(GOOD, "every verdict matches the compiled rules".to_owned()),
        _ => Painted(BAD, differing(wrong)),
    };
    writeln!(out, "\n{tried} tried, {verdict}.")?;
    if wrong > 0 {
        writeln!(out, "This is a bug in weir, or a kernel without nftables; please report it.")?;
    }
    writeln!(out, "\nTry it with your own manifests:")?;
    let rows = [
        ("weir matrix -f DIR", "which pods reach which"),
        ("weir explain -f DIR --from A --to B --port 80", "the reason, and a fix"),
        ("weir test FILE --datapath nftables", "real connections, as here"),
    ];
    let rows: Vec<Vec<Cell>> =
        rows.into_iter().map(|(command, results)| vec![command.into(), results.into()]).collect();
    table::write(out, 2, &rows)
}

/// The matrix of a round: participants as rows, their ports as columns.
fn matrix(ends: &[Participant], round: &Round) -> Vec<Vec<Cell>> {
    let port = |end: &Participant| match end.protocol {
        Protocol::Tcp => end.port.to_string(),
        other => format!("{}/{other}", end.port),
    };
    let head = |first: &str, of: &dyn Fn(&Participant) -> Cell| {
        let mut row = vec![Cell::new(first, FAINT)];
        row.extend(ends.iter().map(of));
        row
    };
    let mut rows = vec![
        head("", &|end| Cell::new(&end.namespace, FAINT)),
        head("from ↓  to →", &|end| Cell::new(&end.name, STRONG)),
        head("port", &|end| Cell::new(port(end), FAINT)),
    ];
    let mut results = round.results.iter();
    for from in ends {
        let mut row = vec![Cell::new(name(from), STRONG)];
        for to in ends {
            row.push(if from.address == to.address {
                Cell::new("·", FAINT)
            } else {
                results.next().map_or_else(|| "".into(), cell)
            });
        }
        rows.push(row);
    }
    rows
}

fn cell(result: &ProbeResult) -> Cell {
    let style = of_verdict(result.real);
    let changed = result.before.is_some_and(|before| before != result.real);
    match (result.real, changed) {
        (Verdict::Allow, false) => Cell::new("✓", style),
        (Verdict::Deny, false) => Cell::new("✗", style),
        (Verdict::Allow, true) => Cell::new("✓+", style.bold()),
        (Verdict::Deny, true) => Cell::new("✗-", style.bold()),
    }
}

fn reason(out: &mut dyn Write, ends: &[Participant], result: &ProbeResult) -> io::Result<()> {
    let ProbeResult { real, explanation, .. } = result;
    let connection = connection(ends, &explanation.flow);
    let state = match real {
        Verdict::Allow => "open",
        Verdict::Deny => "closed",
    };
    writeln!(out, "   Why is {} {state}?", Painted(STRONG, connection))?;
    wrapped(out, 5, &why::line(explanation))
}

fn connection(ends: &[Participant], flow: &Flow) -> String {
    let named = |address: IpAddr| {
        ends.iter().find(|end| end.address == address).map_or_else(|| address.to_string(), name)
    };
    format!("{} → {} {}/{}", named(flow.from), named(flow.to), flow.port, flow.protocol)
}

fn name(end: &Participant) -> String {
    match &*end.namespace {
        "" => end.name.clone(),
        namespace => format!("{namespace}/{}", end.name),
    }
}

/// Writes a text, wrapped at `MAX_WIDTH`.
fn wrapped(out: &mut dyn Write, indent: usize, text: &str) -> io::Result<()> {
    let mut line = String::new();
    for word in text.split_whitespace() {
        let width = indent + line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && width > MAX_WIDTH {
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
