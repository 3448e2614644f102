//! Keeps one datapath equal to what the policies say, and reports how that goes.
//!
//! ```text
//!  Source ──Update──┐                      ┌ Engine ─Delta→ Ledger ─→ Datapath
//!  signals ─────────┼─Event→ the loop ─────┼ Report ←── HTTP: /healthz /readyz /metrics /status /drops
//!  drops, plugins ──┘        one thread    └ notes about policies ─→ Events of the cluster
//! ```
//!
//! *Invariant*: one thread owns the engine, the ledger and the datapath; everything else reaches it as an `Event`.
//!
//! *Invariant*: the loop waits for nobody who asks. HTTP reads a report, and a flood of dropped packets is counted, not heard.

mod agent;
mod bridge;
mod cni;
mod drops;
mod event;
mod http;
mod lock;
mod metrics;
mod notes;
mod report;
mod run;
mod source;
#[cfg(test)]
mod tests;
mod threads;

pub use bridge::Sysctls;
pub use cni::PodReader;
use event::Event;
pub use lock::LockError;
pub use run::{AgentError, Options, cleanup, once, run};
pub use source::Source;
