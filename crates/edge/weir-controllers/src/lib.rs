//! Controllers: they read objects of a cluster and write other objects that follow from them.
//!
//! ```text
//! follow ─Event→ Store ─┐ follow ─Event→ Store ─┼─ WorkQueue ─key→ desired (pure) ─→ plan_writes
//! (pure) ─Write→ Writer ─→ API server │
//! └ only while the Leadership lasts
//! ```
//!
//! A controller is an [`event_loop::Handler`]: it follows the kinds that it needs, on one API
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

pub mod clusterset;
mod condition;
mod controller;
pub mod crds;
mod event_loop;
mod follow;
pub mod hpp;
mod lease;
pub mod memcached;
mod object;
mod queue;
mod report;
mod run;
mod server;
mod shelf;
pub mod workload;
mod writer;
mod writes;

use condition::Condition;
pub use controller::Controller;
pub use follow::{Watched, follow};
pub use object::{Id, Object, Resource};
use object::{
    NETWORK_POLICIES, controller_of, controller_reference, is_controlled_by, is_terminating,
};
use run::Context;
pub use run::{ControllerError, Options, run, run_until};
pub use server::Server;
use shelf::Shelf;
pub use shelf::Told;
pub use workload::OnDisable;
