//! The words that all netlink protocols share, as in `linux/netlink.h`.

/// A request of the kernel; every message to it is one.
pub const REQUEST: u16 = 0x1;
/// Wants an acknowledgement.
pub const ACK: u16 = 0x4;
/// Wants to hear what it did, as those who listen do.
pub const ECHO: u16 = 0x8;
/// Wants all there is.
pub const DUMP: u16 = 0x300;
/// Replaces what exists.
pub const REPLACE: u16 = 0x100;
/// Fails if the thing exists.
pub const EXCL: u16 = 0x200;
/// Makes what does not exist.
pub const CREATE: u16 = 0x400;
/// Adds at the end.
pub const APPEND: u16 = 0x800;

/// A message that says nothing.
pub(crate) const NOOP: u16 = 1;
/// An error or, with the code 0, an acknowledgement.
pub(crate) const ERROR: u16 = 2;
/// The end of a dump.
pub(crate) const DONE: u16 = 3;
/// What is being listed changed meanwhile.
pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
/// An acknowledgement without the request's content.
pub(crate) const CAPPED: u16 = 0x100;
/// An acknowledgement with attributes.
pub(crate) const EXPLAINED: u16 = 0x200;

/// The flag of an attribute that holds attributes.
pub(crate) const NESTED: u16 = 0x8000;
/// The bits of an attribute's type that are no flags.
pub(crate) const ATTRIBUTE: u16 = 0x3fff;
