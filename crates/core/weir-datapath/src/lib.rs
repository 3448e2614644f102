//! Where compiled rules take effect.
//!
//! ```text
//!   Engine ─Delta→ Ledger ─┬ trusted:  plan(program, delta) ──────┬→ Plan → apply
//!                          └ else:     replan(program, installed) ┘
//! ```
//!
//! *Invariant*: planning is pure. A plan leaves nothing to decide, and printing it is the dry run.
//!
//! *Invariant*: nothing is written before the source is in sync, and nothing where nothing changed. What is refused keeps its
//! old rules, and never keeps others from theirs.

pub mod conformance;
mod datapath;
mod drops;
mod grants;
mod ledger;
mod memory;
mod remarks;
mod uses;

pub use datapath::{ApplyError, Datapath, Plan, Trouble};
pub use drops::{Cause, Dropped, Drops};
pub use grants::{Granted, may_matter};
pub use ledger::{Established, Held, Ledger, Outcome};
pub use memory::{Memory, MemoryPlan, MemoryState};
pub use remarks::{Remarks, Shortfall};
pub use uses::Uses;
