//! Peers that are not pods: blocks of addresses.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use weir_model::Block;

/// With more addresses than this, a rule names their networks instead.
const MAX_HOSTS: usize = 8;

/// Networks that are not part of the public internet. Clusters use them for pods and nodes.
const PRIVATE_V4: [(Ipv4Addr, u8); 5] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
];
const PRIVATE_V6: [(Ipv6Addr, u8); 2] = [
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
];

/// The blocks for these addresses: each address, or their networks if there are many. If `anyone` may
/// connect, or if there are many public networks, all public addresses are one block.
pub(crate) fn blocks(
    addresses: &BTreeSet<IpAddr>,
    anyone: bool,
    is_pod_network: &dyn Fn(&IpNet) -> bool,
) -> BTreeSet<Block> {
    let mut blocks = BTreeSet::new();
    for is_v4 in [true, false] {
        let family = addresses.iter().copied().filter(|address| address.is_ipv4() == is_v4);
        let (public, private): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) =
            family.partition(|address| internet(is_v4).contains(*address));
        let networks = networks(&public, is_pod_network);
        if !public.is_empty() && (anyone || networks.len() > MAX_HOSTS) {
            blocks.insert(internet(is_v4));
        } else {
            blocks.extend(networks.into_iter().map(|net| Block::new(net, [])));
        }
        let networks = self::networks(&private, is_pod_network).into_iter();
        blocks.extend(networks.map(|net| Block::new(net, [])));
    }
    blocks
}

/// The addresses, or their networks if there are many and no pod is in them.
pub(crate) fn networks(
    addresses: &BTreeSet<IpAddr>,
    is_pod_network: &dyn Fn(&IpNet) -> bool,
) -> BTreeSet<IpNet> {
    if addresses.len() <= MAX_HOSTS {
        return addresses.iter().copied().map(IpNet::from).collect();
    }
    let network = |address: &IpAddr| match address {
        IpAddr::V4(address) => Ipv4Net::new(*address, 24).map(IpNet::from),
        IpAddr::V6(address) => Ipv6Net::new(*address, 64).map(IpNet::from),
    };
    let shared = |address: &IpAddr| {
        let net = network(address).ok().map(|net| net.trunc());
        net.filter(|net| !is_pod_network(net)).unwrap_or_else(|| IpNet::from(*address))
    };
    addresses.iter().map(shared).collect()
}

/// All public addresses of a family.
fn internet(is_v4: bool) -> Block {
    if is_v4 {
        let except =
            PRIVATE_V4.iter().filter_map(|(address, len)| Ipv4Net::new(*address, *len).ok());
        Block::new(Ipv4Net::default().into(), except.map(IpNet::from))
    } else {
        let except =
            PRIVATE_V6.iter().filter_map(|(address, len)| Ipv6Net::new(*address, *len).ok());
        Block::new(Ipv6Net::default().into(), except.map(IpNet::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(addresses: &[&str], anyone: bool) -> Vec<String> {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        blocks(&addresses, anyone, &|_| false).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn few_addresses_are_named_one_by_one() {
        assert_eq!(
            text(&["203.0.113.7", "10.1.0.1", "2001:db8::1"], false),
            ["10.1.0.1/32", "203.0.113.7/32", "2001:db8::1/128"]
        );
    }

    #[test]
    fn public_clients_of_a_published_port_are_the_internet() {
        assert_eq!(
            text(&["203.0.113.7", "10.1.0.1"], true),
            [
                "0.0.0.0/0 except 10.0.0.0/8, 100.64.0.0/10, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16",
                "10.1.0.1/32"
            ]
        );
    }

    #[test]
    fn many_addresses_become_networks() {
        let private: Vec<String> = (0..20).map(|n| format!("10.1.{}.{n}", n % 2)).collect();
        let private: Vec<&str> = private.iter().map(String::as_str).collect();
        assert_eq!(text(&private, false), ["10.1.0.0/24", "10.1.1.0/24"]);
        let public: Vec<String> = (0..20).map(|n| format!("203.0.{n}.1")).collect();
        let public: Vec<&str> = public.iter().map(String::as_str).collect();
        assert_eq!(text(&public, false).len(), 1);
    }
}
