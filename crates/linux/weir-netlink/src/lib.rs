//! The kernel's netlink: messages, attributes, sockets.
//!
//! ```text
//!   Writer ── messages, one after the other, in one buffer ──► Socket ──► kernel
//!                                                                           │
//!   Attribute ◄── Attributes ◄── Message ◄── Messages ◄── a buffer ◄────────┘
//! ```
//!
//! Writing and reading are pure and exist everywhere; a [`Socket`] exists on Linux.
//!
//! *Invariant*: any bytes can be read. What is cut short or lies about its length is a [`Malformed`], and nothing after it
//! is looked at.
//!
//! *Invariant*: what was written has the lengths it says. An attribute that its length field cannot tell is a [`TooLong`].

pub mod kind;
mod read;
#[cfg(target_os = "linux")]
mod refusal;
#[cfg(target_os = "linux")]
mod socket;
mod write;

pub use read::{Attribute, Attributes, Malformed, Message, Messages};
#[cfg(target_os = "linux")]
pub use refusal::Refusal;
#[cfg(target_os = "linux")]
pub use socket::{NetlinkError, Protocol, Socket};
pub use write::{Body, Header, TooLong, Writer};
