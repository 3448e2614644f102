//! Where compiled rules take effect.
//!
//! ```text
//!   Engine ─Delta→ Ledger ─┬ trusted:  plan(program, delta) ──────┬→ Plan → apply
//!                          └ else:     replan(program, installed) ┘
//! ```
//!
//! *Invariant*: planning is pure. A plan leaves nothing to decide, and printing it is the dry run.

mod datapath;

pub use datapath::{ApplyError, Datapath, Plan, Trouble};
