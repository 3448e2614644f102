//! Conntrack and packet logs of netfilter, and the links of the node.
//!
//! ```text
//!            ┌ conntrack ── lists each connection ─────► Connection ──► Flow, as policies see it
//!   kernel ──┤           ◄─ deletes exactly this one ───┘
//!            ├ events ───── connections begin and end ─► ConnectionEvent
//!            ├ nflog ────── packets that rules log ────► Logged
//!            └ nfqueue ──── packets that wait ─────────► DnsWatch ──► HeldAnswer
//! ```
//!
//! [`report`] defines how weir's rules log dropped packets. Decoding does no I/O and compiles on
//! every platform. [`Conntrack`], [`ConnectionEvents`], [`PacketLog`], [`LinkWatch`] and [`DnsWatch`]
//! exist on Linux only.
//!
//! *Invariant*: decoding accepts any bytes. A truncated packet yields the fields that it contains.
//!
//! *Invariant*: an opened object stays in the network namespace of the thread that opened it.

#[cfg(target_os = "linux")]
mod address;
#[cfg(target_os = "linux")]
mod blocked_reply;
mod connection;
#[cfg(target_os = "linux")]
mod conntrack;
#[cfg(target_os = "linux")]
mod dns_rules;
#[cfg(target_os = "linux")]
mod dns_watch;
#[cfg(target_os = "linux")]
mod ending;
#[cfg(target_os = "linux")]
mod events;
#[cfg(target_os = "linux")]
mod links;
#[cfg(target_os = "linux")]
mod log;
mod logged;
mod nfnetlink;
mod packet;
#[cfg(target_os = "linux")]
mod queue;
pub mod report;
#[cfg(target_os = "linux")]
mod terminate;

#[cfg(target_os = "linux")]
pub use address::own_addresses;
#[cfg(target_os = "linux")]
pub use blocked_reply::BlockedReply;
pub use connection::{Connection, Tuple};
#[cfg(target_os = "linux")]
pub use conntrack::{Conntrack, ConntrackError};
#[cfg(target_os = "linux")]
pub use dns_watch::{DnsWatch, DnsWatchError};
#[cfg(target_os = "linux")]
pub use events::{ConnectionEvent, ConnectionEvents, EventScope, EventsError, TrafficCount};
#[cfg(target_os = "linux")]
pub use links::LinkWatch;
#[cfg(target_os = "linux")]
pub use log::{LogError, PacketLog};
pub use logged::Logged;
#[cfg(target_os = "linux")]
pub use terminate::{block_time, wait_for_packets};
