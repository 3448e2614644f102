//! A Service or a route as the destination of a connection: its backends, each with its verdict.

use std::io::{self, Write};

use serde::Serialize;
use weir_engine::Explanation;
use weir_model::Verdict;

use super::{
    count,
    plain::Plain,
    style::{FAINT, Painted, of_verdict},
    table::{self, Cell},
    wrap,
};
use crate::{
    flow_end::FlowEnd,
    service::{self, ServiceTarget},
    why,
};

/// The maximum number of backends to print.
const MAX_BACKENDS: usize = 12;

/// The connections to the backends of a Service.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceView {
    /// `namespace/svc/name`.
    name: String,
    #[serde(rename = "type")]
    kind: String,
    /// The client, as the user named it.
    client: String,
    /// The port that clients use.
    port: u16,
    protocol: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    port_name: String,
    /// `deny` if any backend is denied.
    verdict: String,
    backends: Vec<BackendView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// The connection to a backend.
#[derive(Serialize)]
pub(crate) struct BackendView {
    /// The pod, or the address if it is none.
    to: String,
    /// The source that policies see.
    from: String,
    address: String,
    port: u16,
    verdict: String,
    why: String,
    #[serde(skip)]
    decision: Verdict,
}

impl BackendView {
    /// The view of one explanation.
    pub(crate) fn new(from: &FlowEnd, to: &FlowEnd, explanation: &Explanation) -> Self {
        BackendView {
            to: to.to_string(),
            from: from.to_string(),
            address: explanation.flow.to.to_string(),
            port: explanation.flow.port,
            verdict: explanation.verdict.to_string(),
            why: why::line(explanation),
            decision: explanation.verdict,
        }
    }
}

impl ServiceView {
    /// The view of a Service.
    pub(crate) fn new(
        target: &ServiceTarget<'_>,
        client: &str,
        backends: Vec<BackendView>,
    ) -> Self {
        let verdict = backends.iter().map(|backend| backend.decision).max();
        ServiceView {
            name: service::name(&target.service.id),
            kind: target.service.kind.to_string(),
            client: client.to_owned(),
            port: target.port.first,
            protocol: target.port.protocol.to_string(),
            port_name: target.port_name.to_string(),
            verdict: verdict.unwrap_or(Verdict::Deny).to_string(),
            backends,
            notes: target.notes.clone(),
        }
    }
}

/// The connections of a route to the backends of its Services.
#[derive(Serialize)]
pub(crate) struct RouteView {
    /// `namespace/ingress/name`.
    name: String,
    /// The client, as the user named it.
    client: String,
    /// `deny` if any backend is denied.
    verdict: String,
    services: Vec<ServiceView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

impl RouteView {
    /// The view of a route.
    pub(crate) fn new(
        name: String,
        client: &str,
        services: Vec<ServiceView>,
        notes: Vec<String>,
    ) -> Self {
        let backends = services.iter().flat_map(|service| &service.backends);
        let verdict = backends.map(|backend| backend.decision).max();
        let verdict = verdict.unwrap_or(Verdict::Deny).to_string();
        RouteView { name, client: client.to_owned(), verdict, services, notes }
    }
}

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
