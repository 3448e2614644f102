//! The connections that a change opens and closes, for code hosts.

use std::net::IpAddr;

use weir_engine::{Explanation, Reason, Side};
use weir_model::{Direction, Flow, IpFamily, Location, PortRange, Severity, Verdict};
use weir_reach::{ExampleEnd, ReachState, phrase};

use super::{
    Remark,
    markdown::{Page, code, escape},
};
use crate::{
    diff::{PodsOfOneSide, PolicyDiff},
    present::{count, diff::abbreviated},
    why,
};

const OPENED: &str = "connection-opened";
const CLOSED: &str = "connection-closed";

/// A row of the result: connections of one kind.
struct DiffRow<'a> {
    now: Verdict,
    from: &'a [String],
    to: &'a [String],
    ports: &'a [PortRange],
    family: Option<IpFamily>,
    example: Option<&'a [ExampleEnd; 2]>,
}

/// The rule or policy that decides about a row.
struct Decision {
    location: Option<Location>,
    reason: String,
}

/// A remark for each opened and closed connection, at the line that decides about it.
pub(crate) fn remarks(diff: &PolicyDiff, states: [&ReachState; 2]) -> Vec<Remark> {
    let remark = |row: &DiffRow<'_>, word: &str| {
        let (kind, severity) = match row.now {
            Verdict::Allow => (OPENED, Severity::Warning),
            Verdict::Deny => (CLOSED, Severity::Info),
        };
        let decision = decide(row, states);
        let mut message = format!("{word}: {}", row.text());
        if let Some(decision) = &decision {
            message.push_str(&format!("; {}", decision.reason));
        }
        Remark {
            code: kind,
            severity,
            location: decision.and_then(|decision| decision.location),
            about: row.text(),
            message,
            suppression: None,
        }
    };
    let mut remarks = Vec::new();
    for (now, word) in [(Verdict::Allow, "opened"), (Verdict::Deny, "closed")] {
        remarks.extend(changed(diff, now).iter().map(|row| remark(row, word)));
    }
    let sides = [(&diff.added, Verdict::Allow, "added"), (&diff.removed, Verdict::Deny, "removed")];
    for (side, now, what) in sides {
        let word = format!("pod {what}");
        remarks.extend(of_side(side, now).iter().map(|row| remark(row, &word)));
        remarks.extend(side.host_network.iter().map(|id| Remark {
            code: if now == Verdict::Allow { OPENED } else { CLOSED },
            severity: Severity::Warning,
            location:
                states.iter().rev().find_map(|state| state.world.pods.get(id)?.location.clone()),
            about: format!("Pod {id}"),
            message: format!("host network pod {what}: {id}; no policy applies to it"),
            suppression: None,
        }));
    }
    remarks
}

/// The tables of a comment.
pub(crate) fn page(diff: &PolicyDiff, states: [&ReachState; 2]) -> String {
    let mut page = Page::default();
    if diff.is_empty() {
        page.paragraph("No connection is opened or closed.");
    }
    for (now, word) in [(Verdict::Allow, "opened"), (Verdict::Deny, "closed")] {
        let rows = changed(diff, now);
        if !rows.is_empty() {
            page.paragraph(&format!("**{word}**"));
            table(&mut page, &rows, states);
        }
    }
    let sides = [(&diff.added, Verdict::Allow, "added"), (&diff.removed, Verdict::Deny, "removed")];
    for (side, now, what) in sides {
        for (pods, noun) in [(&side.pods, "pod"), (&side.host_network, "host network pod")] {
            if pods.is_empty() {
                continue;
            }
            let names: Vec<String> = pods.iter().map(ToString::to_string).collect();
            let names = escape(&abbreviated(&names));
            page.paragraph(&format!("**{} {what}**: {names}", count(pods.len(), noun)));
        }
        table(&mut page, &of_side(side, now), states);
    }
    let not_judged: Vec<String> = diff.not_judged.pods.iter().map(ToString::to_string).collect();
    if !not_judged.is_empty() {
        let names = escape(&abbreviated(&not_judged));
        let pods = count(not_judged.len(), "pod");
        page.paragraph(&format!("**{pods} not judged** (not on the cluster network): {names}"));
    }
    page.finish()
}

