use std::{fmt, net::IpAddr, time::SystemTime};

use weir_model::{Direction, Flow, Protocol};

use crate::ApplyError;

/// A stream of reports about dropped packets.
pub trait Drops {
    /// Blocks until the next packets are reported. The caller may call again after an error.
    fn next(&mut self) -> Result<Vec<Dropped>, ApplyError>;
}

/// A packet that the rules dropped, or in audit mode would have dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The time of the drop.
    pub time: SystemTime,
    /// The reason for the drop.
    pub cause: DropCause,
    /// The source address.
    pub from: IpAddr,
    /// The destination address.
    pub to: IpAddr,
    /// The IP protocol number.
    pub protocol: u8,
    /// The source and destination ports, if the protocol has ports.
    pub ports: Option<(u16, u16)>,
    /// The index of the link that the packet came from, if known.
    pub link: Option<u32>,
}

/// Why the datapath dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// The packet opens a connection that the rules of its destination pod (ingress) or of its
    /// source pod (egress) deny.
    Rules(Direction),
    /// The packet is a reply of a connection that weir ended because the rules now deny it.
    Answer,
    /// The source address is not one of the addresses of the pod that sent the packet.
    SpoofedSource,
    /// A pod sent a packet for a tunnel of a node.
    Encapsulation,
}

impl DropCause {
    /// All causes.
    pub const ALL: [DropCause; 5] = [
        DropCause::Rules(Direction::Ingress),
        DropCause::Rules(Direction::Egress),
        DropCause::Answer,
        DropCause::SpoofedSource,
        DropCause::Encapsulation,
    ];

    /// The reason for a drop that no policy causes.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            DropCause::Rules(_) | DropCause::Answer => None,
            DropCause::SpoofedSource => Some("spoofed source"),
            DropCause::Encapsulation => Some("encapsulation"),
        }
    }
}

impl fmt::Display for DropCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DropCause::Rules(direction) => direction.fmt(f),
            DropCause::Answer => f.write_str("answer"),
            DropCause::SpoofedSource | DropCause::Encapsulation => Direction::Egress.fmt(f),
        }
    }
}

impl Dropped {
    /// The connection that the packet opens or replies to. `None` if its protocol has no rules
    /// with ports.
    pub fn flow(&self) -> Option<Flow> {
        let protocol = Protocol::from_number(self.protocol)?;
        let (source, destination) = self.ports?;
        let (from, to) = self.ends();
        let port = if self.cause == DropCause::Answer { source } else { destination };
        Some(Flow { from, to, protocol, port })
    }

    /// The client and the server of the connection.
    pub fn ends(&self) -> (IpAddr, IpAddr) {
        match self.cause {
            DropCause::Rules(_) | DropCause::SpoofedSource | DropCause::Encapsulation => {
                (self.from, self.to)
            }
            DropCause::Answer => (self.to, self.from),
        }
    }
}
