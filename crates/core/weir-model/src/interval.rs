//! Addresses as intervals of numbers. Backends divide and join blocks in this form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

use crate::{Block, IpFamily};

/// The numbers of consecutive addresses of one family, both ends included.
pub type Interval = (u128, u128);

/// An address as a number.
pub fn address_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address with a number. A number that is too large gives the last address of the family.
pub fn numbered_address(number: u128, family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpFamily::V6 => Ipv6Addr::from_bits(number).into(),
    }
}

/// The fewest networks that contain exactly the addresses of an interval.
pub fn covering_nets((first, last): Interval, family: IpFamily) -> Vec<IpNet> {
    match (numbered_address(first, family), numbered_address(last, family)) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect()
        }
        _ => Vec::new(),
    }
}

impl Block {
    /// The addresses of the block without its exceptions, as sorted intervals.
    pub fn intervals(&self) -> Vec<Interval> {
        let ends = |net: &IpNet| (address_number(net.network()), address_number(net.broadcast()));
        let (mut first, last) = ends(&self.net);
        let mut holes: Vec<Interval> = self.except.iter().map(ends).collect();
        holes.sort_unstable();
        let mut intervals = Vec::new();
        for (from, to) in holes.into_iter().filter(|(from, _)| *from <= last) {
            if from > first {
                intervals.push((first, from - 1));
            }
            match to.checked_add(1) {
                Some(next) => first = first.max(next),
                None => return intervals,
            }
        }
        if first <= last {
            intervals.push((first, last));
        }
        intervals
    }

    /// The addresses of the block without its exceptions, as the fewest networks, sorted.
    pub fn nets(&self) -> Vec<IpNet> {
        let family = IpFamily::from(self.net.addr());
        self.intervals().into_iter().flat_map(|part| covering_nets(part, family)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(net: &str, except: &[&str]) -> Vec<String> {
        let block = Block::new(net.parse().unwrap(), except.iter().map(|net| net.parse().unwrap()));
        block.nets().iter().map(IpNet::to_string).collect()
    }

    #[test]
    fn exceptions_are_removed() {
        assert_eq!(nets("10.0.0.0/30", &["10.0.0.1/32"]), ["10.0.0.0/32", "10.0.0.2/31"]);
        assert_eq!(nets("0.0.0.0/0", &["0.0.0.0/1", "128.0.0.0/1"]), [""; 0]);
        assert_eq!(nets("0.0.0.0/0", &[]), ["0.0.0.0/0"]);
        assert_eq!(nets("::/0", &["8000::/1"]), ["::/1"]);
        assert_eq!(nets("::/0", &["::/1"]), ["8000::/1"]);
        assert_eq!(nets("10.0.0.0/8", &["10.0.0.0/9", "10.128.0.0/9"]), [""; 0]);
    }
}
