//! Relays: programs that follow the API server once, and send each agent the objects that rules of
//! its node can name.
//!
//! ```text
//!  API server ─► Follower … ─► ClusterFeed ─► (weir-relay) ─► frames ─► RelayStream ─► agent
//! ```
//!
//! *Invariants*
//!
//! * An agent applies the frames up to a commit in one step, so no rule is in force without its peers.
//! * An agent accepts no list of a relay that is behind what the agent has seen, from any source.

/// The path of a relay before the name of a node.
///
/// Its number rises with each change of the frames, and when rules can name objects that an older relay
/// does not send: an agent uses no relay of another version, and neither serves the other.
pub const RELAY_PATH: &str = "/v1/nodes/";

mod apply;
mod client;
mod feed;
mod frame;
mod pack;
mod source;
mod sync_point;

pub(crate) use client::{RelayError, RelayStream, Transaction};
pub use feed::{ClusterFeed, FeedEvent, Version};
pub(crate) use frame::KINDS;
pub use frame::{begin_frame, commit_frame, put_frame, remove_frame, seen_frame};
pub use pack::FramePacker;
pub(crate) use source::{Reached, RelaySource};
pub use source::{RelayOptions, RelayTimes};
pub use sync_point::SyncPoint;
