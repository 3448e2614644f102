use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use weir_model::{Block, IpFamily};

/// The addresses of a block in one family, as the fewest networks that contain exactly these.
/// Exceptions apply only to their own block.
pub(crate) fn nets(block: &Block, family: IpFamily) -> Vec<IpNet> {
    if IpFamily::from(block.net.addr()) != family {
        return Vec::new();
    }
    let (mut first, last) = (number(block.net.network()), number(block.net.broadcast()));
    let mut holes: Vec<(u128, u128)> = block
        .except
        .iter()
        .map(|hole| (number(hole.network()), number(hole.broadcast())))
        .collect();
    holes.sort_unstable();
    let mut nets = Vec::new();
    for (from, to) in holes {
        if from > first {
            nets.extend(cover(first, from - 1, family));
        }
        match to.checked_add(1) {
            Some(next) => first = first.max(next),
            None => return nets,
        }
    }
    if first <= last {
        nets.extend(cover(first, last, family));
    }
    nets
}

/// A network in the form that a set can hold. The network of all addresses becomes two halves.
pub(crate) fn halves(net: IpNet) -> Vec<IpNet> {
    match net.prefix_len() {
        0 => net.subnets(1).map(Iterator::collect).unwrap_or_default(),
        _ => vec![net],
    }
}

/// All addresses of a family.
pub(crate) fn everything(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
        IpFamily::V6 => IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

fn cover(first: u128, last: u128, family: IpFamily) -> Vec<IpNet> {
    match (address(first, family), address(last, family)) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect()
        }
        _ => Vec::new(),
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(number: u128, family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpFamily::V6 => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(net: &str, except: &[&str]) -> Vec<String> {
        let net: IpNet = net.parse().unwrap();
        let block = Block::new(net, except.iter().map(|net| net.parse().unwrap()));
        nets(&block, IpFamily::from(net.addr())).iter().map(IpNet::to_string).collect()
    }

    #[test]
    fn exceptions_are_removed() {
        assert_eq!(texts("10.0.0.0/30", &["10.0.0.1/32"]), ["10.0.0.0/32", "10.0.0.2/31"]);
        assert_eq!(texts("0.0.0.0/0", &["0.0.0.0/1", "128.0.0.0/1"]), [""; 0]);
        assert_eq!(texts("0.0.0.0/0", &[]), ["0.0.0.0/0"]);
        assert_eq!(texts("::/0", &["8000::/1"]), ["::/1"]);
        assert_eq!(texts("::/0", &["::/1"]), ["8000::/1"]);
    }

    #[test]
    fn the_network_of_all_addresses_becomes_two_halves() {
        let both = halves(everything(IpFamily::V6));
        assert_eq!(both.iter().map(IpNet::to_string).collect::<Vec<_>>(), ["::/1", "8000::/1"]);
    }

    fn small() -> impl Strategy<Value = Block> {
        let holes = proptest::collection::vec((0_u8..=255, 25_u8..=32), 0..4);
        (24_u8..=32, 0_u8..=255, holes).prop_map(|(length, last, holes)| {
            let net = |last: u8, length: u8| {
                format!("10.0.0.{last}/{length}").parse::<IpNet>().unwrap().trunc()
            };
            let outer = net(last, length);
            let inside = holes
                .into_iter()
                .map(|(last, length)| net(last, length))
                .filter(|hole| outer.contains(hole) && *hole != outer);
            Block::new(outer, inside)
        })
    }

    proptest! {
        #[test]
        fn the_networks_contain_exactly_the_addresses_of_the_block(block in small(), last in 0_u8..=255) {
            let address = IpAddr::from([10, 0, 0, last]);
            let held = nets(&block, IpFamily::V4).iter().any(|net| net.contains(&address));
            prop_assert_eq!(held, block.contains(address));
        }
    }
}
