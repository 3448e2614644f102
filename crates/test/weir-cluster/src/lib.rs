//! A real API server with its store for tests, reachable from this machine only.
//!
//! ```text
//!  Cluster ─┬─ etcd            with its own ports and folder
//!           ├─ kube-apiserver  a test can stop and restart it
//!           ├─ Collector       Kubernetes' garbage collector, optional
//!           ├─ Definitions     a newer API server for CustomResourceDefinitions only, optional
//!           ├─ Access          credentials of the administrator, or of users with given permissions
//!           ├─ Gate            a proxy that a test can interrupt
//!           └─ FaultProxy      a proxy that changes or replaces responses
//!               └─ FaultCase   a fault that every client must survive
//! ```
//!
//! *Invariant*: no process or folder outlives the test. A shell watches each process and kills it by its
//! id when the test process ends, even after a crash. The last one removes the folder.
//!
//! *Invariant*: a dev-dependency only.

mod access;
mod api;
mod cluster;
mod definitions;
mod fault_case;
mod fault_proxy;
mod gate;
mod http;
mod keys;
mod launch;
mod process;

pub use access::{Access, Right};
pub use cluster::{Backup, Cluster, Collector, Options};
pub use definitions::Definitions;
pub use fault_case::{FaultCase, FaultSubject};
pub use fault_proxy::{Fault, FaultProxy, ProxyRequest};
pub use gate::Gate;
pub use http::http_get;
pub use launch::StartError;
pub use weir_programs::{Missing, Programs, definitions_server};
