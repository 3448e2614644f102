use std::{net::IpAddr, time::SystemTime};

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
    /// By which rules: those of the pod it came from or those of the pod it went to.
    pub direction: Direction,
    /// Who sent it.
    pub from: IpAddr,
    /// Whom it was for.
    pub to: IpAddr,
    /// The number of the protocol above IP.
    pub protocol: u8,
    /// The ports at both ends, if the protocol has any.
    pub ports: Option<(u16, u16)>,
}

impl Dropped {
    /// The connection that the packet wanted to open; `None` for protocols that rules with ports do not know.
    pub fn flow(&self) -> Option<Flow> {
        let protocol = match self.protocol {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            132 => Protocol::Sctp,
            _ => return None,
        };
        let (_, port) = self.ports?;
        Some(Flow { from: self.from, to: self.to, protocol, port })
    }
}
