use std::sync::Arc;

use weir_model::Protocol;

/// A protocol that HNS filters by port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AclProtocol {
    Tcp,
    Udp,
}

impl AclProtocol {
    /// `None` for SCTP, which HNS does not filter.
    pub(crate) fn new(protocol: Protocol) -> Option<Self> {
        match protocol {
            Protocol::Tcp => Some(AclProtocol::Tcp),
            Protocol::Udp => Some(AclProtocol::Udp),
            Protocol::Sctp => None,
        }
    }
}

/// Ports of one protocol, or all traffic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AclPorts {
    Any,
    /// Sorted ranges that do not touch.
    Of(AclProtocol, Arc<[(u16, u16)]>),
}

impl AclPorts {
    /// One range of ports.
    pub(crate) fn range(protocol: AclProtocol, first: u16, last: u16) -> Self {
        AclPorts::Of(protocol, [(first, last)].into())
    }

    /// The number of ranges.
    pub(crate) fn len(&self) -> usize {
        match self {
            AclPorts::Any => 0,
            AclPorts::Of(_, ranges) => ranges.len(),
        }
    }

    /// The intersection. `None` if it is empty.
    pub(crate) fn and(&self, other: &AclPorts) -> Option<AclPorts> {
        let (protocol, left, right) = match (self, other) {
            (AclPorts::Any, ports) | (ports, AclPorts::Any) => return Some(ports.clone()),
            (AclPorts::Of(one, left), AclPorts::Of(other, right)) if one == other => {
                (*one, left, right)
            }
            _ => return None,
        };
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
        (!both.is_empty()).then(|| AclPorts::Of(protocol, both.into()))
    }

    /// The ports in the format of HNS, in lists of limited length. Empty text for all ports.
    pub(crate) fn texts(&self, max_length: usize) -> Vec<String> {
        match self {
            AclPorts::Any => vec![String::new()],
            AclPorts::Of(_, ranges) if **ranges == [(0, u16::MAX)] => vec![String::new()],
            AclPorts::Of(_, ranges) => ranges
                .chunks(max_length.max(1))
                .map(|some| some.iter().map(range_text).collect::<Vec<_>>().join(","))
                .collect(),
        }
    }
}

fn range_text((first, last): &(u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(ranges: &[(u16, u16)]) -> AclPorts {
        AclPorts::Of(AclProtocol::Tcp, ranges.into())
    }

    #[test]
    fn ports_are_common_to_two_lists() {
        let (one, other) = (tcp(&[(1, 5), (9, 9), (20, 30)]), tcp(&[(4, 21), (30, 40)]));
        let both = tcp(&[(4, 5), (9, 9), (20, 21), (30, 30)]);
        assert_eq!(one.and(&other), Some(both.clone()));
        assert_eq!(other.and(&one), Some(both));
        assert_eq!(one.and(&AclPorts::Any), Some(one.clone()));
        assert_eq!(one.and(&AclPorts::range(AclProtocol::Udp, 1, 9)), None);
        assert_eq!(one.and(&tcp(&[(6, 8)])), None);
    }

    #[test]
    fn a_long_list_has_several_texts() {
        assert_eq!(tcp(&[(1, 1), (3, 5), (7, 7)]).texts(2), ["1,3-5", "7"]);
        assert_eq!(tcp(&[(0, u16::MAX)]).texts(2), [""], "every port");
        assert_eq!(AclPorts::Any.texts(2), [""]);
    }
}
