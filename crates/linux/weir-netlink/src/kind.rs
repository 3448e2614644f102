//! Flags that all netlink protocols share, as in `linux/netlink.h`.

/// A request to the kernel. Every message to the kernel has it.
pub const REQUEST: u16 = 0x1;
/// Requests an acknowledgement.
pub const ACK: u16 = 0x4;
/// Requests all objects.
pub const DUMP: u16 = 0x300;
/// Fails if the object exists.
pub const EXCL: u16 = 0x200;
/// Creates the object if it does not exist.
pub const CREATE: u16 = 0x400;
/// Appends to the end of a list.
pub const APPEND: u16 = 0x800;

/// The flag of an attribute that contains attributes.
pub(crate) const NESTED: u16 = 0x8000;
/// The bits of an attribute's type without its flags.
pub(crate) const ATTRIBUTE: u16 = 0x3fff;
