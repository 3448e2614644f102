use std::fmt;

use crate::{Name, NamedPort, PortRange, Protocol, SharedList};

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
        let mut ranges: Vec<PortRange> = ranges.into_iter().collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let touches =
                next.protocol == last.protocol && u32::from(next.first) <= u32::from(last.last) + 1;
            if touches {
                last.last = last.last.max(next.last);
            }
            touches
        });
        (!ranges.is_empty()).then(|| Ports::Of(PortList::new(ranges)))
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

/// Port ranges: sorted, neither adjacent nor overlapping. All peers of a rule share one list.
pub type PortList = SharedList<PortRange>;

impl PortList {
    /// Whether a range contains the port of the protocol.
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        let ends_before = |range: &PortRange| (range.protocol, range.last) < (protocol, port);
        let next = self.get(self.partition_point(ends_before));
        next.is_some_and(|range| range.contains(protocol, port))
    }
}

/// Names of ports, each with the protocol that the port must have, if any: sorted. All peers of a
/// rule share one list.
pub type PortNameList = SharedList<(Name, Option<Protocol>)>;

impl PortNameList {
    /// The list in canonical form.
    pub fn from_names(names: impl IntoIterator<Item = (Name, Option<Protocol>)>) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        PortNameList::new(names)
    }

    /// Whether a port has one of the names, and its protocol.
    pub fn contains(&self, port: &NamedPort) -> bool {
        let first = self.partition_point(|(name, _)| *name < port.name);
        let same = self.iter().skip(first).take_while(|(name, _)| *name == port.name);
        same.into_iter().any(|(_, protocol)| protocol.is_none_or(|only| only == port.protocol))
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
