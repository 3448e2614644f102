use std::{fmt, net::IpAddr};

use crate::Protocol;

/// A connection attempt, after service translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The source address.
    pub from: IpAddr,
    /// The destination address.
    pub to: IpAddr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The destination port.
    pub port: u16,
}

impl Flow {
    /// The address of the pod that the rules of a direction apply to, and the address of its peer.
    pub fn ends(&self, direction: Direction) -> (IpAddr, IpAddr) {
        match direction {
            Direction::Ingress => (self.to, self.from),
            Direction::Egress => (self.from, self.to),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} {}/{}", self.from, self.to, self.port, self.protocol)
    }
}

/// Whether a connection is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It is allowed.
    Allow,
    /// It is dropped.
    Deny,
}

impl Verdict {
    /// Allows only if both allow.
    pub fn and(self, other: Verdict) -> Verdict {
        self.max(other)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
        })
    }
}

/// The direction of a connection, seen from the pod that a policy applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Connections to the pod.
    Ingress,
    /// Connections from the pod.
    Egress,
}

impl Direction {
    /// Both, in order.
    pub const BOTH: [Direction; 2] = [Direction::Ingress, Direction::Egress];

    /// The other one.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Direction::Ingress => Direction::Egress,
            Direction::Egress => Direction::Ingress,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        })
    }
}
