//! A Service or a route as the destination of a connection: its backends, each with its verdict.

use serde::Serialize;
use weir_engine::Explanation;
use weir_model::Verdict;

use crate::{
    flow_end::FlowEnd,
    service::{self, ServiceTarget},
    why,
};

/// The connections to the backends of a Service.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceView {
    /// `namespace/svc/name`.
    pub name: String,
    /// The type of the Service.
    #[serde(rename = "type")]
    pub kind: String,
    /// The client, as the user named it.
    pub client: String,
    /// The port that clients use.
    pub port: u16,
    /// The protocol of the port.
    pub protocol: String,
    /// The name of the port; empty if it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port_name: String,
    /// `deny` if any backend is denied.
    pub verdict: String,
    /// The connections to the backends.
    pub backends: Vec<BackendView>,
    /// Remarks about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The connection to a backend.
#[derive(Serialize)]
pub struct BackendView {
    /// The pod, or the address if it is none.
    pub to: String,
    /// The source that policies see.
    pub from: String,
    /// The address of the backend.
    pub address: String,
    /// The port at the address.
    pub port: u16,
    /// `allow` or `deny`.
    pub verdict: String,
    /// The reason, in one line.
    pub why: String,
    /// The verdict.
    #[serde(skip)]
    pub decision: Verdict,
}

impl BackendView {
    /// The view of one explanation.
    pub fn new(from: &FlowEnd, to: &FlowEnd, explanation: &Explanation) -> Self {
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
    pub fn new(target: &ServiceTarget<'_>, client: &str, backends: Vec<BackendView>) -> Self {
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
pub struct RouteView {
    /// `namespace/ingress/name`.
    pub name: String,
    /// The client, as the user named it.
    pub client: String,
    /// `deny` if any backend is denied.
    pub verdict: String,
    /// The Services that it leads to.
    pub services: Vec<ServiceView>,
    /// Remarks about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl RouteView {
    /// The view of a route.
    pub fn new(name: String, client: &str, services: Vec<ServiceView>, notes: Vec<String>) -> Self {
        let backends = services.iter().flat_map(|service| &service.backends);
        let verdict = backends.map(|backend| backend.decision).max();
        let verdict = verdict.unwrap_or(Verdict::Deny).to_string();
        RouteView { name, client: client.to_owned(), verdict, services, notes }
    }
}
