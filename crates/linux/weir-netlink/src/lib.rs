//! Netlink: messages, attributes and sockets.
//!
//! ```text
//!   MessageWriter ── messages in one buffer ──► Socket ──► kernel
//!                                                     │
//!   Attribute ◄── Message ◄── Messages ◄── buffer ◄───┘
//! ```
//!
//! Encoding and decoding do no I/O and compile on every platform. [`Socket`] exists on Linux only.
//!
//! *Invariant*: decoding accepts any bytes. Truncated input or a wrong length is a [`Malformed`]
//! error, and decoding stops there.
//!
//! *Invariant*: encoded lengths are correct. An attribute that exceeds its length field is a
//! [`TooLong`] error.

pub mod kind;
mod read;
#[cfg(target_os = "linux")]
mod rejection;
#[cfg(target_os = "linux")]
mod socket;
mod write;

pub use read::{Attribute, Attributes, Malformed, Message, Messages};
#[cfg(target_os = "linux")]
pub use rejection::Rejection;
#[cfg(target_os = "linux")]
pub use socket::{NetlinkError, NetlinkProtocol, Socket};
pub use write::{Body, Header, MessageWriter, TooLong};
