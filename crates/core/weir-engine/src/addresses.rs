use std::net::{IpAddr, Ipv4Addr};

use smallvec::SmallVec;

/// The addresses of a pod, sorted and distinct. The usual ones, a single IPv4 address, need no
/// memory of their own.
#[derive(Debug)]
pub(crate) enum Addresses {
    OneV4(Ipv4Addr),
    Any(Box<[IpAddr]>),
}

impl Addresses {
    pub(crate) fn new(given: &[IpAddr]) -> Self {
        match given {
            [IpAddr::V4(only)] => Addresses::OneV4(*only),
            [] | [_] => Addresses::Any(given.into()),
            several => {
                let mut sorted: SmallVec<[IpAddr; 2]> = several.into();
                sorted.sort_unstable();
                sorted.dedup();
                match sorted[..] {
                    [IpAddr::V4(only)] => Addresses::OneV4(only),
                    _ => Addresses::Any(sorted[..].into()),
                }
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = IpAddr> + Clone + '_ {
        let (one, others) = match self {
            Addresses::OneV4(address) => (Some(IpAddr::V4(*address)), &[][..]),
            Addresses::Any(all) => (None, &all[..]),
        };
        one.into_iter().chain(others.iter().copied())
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match self {
            Addresses::OneV4(only) => address == *only,
            Addresses::Any(all) => all.contains(&address),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Addresses::OneV4(_) => 1,
            Addresses::Any(all) => all.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_and_repetition_of_addresses_do_not_matter() {
        let [one, two] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1])];
        for (given, expected) in [
            (&[][..], &[][..]),
            (&[one], &[one]),
            (&[one, one], &[one]),
            (&[two], &[two]),
            (&[two, one, two], &[one, two]),
        ] {
            let addresses = Addresses::new(given);
            assert_eq!(addresses.iter().collect::<Vec<_>>(), expected);
            assert_eq!(addresses.len(), expected.len());
            for address in [one, two] {
                assert_eq!(addresses.contains(address), expected.contains(&address));
            }
        }
    }
}
