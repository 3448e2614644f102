use std::{
    cmp::Ordering,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

use crate::{PortRange, Protocol};

/// Ports at the destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// Every port of every protocol, and protocols that have no ports.
    Any,
    /// These ranges.
    Of(PortList),
}

impl Ports {
    /// The ports in canonical form; `None` if there are no ranges.
    pub fn from_ranges(ranges: impl IntoIterator<Item = PortRange>) -> Option<Ports> {
        let list = PortList::new(ranges.into_iter().collect());
        (!list.is_empty()).then_some(Ports::Of(list))
    }

    /// The list of ranges; `None` for every port.
    pub fn list(&self) -> Option<&PortList> {
        match self {
            Ports::Any => None,
            Ports::Of(list) => Some(list),
        }
    }

    /// Whether it contains the port of the protocol.
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        self.list().is_none_or(|list| list.contains(protocol, port))
    }
}

impl From<PortRange> for Ports {
    fn from(range: PortRange) -> Self {
        Ports::Of(PortList::new(vec![range]))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ports::Any => f.write_str("any port"),
            Ports::Of(ranges) => {
                let list: Vec<String> = ranges.iter().map(PortRange::to_string).collect();
                f.write_str(&list.join(", "))
            }
        }
    }
}

/// Port ranges: sorted, neither adjacent nor overlapping.
///
/// All peers of a rule share one list: a copy costs as much as a pointer, and so do hashing and the
/// comparison with a copy.
#[derive(Clone)]
pub struct PortList {
    ranges: Arc<[PortRange]>,
    hash: u64,
}

impl PortList {
    fn new(mut ranges: Vec<PortRange>) -> Self {
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let touches =
                next.protocol == last.protocol && u32::from(next.first) <= u32::from(last.last) + 1;
            if touches {
                last.last = last.last.max(next.last);
            }
            touches
        });
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&ranges);
        PortList { ranges: ranges.into(), hash }
    }

    /// Whether a range contains the port of the protocol.
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        let ends_before = |range: &PortRange| (range.protocol, range.last) < (protocol, port);
        let next = self.ranges.get(self.ranges.partition_point(ends_before));
        next.is_some_and(|range| range.contains(protocol, port))
    }
}

impl Deref for PortList {
    type Target = [PortRange];

    fn deref(&self) -> &[PortRange] {
        &self.ranges
    }
}

impl<'a> IntoIterator for &'a PortList {
    type Item = &'a PortRange;
    type IntoIter = std::slice::Iter<'a, PortRange>;

    fn into_iter(self) -> Self::IntoIter {
        self.ranges.iter()
    }
}

/// As a list, like the ranges alone: names of kernel objects contain a digest of this text.
impl fmt::Debug for PortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ranges.fmt(f)
    }
}

impl PartialEq for PortList {
    fn eq(&self, other: &Self) -> bool {
        let is_copy = Arc::ptr_eq(&self.ranges, &other.ranges);
        is_copy || (self.hash == other.hash && self.ranges == other.ranges)
    }
}

impl Eq for PortList {}

impl PartialOrd for PortList {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PortList {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.ranges, &other.ranges) {
            return Ordering::Equal;
        }
        self.ranges.cmp(&other.ranges)
    }
}

impl Hash for PortList {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_touch_or_overlap_become_one_range() {
        let range = |first, last| PortRange { protocol: Protocol::Tcp, first, last };
        let list = |ranges: &[PortRange]| Ports::from_ranges(ranges.iter().copied());
        let ports =
            list(&[range(90, 95), range(80, 85), range(84, 89), PortRange::one(Protocol::Udp, 90)]);
        let ports = ports.as_ref().and_then(Ports::list).map(|list| &**list);
        assert_eq!(ports, Some(&[range(80, 95), PortRange::one(Protocol::Udp, 90)][..]));
        assert_eq!(
            list(&[range(0, u16::MAX), range(u16::MAX, u16::MAX)]),
            Some(range(0, u16::MAX).into())
        );
        assert_eq!(list(&[]), None);
    }

    #[test]
    fn a_port_is_in_a_list_if_it_is_in_one_of_its_ranges() {
        let ranges = [
            PortRange { protocol: Protocol::Tcp, first: 2, last: 4 },
            PortRange::one(Protocol::Tcp, 9),
            PortRange { protocol: Protocol::Sctp, first: 0, last: 3 },
        ];
        let ports = Ports::from_ranges(ranges).unwrap();
        for protocol in Protocol::ALL {
            for port in 0..12 {
                let expected = ranges.iter().any(|range| range.contains(protocol, port));
                assert_eq!(ports.contains(protocol, port), expected, "{port}/{protocol}");
            }
        }
    }
}
