use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::{SmallVec, smallvec};

use crate::slab::Slab;

/// The addresses of a pod in [`AddressLists`]. The usual ones, a single IPv4 address, need no more
/// memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Addresses {
    None,
    OneV4(Ipv4Addr),
    /// One IPv6 address, alone or with one IPv4 address.
    OneV6(u32),
    Other(u32),
}

/// Addresses, sorted and distinct.
pub(crate) type AddressList = SmallVec<[IpAddr; 2]>;

/// The addresses of all pods.
#[derive(Debug, Default)]
pub(crate) struct AddressLists {
    with_v6: Slab<(Option<Ipv4Addr>, Ipv6Addr)>,
    others: Slab<Box<[IpAddr]>>,
}

impl AddressLists {
    pub(crate) fn insert(&mut self, given: &[IpAddr]) -> Addresses {
        let mut sorted: AddressList = given.into();
        sorted.sort_unstable();
        sorted.dedup();
        match sorted[..] {
            [] => Addresses::None,
            [IpAddr::V4(only)] => Addresses::OneV4(only),
            [IpAddr::V6(v6)] => Addresses::OneV6(self.with_v6.insert((None, v6))),
            [IpAddr::V4(v4), IpAddr::V6(v6)] => {
                Addresses::OneV6(self.with_v6.insert((Some(v4), v6)))
            }
            _ => Addresses::Other(self.others.insert(sorted[..].into())),
        }
    }

    pub(crate) fn remove(&mut self, addresses: Addresses) {
        match addresses {
            Addresses::None | Addresses::OneV4(_) => (),
            Addresses::OneV6(id) => _ = self.with_v6.remove(id),
            Addresses::Other(id) => _ = self.others.remove(id),
        }
    }

    pub(crate) fn get(&self, addresses: Addresses) -> AddressList {
        match addresses {
            Addresses::None => AddressList::new(),
            Addresses::OneV4(only) => smallvec![IpAddr::V4(only)],
            Addresses::OneV6(id) => {
                let (v4, v6) = self.with_v6[id];
                v4.map(IpAddr::V4).into_iter().chain([IpAddr::V6(v6)]).collect()
            }
            Addresses::Other(id) => self.others[id][..].into(),
        }
    }

    pub(crate) fn contains(&self, addresses: Addresses, address: IpAddr) -> bool {
        match addresses {
            Addresses::None => false,
            Addresses::OneV4(only) => address == only,
            Addresses::OneV6(id) => {
                let (v4, v6) = self.with_v6[id];
                address == v6 || v4.is_some_and(|v4| address == v4)
            }
            Addresses::Other(id) => self.others[id].contains(&address),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.with_v6.is_empty() && self.others.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_and_repetition_of_addresses_do_not_matter() {
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let v6 = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]);
        let mut lists = AddressLists::default();
        for (given, expected) in [
            (&[][..], &[][..]),
            (&[one], &[one]),
            (&[one, one], &[one]),
            (&[v6], &[v6]),
            (&[v6, one, v6], &[one, v6]),
            (&[other, one], &[one, other]),
            (&[v6, other, one], &[one, other, v6]),
        ] {
            let addresses = lists.insert(given);
            assert_eq!(lists.get(addresses)[..], *expected);
            for address in [one, other, v6] {
                assert_eq!(lists.contains(addresses, address), expected.contains(&address));
            }
            lists.remove(addresses);
        }
        assert!(lists.is_empty());
    }

    #[test]
    fn addresses_are_small() {
        assert_eq!(size_of::<Addresses>(), 8);
        assert_eq!(size_of::<Option<(Option<Ipv4Addr>, Ipv6Addr)>>(), 21);
    }
}
