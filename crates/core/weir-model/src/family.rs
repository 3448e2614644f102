use std::{fmt, net::IpAddr};

/// An IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both families, in order.
    pub const BOTH: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

    /// The first address of this family in a list.
    pub fn first_in(self, addresses: &[IpAddr]) -> Option<IpAddr> {
        addresses.iter().copied().find(|address| IpFamily::from(*address) == self)
    }

    /// The version number as a digit: `4` or `6`.
    pub fn digit(self) -> char {
        match self {
            IpFamily::V4 => '4',
            IpFamily::V6 => '6',
        }
    }
}

/// The family in which the address is written: an IPv4-mapped IPv6 address is IPv6.
impl From<IpAddr> for IpFamily {
    fn from(address: IpAddr) -> Self {
        if address.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }
    }
}

/// Written as in the Kubernetes API: `IPv4` or `IPv6`.
impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv{}", self.digit())
    }
}
