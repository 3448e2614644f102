use std::net::IpAddr;

use crate::ApplyError;

/// The table of connections that a datapath maintains itself, beside that of the kernel.
pub trait ConnectionTable {
    /// Calls a function for each connection in the table. Connections that begin meanwhile can be
    /// missing. Before the rules are installed, there are none.
    fn read(&mut self, each: &mut dyn FnMut(TrackedConnection)) -> Result<(), ApplyError>;
}

/// A connection that the rules allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrackedConnection {
    /// The address and the port of the end that began it.
    pub client: (IpAddr, u16),
    /// The address and the port of the other end.
    pub server: (IpAddr, u16),
    /// The number of the protocol.
    pub protocol: u8,
}
