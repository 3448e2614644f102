use std::{fmt, net::IpAddr};

use crate::Protocol;

/// A connection someone tries to open, after service translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Who opens it.
    pub from: IpAddr,
    /// Whom it reaches.
    pub to: IpAddr,
    /// The transport.
    pub protocol: Protocol,
    /// The port at the destination.
    pub port: u16,
}

impl Flow {
    /// The address of the end that a direction is about, and the other one.
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

/// Whether a connection passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It passes.
    Allow,
    /// It is dropped.
    Deny,
}

impl Verdict {
    /// Both must allow.
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

/// As seen from the pod that a policy speaks for.
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
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        })
    }
}
