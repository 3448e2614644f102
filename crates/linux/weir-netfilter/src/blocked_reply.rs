use std::time::Duration;

use weir_model::Protocol;

use crate::{Connection, Tuple, block_time};

/// The replies of a terminated connection, which rules drop for some time. Every datapath stores
/// them, and a datapath that replaces another one takes them over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockedReply {
    /// The number of the transport protocol.
    pub protocol: u8,
    /// The addresses and ports of the replies. Without ports, all replies between the addresses.
    pub tuple: Tuple,
}

impl BlockedReply {
    /// The protocol, if it has ports and the replies are limited to them.
    pub fn protocol_with_ports(&self) -> Option<Protocol> {
        let has_ports = self.tuple.source_port != 0 || self.tuple.destination_port != 0;
        Protocol::from_number(self.protocol).filter(|_| has_ports)
    }

    /// How long rules drop them.
    pub fn time(&self) -> Duration {
        block_time(self.protocol)
    }
}

impl From<&Connection> for BlockedReply {
    fn from(connection: &Connection) -> Self {
        BlockedReply { protocol: connection.protocol, tuple: connection.reply }
    }
}
