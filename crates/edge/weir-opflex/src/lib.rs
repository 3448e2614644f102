//! Keeps the files of opflex-agent on a node equal to what the API says.
//!
//! ```text
//!  HostprotPols, HostprotRemoteIpContainers ─┐
//!  pods of this node ────────────────────────┴─Told→ Desk ─→ weir_aci::Files ─→ weir_aci::Folder
//!                                                      └ Report ←── HTTP: /healthz /readyz /metrics /status
//! ```
//!
//! It needs the verbs `list` and `watch` on pods, and in the namespace of the objects on hostprotpols.aci.hpp and
//! hostprotremoteipcontainers.aci.hpp; nothing else.
//!
//! *Invariant*: nothing is written or removed before all three were read completely, nor because the API server is away.
//!
//! *Invariant*: nor before the object of this node was among them. Who was given the name of another node, or another prefix or namespace than
//! the controller, would find nothing and take everything away.
//!
//! *Invariant*: what cannot be read counts as it was before.

mod desk;
mod home;
mod http;
mod pressed;
mod report;
mod run;
#[cfg(test)]
mod tests;

pub use run::{OpflexError, Options, Until, cleanup, run};
