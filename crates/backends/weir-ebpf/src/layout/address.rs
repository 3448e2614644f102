use std::net::IpAddr;

use ipnet::IpNet;

/// The kind of an address: a number that decisions refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The number. 0 is the kind of addresses that no rule names.
    pub number: u32,
    /// Whether domain names had the address before. Then the next number is the kind for established
    /// connections, which continue.
    pub has_former: bool,
}

/// Marks a kind with another one for established connections.
pub(crate) const FORMER: u32 = 1 << 30;

impl Kind {
    /// The number in the maps.
    pub fn to_number(self) -> u32 {
        if self.has_former { FORMER | self.number } else { self.number }
    }

    /// The kind with a number.
    pub fn from_number(number: u32) -> Self {
        Kind { number: number & !FORMER, has_former: number & FORMER != 0 }
    }
}

/// The kind or the pod of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// The address is not of this node's pods, and is of this kind.
    Kind(Kind),
    /// The address belongs to the pod entry with this number.
    Pod(u32),
}

/// Marks an address of a pod of this node.
pub(crate) const LOCAL: u32 = 1 << 31;

impl Identity {
    /// The number in the map.
    pub fn to_number(self) -> u32 {
        match self {
            Identity::Kind(kind) => kind.to_number(),
            Identity::Pod(number) => LOCAL | number,
        }
    }

    /// The number of the pod entry, if the address belongs to one.
    pub fn pod(&self) -> Option<u32> {
        match self {
            Identity::Kind(_) => None,
            Identity::Pod(number) => Some(*number),
        }
    }

    /// The identity with a number.
    pub fn from_number(number: u32) -> Self {
        if number & LOCAL != 0 {
            return Identity::Pod(number & !LOCAL);
        }
        Identity::Kind(Kind::from_number(number))
    }
}

/// The bytes of an address.
pub fn address_key(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The value of an address. Half of it is a check of the address, because a reader can meet the
/// memory of a deleted element that the kernel has used again.
pub fn address_value(address: IpAddr, identity: Identity) -> u64 {
    u64::from(check(address)) << 32 | u64::from(identity.to_number())
}

/// The check of an address in values.
pub(super) fn check(address: IpAddr) -> u32 {
    let words = address_key(address);
    let words =
        words.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    words.fold(0, |check, word| check ^ word)
}

/// The bytes of a network.
pub fn network_key(net: IpNet) -> Vec<u8> {
    [&u32::from(net.prefix_len()).to_ne_bytes()[..], &address_key(net.network())].concat()
}
