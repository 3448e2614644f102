//! What netfilter remembers and reports.
//!
//! ```text
//!            ┌ conntrack ── every connection, one by one ──► Connection ──► Flow, as policies see it
//!   kernel ──┤           ◄─ forget exactly this one ────────┘
//!            └ nflog ────── packets that a rule logs ──────► Logged
//! ```
//!
//! [`report`] has the words by which our rules log what they drop. Decoding is pure and exists everywhere; [`Conntrack`] and [`PacketLog`] exist on Linux.
//!
//! *Invariant*: any bytes can be decoded. Of a packet that is cut short there is what can be known.
//!
//! *Invariant*: everything is about the network namespace that the thread was in at the time of opening.

mod connection;
#[cfg(target_os = "linux")]
mod conntrack;
#[cfg(target_os = "linux")]
mod log;
mod logged;
mod nfnetlink;
mod packet;
pub mod report;
#[cfg(target_os = "linux")]
mod terminate;

pub use connection::{Connection, Tuple};
#[cfg(target_os = "linux")]
pub use conntrack::{Conntrack, ConntrackError};
#[cfg(target_os = "linux")]
pub use log::{LogError, PacketLog};
pub use logged::Logged;
#[cfg(target_os = "linux")]
pub use terminate::{block_time, wait_for_packets};
