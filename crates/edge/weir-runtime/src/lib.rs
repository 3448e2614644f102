//! The parts that the agent, the controllers and the opflex agent share.
//!
//! ```text
//!  http      bind, serve with a connection limit and timeouts, /metrics, /readyz
//!  signals   SIGTERM, SIGINT, SIGHUP as values
//!  container the PID namespace, which identifies a container
//!  backoff   exponential delays with jitter
//!  time      RFC 3339
//!  source    SourceEvent: what a manifest folder or an API server reports to its reader
//! ```

mod backoff;
mod container;
pub mod http;
mod signals;
mod source;
pub mod time;

pub use backoff::{Backoff, delay, jitter};
pub use container::pid_namespace;
pub use signals::{Signal, Signals};
pub use source::SourceEvent;
