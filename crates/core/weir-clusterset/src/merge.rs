use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

/// Merges addresses into networks: two halves of a network become that network, repeatedly. The
/// networks contain exactly `addresses`.
pub(crate) fn merge(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<IpNet> {
    let mut networks: BTreeSet<IpNet> = addresses.into_iter().map(IpNet::from).collect();
    let mut done = Vec::new();
    while !networks.is_empty() {
        let mut wider = BTreeSet::new();
        let mut all = std::mem::take(&mut networks).into_iter().peekable();
        while let Some(first) = all.next() {
            match first.supernet() {
                Some(above)
                    if all.peek().is_some_and(|second| second.supernet() == Some(above)) =>
                {
                    all.next();
                    wider.insert(above);
                }
                _ => done.push(first),
            }
        }
        networks = wider;
    }
    done.sort();
    done
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::{collection::btree_set, prelude::*};

    use super::*;

    fn text(addresses: &[&str]) -> Vec<String> {
        let addresses = addresses.iter().map(|text| text.parse::<IpAddr>().unwrap());
        merge(addresses).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_complete_halves_merge() {
        assert_eq!(text(&["10.0.0.1", "10.0.0.2"]), ["10.0.0.1/32", "10.0.0.2/32"]);
        assert_eq!(text(&["10.0.0.2", "10.0.0.3"]), ["10.0.0.2/31"]);
        assert_eq!(
            text(&["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]),
            ["10.0.0.0/30", "10.0.0.4/32"]
        );
        assert_eq!(text(&["fd00::2", "fd00::3", "10.0.0.1"]), ["10.0.0.1/32", "fd00::2/127"]);
    }

    proptest! {
        #[test]
        fn networks_contain_exactly_the_addresses(low in btree_set(0..256_u32, 0..200)) {
            let address = |low: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + low));
            let networks = merge(low.iter().copied().map(address));
            for at in 0..256 {
                let held = networks.iter().filter(|network| network.contains(&address(at))).count();
                prop_assert_eq!(held, usize::from(low.contains(&at)));
            }
        }
    }
}
