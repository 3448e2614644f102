//! The parts that the agent, the controllers and the opflex agent share.
//!
//! ```text
//!  http      bind, serve with a connection limit and timeouts, /metrics, /readyz
//!  signals   SIGTERM, SIGINT, SIGHUP as values
//!  backoff   exponential delays with jitter
//!  time      RFC 3339
//!  source    SourceEvent: what a manifest folder or an API server reports to its reader
//! ```

mod backoff;
pub mod http;
mod signals;
mod source;
pub mod time;

pub use backoff::{Backoff, delay, jitter};
pub use signals::{Signal, Signals};
pub use source::SourceEvent;
