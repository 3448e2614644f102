use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use crate::Name;

/// A transport protocol that policies can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP, the default of `ports[].protocol`.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// All of them, in order.
    pub const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// The protocol number, as IANA assigns it.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// The protocol with a number. `None` if policies cannot name it.
    pub fn from_number(number: u8) -> Option<Self> {
        Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        })
    }
}

/// Ports `first` to `last` of a protocol, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The protocol the ports belong to.
    pub protocol: Protocol,
    /// The lowest port.
    pub first: u16,
    /// The highest port.
    pub last: u16,
}

impl PortRange {
    /// Every port of a protocol.
    pub fn all(protocol: Protocol) -> Self {
        PortRange { protocol, first: 0, last: u16::MAX }
    }

    /// One port.
    pub fn one(protocol: Protocol, port: u16) -> Self {
        PortRange { protocol, first: port, last: port }
    }

    /// Whether the range contains the port of the protocol.
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        self.protocol == protocol && self.first <= port && port <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortRange { protocol, first, last } = self;
        match (first, last) {
            (0, &u16::MAX) => write!(f, "{protocol}"),
            (first, last) if first == last => write!(f, "{first}/{protocol}"),
            (first, last) => write!(f, "{first}-{last}/{protocol}"),
        }
    }
}

/// An `ipBlock`: the addresses in `net` that are not in `except`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The network, host bits cleared.
    pub net: IpNet,
    /// The exceptions: sorted, host bits cleared, inside `net`.
    pub except: Vec<IpNet>,
}

impl Block {
    /// A block in canonical form.
    pub fn new(net: IpNet, except: impl IntoIterator<Item = IpNet>) -> Self {
        let mut except: Vec<IpNet> = except.into_iter().map(|e| e.trunc()).collect();
        except.sort();
        except.dedup();
        Block { net: net.trunc(), except }
    }

    /// The block that holds one address.
    pub fn host(address: IpAddr) -> Self {
        Block { net: address.into(), except: Vec::new() }
    }

    /// Whether the address is in the network and in no exception. An address never matches a
    /// network of the other family.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.net.contains(&address) && !self.except.iter().any(|e| e.contains(&address))
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.net)?;
        if !self.except.is_empty() {
            let list: Vec<String> = self.except.iter().map(IpNet::to_string).collect();
            write!(f, " except {}", list.join(", "))?;
        }
        Ok(())
    }
}

/// A pattern for domain names, in lower case and without the final dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DomainPattern {
    /// Exactly this name.
    Exact(Name),
    /// Names that have one or more labels before this one, written `*.name`. The name itself does
    /// not match.
    Under(Name),
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DomainPattern::Exact(name) => write!(f, "{name}"),
            DomainPattern::Under(name) => write!(f, "*.{name}"),
        }
    }
}
