//! A relay follows the API server once, and sends each agent the objects that rules of its node can
//! name. Without relays, each agent follows all objects of the cluster.
//!
//! ```text
//!  API server ─► ClusterFeed ─► State ─► Spans ─┬─► connection ─► agent
//!                                               └─► connection ─► agent
//! ```
//!
//! *Invariants*
//!
//! * Every input of a client is limited in size and time, and every client in number. An agent that
//!   is too slow is disconnected and lists again.
//! * A relay serves lists only while it follows the API server, and none that is behind what the
//!   agent has seen.
//! * It keeps nothing: a relay that restarts reads everything again.
//!
//! Required permissions: `list` and `watch` on the kinds that agents follow, `get` on the definitions
//! of those that have one, and `create` on tokenreviews.authentication.k8s.io.

mod auth;
mod chunks;
mod clients;
mod metrics;
mod run;
mod server;
mod simulation;
mod span;
mod state;
mod tls;

pub use auth::AUDIENCE;
pub use run::{RelayError, RelayProcess, run, run_until};
pub use simulation::{Sent, Simulation};
pub use tls::{CertificateError, CertificateFiles};
