//! The words that all netlink protocols share, as in `linux/netlink.h`.

/// A request of the kernel; every message to it is one.
pub const REQUEST: u16 = 0x1;
/// Wants an acknowledgement.
pub const ACK: u16 = 0x4;
/// Wants all there is.
pub const DUMP: u16 = 0x300;
/// Fails if the thing exists.
pub const EXCL: u16 = 0x200;
/// Makes what does not exist.
pub const CREATE: u16 = 0x400;
/// Adds at the end.
pub const APPEND: u16 = 0x800;

/// The flag of an attribute that holds attributes.
pub(crate) const NESTED: u16 = 0x8000;
/// The bits of an attribute's type that are no flags.
pub(crate) const ATTRIBUTE: u16 = 0x3fff;
