//! Controllers: they read objects of a cluster and write other objects that follow from them.
//!
//! ```text
//!  follow ─ObjectEvent→ Store ─┐
//!  follow ─ObjectEvent→ Store ─┴─key→ WorkQueue ─→ desired (pure) ─→ plan_writes (pure) ─┐
//!                                     API server ◄─ Writer, only while Leadership lasts ◄┘ Write
//! ```
//!
//! A controller is an `event_loop::Handler`: it follows the kinds that it needs, on one API
//! server or several. For each touched key a pure function computes the desired objects, and the
//! writer sends the difference. [`workload`] is that loop for kinds whose objects each own one
//! NetworkPolicy; another such kind needs one file with one pure function.
//!
//! *Invariants*
//!
//! * A controller writes nothing before all its inputs are listed, nor after it has lost the lease.
//! * Objects of others are neither changed nor deleted. Each update and each deletion applies to
//!   the observed version only.
//! * Objects that are as desired are not written.

mod cleanup;
pub mod clusterset;
mod condition;
pub mod conditions;
mod controller;
pub mod crds;
mod event_loop;
pub mod hpp;
mod lease;
pub mod memcached;
mod object;
mod queue;
mod report;
mod run;
mod standby;
mod sync;
pub mod workload;
mod writer;
mod writes;

pub use cleanup::CleanupError;
pub use controller::Controller;
use run::ControllerContext;
pub use run::{ControllerError, ControllerOptions, run, run_until};
pub use workload::OnDisable;
