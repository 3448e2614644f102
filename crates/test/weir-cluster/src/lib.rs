//! A real API server for tests, with its store, on this machine alone.
//!
//! ```text
//!  Cluster ─┬─ etcd            ports and a folder of its own
//!           ├─ kube-apiserver  can be stopped and started again
//!           ├─ Collector       Kubernetes' own garbage collector, if a test asks for it
//!           ├─ Definitions     a newer API server for CustomResourceDefinitions alone, if a test asks for it
//!           ├─ Access          who may talk to it: an administrator, and users with the rights a test gives them
//!           └─ Gate            a way to it that a test can cut
//! ```
//!
//! *Invariant*: nothing stays behind. Each process is watched by a shell that ends it, by its own id, when the test process
//! is gone, however that happened; the folder goes with the last one.
//!
//! *Invariant*: a dev-dependency only.

mod access;
mod api;
mod definitions;
mod gate;
mod process;
mod server;

pub use access::{Access, Right};
pub use definitions::Definitions;
pub use gate::Gate;
pub use server::{Cluster, Collector, Options, StartError};
pub use weir_programs::{Missing, Programs, definitions_server};
