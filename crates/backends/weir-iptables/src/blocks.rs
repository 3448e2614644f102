use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use weir_model::{Block, IpFamily};

/// The networks of a block without its exceptions. Empty if the block is of the other family.
pub(crate) fn nets(block: &Block, family: IpFamily) -> Vec<IpNet> {
    if IpFamily::from(block.net.addr()) != family {
        return Vec::new();
    }
    block.nets()
}

/// A network as one or two entries of an ipset, which cannot hold a prefix length of 0.
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

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
