//! What the CNI plugin asks: is this pod's policy in force at these addresses?
//!
//! ```text
//!  weir-cni ──a line of JSON──► Socket ──Event::Asked──► the loop ── Overlay: the addresses, before the source has them
//!           ◄──an answer──────────────◄── oneshot ◄──────┘      └─► PodReader, if the source is behind
//! ```

mod overlay;
mod protocol;
mod reader;
#[cfg(unix)]
mod socket;
#[cfg(not(unix))]
#[path = "elsewhere.rs"]
mod socket;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

pub(crate) use overlay::Overlay;
pub(crate) use protocol::{Answer, Attachment, Request};
pub use reader::PodReader;
pub(crate) use reader::{Reads, start};
pub(crate) use socket::Socket;

/// How long anybody waits, at most.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// A question, and where the answer goes.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) since: Instant,
    pub(crate) reply: oneshot::Sender<Answer>,
}
