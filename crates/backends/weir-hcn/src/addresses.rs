use std::net::IpAddr;

use ipnet::IpNet;
use weir_model::{Block, Interval, IpFamily, address_number, covering_nets};

/// Addresses that a rule matches: all, or sorted ranges that do not touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Addresses {
    All,
    Of { v4: Vec<Interval>, v6: Vec<Interval> },
}

impl Addresses {
    /// Exactly these addresses.
    pub(crate) fn hosts(all: impl IntoIterator<Item = IpAddr>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in all {
            let ranges = if address.is_ipv4() { &mut v4 } else { &mut v6 };
            let number = address_number(address);
            ranges.push((number, number));
        }
        Addresses::Of { v4: joined(v4), v6: joined(v6) }
    }

    /// The addresses of a block, without its exceptions.
    pub(crate) fn block(block: &Block) -> Self {
        let ranges = block.intervals();
        match IpFamily::from(block.net.addr()) {
            IpFamily::V4 => Addresses::Of { v4: ranges, v6: Vec::new() },
            IpFamily::V6 => Addresses::Of { v4: Vec::new(), v6: ranges },
        }
    }

    /// The intersection.
    pub(crate) fn and(&self, other: &Addresses) -> Addresses {
        match (self, other) {
            (Addresses::All, other) => other.clone(),
            (some, Addresses::All) => some.clone(),
            (Addresses::Of { v4, v6 }, Addresses::Of { v4: four, v6: six }) => {
                Addresses::Of { v4: common(v4, four), v6: common(v6, six) }
            }
        }
    }

    /// The union.
    pub(crate) fn union(all: impl IntoIterator<Item = Addresses>) -> Addresses {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for one in all {
            let Addresses::Of { v4: four, v6: six } = one else { return Addresses::All };
            v4.extend(four);
            v6.extend(six);
        }
        Addresses::Of { v4: joined(v4), v6: joined(v6) }
    }

    /// The number of ranges.
    pub(crate) fn len(&self) -> usize {
        match self {
            Addresses::All => 0,
            Addresses::Of { v4, v6 } => v4.len() + v6.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Addresses::Of { v4, v6 } if v4.is_empty() && v6.is_empty())
    }

    /// The networks that contain exactly the addresses of one family.
    pub(crate) fn nets(&self, family: IpFamily) -> impl Iterator<Item = IpNet> {
        let ranges = match (self, family) {
            (Addresses::All, _) => &[][..],
            (Addresses::Of { v4, .. }, IpFamily::V4) => v4,
            (Addresses::Of { v6, .. }, IpFamily::V6) => v6,
        };
        ranges.iter().flat_map(move |range| covering_nets(*range, family))
    }

    /// The addresses of one family in the format of HNS: networks, and single addresses without a
    /// prefix length.
    pub(crate) fn texts(&self, family: IpFamily) -> Vec<String> {
        let nets = self.nets(family);
        nets.map(|net| {
            if net.prefix_len() == net.max_prefix_len() {
                net.addr().to_string()
            } else {
                net.to_string()
            }
        })
        .collect()
    }
}

/// Sorts ranges, and joins those that touch.
fn joined(mut ranges: Vec<Interval>) -> Vec<Interval> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = next.0 <= last.1.saturating_add(1);
        if touches {
            last.1 = last.1.max(next.1);
        }
        touches
    });
    ranges
}

fn common(left: &[Interval], right: &[Interval]) -> Vec<Interval> {
    let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
    let mut both = Vec::new();
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        let (first, last) = (one.0.max(other.0), one.1.min(other.1));
        if first <= last {
            both.push((first, last));
        }
        if one.1 <= other.1 {
            left.next()
        } else {
            right.next()
        };
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str, except: &[&str]) -> Addresses {
        let parsed = |text: &&str| text.parse::<IpNet>().unwrap();
        Addresses::block(&Block::new(parsed(&text), except.iter().map(parsed)))
    }

    #[test]
    fn exceptions_are_removed() {
        let texts = |net, except: &[&str], family| block(net, except).texts(family);
        assert_eq!(
            texts("10.0.0.0/30", &["10.0.0.1/32"], IpFamily::V4),
            ["10.0.0.0", "10.0.0.2/31"]
        );
        assert_eq!(texts("0.0.0.0/0", &[], IpFamily::V4), ["0.0.0.0/0"]);
        assert_eq!(texts("0.0.0.0/0", &["0.0.0.0/1", "128.0.0.0/1"], IpFamily::V4), [""; 0]);
        assert_eq!(texts("::/0", &["8000::/1"], IpFamily::V6), ["::/1"]);
        assert_eq!(texts("::/0", &["::/1"], IpFamily::V6), ["8000::/1"]);
        assert_eq!(texts("::/0", &["::/1"], IpFamily::V4), [""; 0], "families stay separate");
    }

    #[test]
    fn adjacent_addresses_become_one_network() {
        let hosts = (0..4).map(|last| IpAddr::from([10, 0, 0, last]));
        assert_eq!(Addresses::hosts(hosts).texts(IpFamily::V4), ["10.0.0.0/30"]);
    }

    #[test]
    fn intersection_and_union() {
        let (wide, narrow) = (block("10.0.0.0/8", &["10.1.0.0/16"]), block("10.1.0.0/15", &[]));
        assert_eq!(wide.and(&narrow).texts(IpFamily::V4), ["10.0.0.0/16"]);
        assert_eq!(narrow.and(&wide), wide.and(&narrow));
        assert_eq!(Addresses::union([wide.clone(), narrow]).texts(IpFamily::V4), ["10.0.0.0/8"]);
        assert_eq!(wide.and(&Addresses::All), wide);
        assert!(block("10.0.0.0/8", &[]).and(&block("::/0", &[])).is_empty());
    }
}
