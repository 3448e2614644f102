use std::{fmt, net::IpAddr, time::SystemTime};

use weir_model::{Direction, Flow, Protocol};

use crate::ApplyError;

/// Where packets that were dropped are heard of.
pub trait Drops {
    /// Waits for the next ones. After an error it may be asked again.
    fn next(&mut self) -> Result<Vec<Dropped>, ApplyError>;
}

/// A packet that was dropped, or would have been if rules were enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// When.
    pub time: SystemTime,
    /// Why.
    pub cause: Cause,
    /// Who sent it.
    pub from: IpAddr,
    /// Whom it was for.
    pub to: IpAddr,
    /// The number of the protocol above IP.
    pub protocol: u8,
    /// The ports at both ends, if the protocol has any.
    pub ports: Option<(u16, u16)>,
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It opens a connection that the rules of a pod deny: of the one it came from, or of the one it went to.
    Rules(Direction),
    /// It answers a connection that was ended because rules deny it now.
    Answer,
}

impl Cause {
    /// All there are.
    pub const ALL: [Cause; 3] =
        [Cause::Rules(Direction::Ingress), Cause::Rules(Direction::Egress), Cause::Answer];
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Rules(direction) => direction.fmt(f),
            Cause::Answer => f.write_str("answer"),
        }
    }
}

impl Dropped {
    /// The connection that the packet wanted to open, or answered; `None` for protocols that rules with ports do not know.
    pub fn flow(&self) -> Option<Flow> {
        let protocol = match self.protocol {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            132 => Protocol::Sctp,
            _ => return None,
        };
        let (source, destination) = self.ports?;
        let (from, to) = self.ends();
        let port = if self.cause == Cause::Answer { source } else { destination };
        Some(Flow { from, to, protocol, port })
    }

    /// Who opens the connection, and to whom.
    pub fn ends(&self) -> (IpAddr, IpAddr) {
        match self.cause {
            Cause::Rules(_) => (self.from, self.to),
            Cause::Answer => (self.to, self.from),
        }
    }
}