fn table(page: &mut Page, rows: &[DiffRow<'_>], states: [&ReachState; 2]) {
    page.table(&["", "from", "to", "ports", "decided by"], rows, |row| {
        let sign = if row.now == Verdict::Allow { "➕" } else { "➖" };
        let names = |names: &[String]| escape(&abbreviated(names));
        let decision = decide(row, states).and_then(|decision| decision.location);
        let place = decision.map(|place| code(&place.to_string())).unwrap_or_default();
        vec![sign.to_owned(), names(row.from), names(row.to), escape(&row.ports()), place]
    });
}

fn changed(diff: &PolicyDiff, now: Verdict) -> Vec<DiffRow<'_>> {
    let changes = diff.changes.iter().filter(|change| change.now == now);
    let rows = changes.map(|change| DiffRow {
        now,
        from: &change.from,
        to: &change.to,
        ports: &change.ports,
        family: change.family,
        example: change.example.as_ref(),
    });
    rows.collect()
}

fn of_side(side: &PodsOfOneSide, now: Verdict) -> Vec<DiffRow<'_>> {
    let rows = side.connections.iter().map(|connection| DiffRow {
        now,
        from: &connection.from,
        to: &connection.to,
        ports: &connection.ports,
        family: connection.family,
        example: connection.example.as_ref(),
    });
    rows.collect()
}

impl DiffRow<'_> {
    fn text(&self) -> String {
        format!("{} → {} {}", abbreviated(self.from), abbreviated(self.to), self.ports())
    }

    fn ports(&self) -> String {
        let family = self.family.map(|family| format!(" ({family} only)")).unwrap_or_default();
        format!("{}{family}", phrase(self.ports))
    }

    /// One of the connections, with the addresses of a state.
    fn flow(&self, state: &ReachState) -> Option<Flow> {
        let [from, to] = self.example?;
        let addresses = |end: &ExampleEnd| match end {
            ExampleEnd::Pod(id) => state.world.pods.get(id).map(|pod| pod.own_addresses().to_vec()),
            ExampleEnd::Address(address) => Some(vec![*address]),
        };
        let (from, to): (Vec<IpAddr>, Vec<IpAddr>) = (addresses(from)?, addresses(to)?);
        let families = IpFamily::BOTH.into_iter();
        let mut families = families.filter(|one| self.family.is_none_or(|only| only == *one));
        let ends = |one: IpFamily| Some((one.first_in(&from)?, one.first_in(&to)?));
        let (from, to) = families.find_map(ends)?;
        let port = self.ports.first()?;
        Some(Flow { from, to, protocol: port.protocol, port: port.first })
    }
}

/// Finds the decision about a row: at the pod where the verdict changed, else at the destination.
/// The new policies decide, except about pods that only the old side has.
fn decide(row: &DiffRow<'_>, [old, new]: [&ReachState; 2]) -> Option<Decision> {
    let explain =
        |state: &ReachState| Some(weir_engine::explain(&state.program, &row.flow(state)?));
    let (before, after) = (explain(old), explain(new));
    let (state, explanation) = match &after {
        Some(after) => (new, after),
        None => (old, before.as_ref()?),
    };
    let verdict = explanation.verdict;
    let was = |explained: &Explanation, direction| explained.side(direction).verdict();
    let has_changed = |direction: &Direction| {
        let before = before.as_ref().map(|before| was(before, *direction));
        after.is_some() && before.is_some_and(|before| before != was(explanation, *direction))
    };
    let is_cited = |direction: &Direction| {
        was(explanation, *direction) == verdict
            && matches!(explanation.side(*direction), Side::Judged(one) if !matches!(one.reason, Reason::Default))
    };
    let sides = [Direction::Ingress, Direction::Egress];
    let found = sides.into_iter().find(has_changed).or_else(|| sides.into_iter().find(is_cited));
    let direction = found.unwrap_or(Direction::Ingress);
    let Side::Judged(judgement) = explanation.side(direction) else {
        return Some(Decision { location: None, reason: why::line(explanation) });
    };
    let location = match &judgement.reason {
        Reason::Admin(cited) | Reason::Allowed(cited) | Reason::Baseline(cited) => {
            why::location(&cited.section, cited.rule().origin.line)
        }
        Reason::Isolated => judgement.isolating.first().and_then(|one| why::location(one, 0)),
        Reason::Contested | Reason::Default => None,
    };
    let of_pod = || state.world.pods.get(&judgement.pod)?.location.clone();
    let reason = format!("{direction} of {}: {}", judgement.pod, why::reason(direction, judgement));
    Some(Decision { location: location.or_else(of_pod), reason })
}
