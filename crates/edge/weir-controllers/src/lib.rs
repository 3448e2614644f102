//! Controllers: what objects of a cluster ask for, kept as objects of a cluster.
//!
//! ```text
//!  follow ─Told→ Shelf ─┐
//!  follow ─Told→ Shelf ─┼─ Queue ─key→ desired (pure) ─→ steps (pure) ─Step→ Hand ─→ API server
//!                       │                                                     └ only while the Term lasts
//! ```
//!
//! A controller is a loop over these parts: it follows the kinds it needs, from one API server or several, and for each key that
//! was touched it asks a pure function what should be there and takes the steps to it. [`workload::keep`] is that loop for
//! objects that ask for one NetworkPolicy; another kind of workload is one file with one pure function.
//!
//! *Invariants*
//!
//! * Nothing is written before all that a controller looks at was read completely, nor after its time in charge.
//! * What is not ours is neither changed nor removed; each write and removal is of the very version that was looked at.
//! * What is as it should be is not written.

pub mod clusterset;
mod condition;
mod controller;
pub mod crds;
mod follow;
mod hand;
pub mod hpp;
mod inbox;
mod lease;
pub mod memcached;
mod object;
mod queue;
mod report;
mod run;
mod server;
mod shelf;
mod steps;
pub mod workload;

pub use condition::Condition;
pub use controller::Controller;
pub use follow::{Watched, follow};
pub use hand::{Hand, WriteError};
pub use inbox::{Inbox, Next};
pub use lease::Term;
pub use object::{
    Id, NETWORK_POLICIES, Object, Resource, controller_of, controller_reference, is_controlled_by,
    is_terminating,
};
pub use queue::Queue;
pub use report::{Outcome, Report};
pub use run::{Context, ControllerError, Options, run, run_until};
pub use server::Server;
pub use shelf::{Shelf, Told};
pub use steps::{Step, Steps, adjusted, steps};
pub use workload::OnDisable;
