//! A Service or a route as the destination of a connection, as text.

use std::io::{self, Write};

use weir_model::Verdict;
pub(crate) use weir_view::service_view::{BackendView, RouteView, ServiceView};

use super::{
    count,
    plain::Plain,
    style::{FAINT, Painted, of_verdict},
    table::{self, Cell},
    wrap,
};
use crate::why;

/// The maximum number of backends to print.
const MAX_BACKENDS: usize = 12;

/// Writes the verdict about the Service, and a line for each backend.
pub(super) fn write(out: &mut dyn Write, view: &ServiceView) -> io::Result<()> {
    let ServiceView { name, client, port, protocol, .. } = view;
    let (word, part) = verdict(view.backends.iter());
    let head = format!("{word}: {} → {} {port}/{protocol}{part}", Plain(client), Plain(name));
    wrap::write(out, &head, 0)?;
    write_backends(out, view)?;
    writeln!(out)
}

/// Writes the verdict about the route, and a line for each backend of each Service.
pub(super) fn write_route(out: &mut dyn Write, view: &RouteView) -> io::Result<()> {
    let RouteView { name, client, services, notes, .. } = view;
    let (word, part) = verdict(services.iter().flat_map(|service| &service.backends));
    writeln!(out, "{word}: {} → {}{part}", Plain(client), Plain(name))?;
    for note in notes {
        write_note(out, note)?;
    }
    for service in services {
        write_backends(out, service)?;
    }
    writeln!(out)
}

/// The verdict about some backends, and how many of them it is about.
fn verdict<'a>(backends: impl Iterator<Item = &'a BackendView>) -> (Painted<&'static str>, String) {
    let decisions: Vec<Verdict> = backends.map(|backend| backend.decision).collect();
    let denied = decisions.iter().filter(|decision| **decision == Verdict::Deny).count();
    let verdict = if denied > 0 { Verdict::Deny } else { Verdict::Allow };
    let part = match denied {
        0 => String::new(),
        denied if denied == decisions.len() => String::new(),
        denied => format!(", {denied} of {}", count(decisions.len(), "connection")),
    };
    (Painted(of_verdict(verdict), why::past(verdict)), part)
}

fn write_note(out: &mut dyn Write, note: &str) -> io::Result<()> {
    wrap::write(out, &Painted(FAINT, note).to_string(), 0)
}

/// Writes the notes about a Service, and a line for each backend.
fn write_backends(out: &mut dyn Write, view: &ServiceView) -> io::Result<()> {
    let ServiceView { name, kind, protocol, port_name, backends, notes, .. } = view;
    for note in notes {
        write_note(out, note)?;
    }
    let port_name =
        if port_name.is_empty() { String::new() } else { format!(", port {port_name}") };
    writeln!(out, "backends of {} ({kind}{port_name}):", Plain(name))?;
    let has_sources = backends.iter().any(|backend| backend.from != backends[0].from);
    let rank = |backend: &&BackendView| backend.decision == Verdict::Allow;
    let mut sorted: Vec<&BackendView> = backends.iter().collect();
    sorted.sort_by_key(rank);
    let rows = sorted.iter().take(MAX_BACKENDS).map(|backend| {
        let BackendView { to, from, address, port, decision, .. } = backend;
        let mut row = vec![
            Cell::new(why::past(*decision), of_verdict(*decision)),
            to.into(),
            format!("{port}/{protocol}").into(),
        ];
        let details = match (to == address, has_sources) {
            (true, false) => String::new(),
            (false, false) => address.clone(),
            (_, true) => format!("from {from}"),
        };
        row.push(Cell::new(details, FAINT));
        row
    });
    table::write_list(out, 2, &rows.collect::<Vec<_>>())?;
    if sorted.len() > MAX_BACKENDS {
        writeln!(out, "  and {} more; -o json lists all", sorted.len() - MAX_BACKENDS)?;
    }
    Ok(())
}
