//! The CNI plugin's requests: wait until a pod's rules are in force at its addresses.
//!
//! ```text
//!  weir-cni ──request──► PluginSocket ──AgentEvent::Plugin──► the loop ──► Overlay: addresses
//!           ◄──reply──────────────────── oneshot ◄───────────┘     └──► PodReader: pods
//!                                                          that the source does not have yet
//! ```

mod overlay;
mod reader;
mod record;
#[cfg(unix)]
mod socket;
#[cfg(not(unix))]
#[path = "unsupported.rs"]
mod socket;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use weir_cni_protocol::{Attachment, Reply, Request};
use weir_model::PodId;

pub(crate) use overlay::Overlay;
pub use reader::PodReader;
pub(crate) use reader::{Reads, start};
pub(crate) use socket::PluginSocket;

/// The longest time that a request waits.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

/// A request, and where the reply goes.
#[derive(Debug)]
pub(crate) struct PluginRequest {
    pub(crate) request: Request,
    pub(crate) since: Instant,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// The pod of an attachment.
pub(crate) fn pod_of(attachment: &Attachment) -> PodId {
    PodId::new(&*attachment.namespace, &*attachment.name)
}
