//! The seam between compiled rules and the machine that enforces them.
//!
//! ```text
//!   Engine ─Delta→ Ledger ─┬ trusted: Planner::plan(program, delta) ───────┬→ Plan → Datapath::apply
//!                          └ else:    Planner::replan(program, installed) ─┘
//! ```
//!
//! A backend implements [`Planner`], which does no I/O, and [`Datapath`], which does all of it and
//! makes no decisions. Optional traits cover what only some machines offer: [`TerminateFlows`],
//! [`EnforceGuard`] and [`Diagnostics`].
//!
//! *Invariant*: planning does no I/O. A plan leaves nothing to decide, and printing it is the dry
//! run.
//!
//! *Invariant*: the ledger writes nothing before the source is in sync, and nothing where nothing
//! changed. A pod whose new rules are rejected keeps its old rules and never delays another pod.

mod allowed;
mod comments;
pub mod conformance;
mod connections;
mod datapath;
mod dependents;
mod drops;
mod error;
mod former;
mod grants;
mod guard;
mod guarded;
mod journal;
mod ledger;
mod memory;
mod mode;
mod packet_path;
mod planner;
mod rejection;
mod uses;

pub use allowed::{Allowed, AllowedByPorts, AllowedPeers};
pub use comments::{MAX_POLICY_NAMES, isolated_by, policy_name, policy_names};
pub use connections::{ConnectionTable, TrackedConnection};
pub use datapath::{Datapath, Diagnostics, Drift, EndingFlows, TerminateFlows};
pub use dependents::Dependents;
pub use drops::{DropCause, Dropped, Drops};
pub use error::{ApplyError, ApplyErrorKind};
pub use former::FormerAddresses;
pub use grants::Granted;
pub use guard::{EnforceGuard, Guard, NodeLinks, Tunnel, join_pieces, pieces};
pub use guarded::Guarded;
pub use journal::{Journal, Records};
pub use ledger::{Established, Ledger, Outcome, PlannedDelta, Rejected};
pub use memory::{Memory, MemoryPlan, MemoryPlanner, MemoryState};
pub use mode::Mode;
pub use packet_path::{ConntrackUse, FastLaneState, PacketPath};
pub use planner::{Plan, Planner, Shortfall};
pub use rejection::{ANSWERS_PER_SECOND, Rejection};
pub use uses::Uses;
