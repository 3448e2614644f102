//! Enforces the policies of a source on one datapath, and reports the outcome.
//!
//! ```text
//!  Source ──SourceEvent──┐                          ┌ Engine ─Delta→ Ledger ─Plan→ Datapath
//!  signals ──────────────┼─AgentEvent→ the loop ────┤
//!  drops, flows, CNI, DNS┘             one thread   └ Reporter ─→ AgentReport ←── HTTP
//!                                                            └──→ Kubernetes Events about policies
//! ```
//!
//! *Invariant*: one thread owns the engine, the ledger and the datapath. Everything else reaches it
//! as an `AgentEvent`.
//!
//! *Invariant*: no client blocks the loop. HTTP reads the report. If packets are dropped faster
//! than the loop can examine them, it only counts them.

mod agent;
mod cni;
#[cfg(target_os = "linux")]
mod dns;
mod drops;
mod event;
mod flows;
mod http;
mod kernel_settings;
mod lock;
mod metrics;
mod otlp_metrics;
mod policy_events;
mod policy_names;
mod report;
mod reporter;
mod run;
mod source;
mod surroundings;
#[cfg(test)]
mod tests;
mod threads;

pub use cni::PodReader;
use event::AgentEvent;
pub use flows::{FlowExport, FlowLog, OtlpCollector};
pub use kernel_settings::{Sysctls, check_node};
pub use lock::LockError;
pub use run::{
    AgentError, AgentOptions, DropReports, MachineAddresses, MachineReports, cleanup, once, run,
};
pub use source::Source;
pub use surroundings::{BlindSpot, Effect, Inspection, Leftover, LeftoverKind, Surroundings};
