//! Answers to denied packets: a TCP reset, or an ICMP error.
//!
//! The programs cannot send packets: netfilter lets them only accept or drop. So the reader of the
//! reports sends the answers from a raw socket.

use std::net::IpAddr;

use weir_model::Protocol;

use crate::layout::Report;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const HOP_LIMIT: u8 = 64;
const TCP_RST: u8 = 4;
const TCP_ACK: u8 = 16;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Destination unreachable, because communication is administratively prohibited: type and code.
const PROHIBITED: [u8; 2] = [3, 13];
const PROHIBITED_V6: [u8; 2] = [1, 1];
const ECHO: u8 = 8;
const ECHO_V6: u8 = 128;

/// The packet that answers a denied one, with its IP header. `here` is the address of this node from
/// which it sends errors.
pub(crate) fn answer(report: &Report, here: IpAddr) -> Option<Vec<u8>> {
    let (to, from) = (report.source, report.destination);
    if Protocol::from_number(report.protocol) == Some(Protocol::Tcp) {
        let segment = reset(report);
        let segment = with_checksum(segment, 16, from.0, to.0, report.protocol)?;
        return packet(from.0, to.0, report.protocol, &segment);
    }
    let (kind, protocol) = match here {
        IpAddr::V4(_) => (PROHIBITED, ICMP),
        IpAddr::V6(_) => (PROHIBITED_V6, ICMPV6),
    };
    let quoted = packet(to.0, from.0, report.protocol, &first_bytes(report))?;
    let message = [&kind[..], &[0; 6], &quoted].concat();
    let message = match here {
        IpAddr::V4(_) => set_checksum(message, 2, 0),
        IpAddr::V6(_) => with_checksum(message, 2, here, to.0, ICMPV6)?,
    };
    packet(here, to.0, protocol, &message)
}

/// A reset, as the kernel would send it.
fn reset(report: &Report) -> Vec<u8> {
    let (sequence, acknowledgement, flags) = match report.tcp_flags & TCP_ACK {
        0 => (0, report.sequence.wrapping_add(1), TCP_RST | TCP_ACK),
        _ => (report.acknowledgement, 0, TCP_RST),
    };
    let mut segment = Vec::with_capacity(20);
    segment.extend(report.destination.1.to_be_bytes());
    segment.extend(report.source.1.to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledgement.to_be_bytes());
    // The header has 5 words. No window, checksum and urgent pointer.
    segment.extend([5 << 4, flags, 0, 0, 0, 0, 0, 0]);
    segment
}

/// The first bytes of the denied packet after its IP header, by which its sender recognises it.
fn first_bytes(report: &Report) -> Vec<u8> {
    let [[a, b], [c, d]] = [report.source.1, report.destination.1].map(u16::to_be_bytes);
    match report.protocol {
        // The id takes the place of both ports.
        ICMP => vec![ECHO, 0, 0, 0, a, b, 0, 0],
        ICMPV6 => vec![ECHO_V6, 0, 0, 0, a, b, 0, 0],
        _ => vec![a, b, c, d, 0, 8, 0, 0],
    }
}

/// A packet with an IP header; `None` if the addresses are of two families.
fn packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Option<Vec<u8>> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = u16::try_from(IPV4_HEADER + payload.len()).ok()?.to_be_bytes();
            let mut header =
                vec![0x45, 0, length[0], length[1], 0, 0, 0x40, 0, HOP_LIMIT, protocol];
            header.extend([0; 2]);
            header.extend(from.octets());
            header.extend(to.octets());
            Some([set_checksum(header, 10, 0), payload.to_vec()].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = u16::try_from(payload.len()).ok()?.to_be_bytes();
            let mut header = Vec::with_capacity(IPV6_HEADER + payload.len());
            header.extend([0x60, 0, 0, 0, length[0], length[1], protocol, HOP_LIMIT]);
            header.extend(from.octets());
            header.extend(to.octets());
            header.extend(payload);
            Some(header)
        }
        _ => None,
    }
}

/// Sets the checksum of a message, which includes the addresses.
fn with_checksum(
    message: Vec<u8>,
    at: usize,
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
) -> Option<Vec<u8>> {
    let addresses = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
        _ => return None,
    };
    let length = u64::try_from(message.len()).ok()?;
    let sum = words(&addresses) + length + u64::from(protocol);
    Some(set_checksum(message, at, sum))
}

/// Sets the checksum of bytes, and of others with a sum.
fn set_checksum(mut bytes: Vec<u8>, at: usize, others: u64) -> Vec<u8> {
    let mut sum = words(&bytes) + others;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    if let Some(checksum) = bytes.get_mut(at..at + 2) {
        checksum.copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    bytes
}

fn words(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    bytes.chunks(2).map(word).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(protocol: u8, [from, to]: [&str; 2]) -> Report {
        Report {
            cause: 0,
            protocol,
            is_answerable: true,
            source: (from.parse().unwrap(), 40_000),
            destination: (to.parse().unwrap(), 80),
            sequence: 7,
            acknowledgement: 9,
            tcp_flags: 2,
        }
    }

    fn sum(bytes: &[u8], others: u64) -> u64 {
        let mut sum = words(bytes) + others;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    }

    #[test]
    fn a_reset_acknowledges_what_it_answers() {
        let ends = ["10.0.0.1", "10.0.0.2"];
        let syn = report(6, ends);
        let answer_of = |report: &Report| answer(report, "10.0.0.9".parse().unwrap()).unwrap();
        let bytes = answer_of(&syn);
        assert_eq!(bytes.len(), 40);
        assert_eq!(sum(&bytes[..20], 0), 0xffff, "the checksum of the header");
        assert_eq!(bytes[12..20], [10, 0, 0, 2, 10, 0, 0, 1]);
        assert_eq!(bytes[20..24], [0, 80, 0x9c, 0x40], "the ports");
        assert_eq!(bytes[24..32], [0, 0, 0, 0, 0, 0, 0, 8], "of SYN 7");
        assert_eq!(bytes[33], TCP_RST | TCP_ACK);
        assert_eq!(sum(&bytes[12..], 6 + 20), 0xffff, "the checksum of the segment");
        let bytes = answer_of(&Report { tcp_flags: TCP_ACK, ..syn });
        assert_eq!(bytes[24..32], [0, 0, 0, 9, 0, 0, 0, 0]);
        assert_eq!(bytes[33], TCP_RST);
    }

    #[test]
    fn an_error_quotes_the_packet() {
        let bytes = answer(&report(17, ["fd00::1", "fd00::2"]), "fd00::9".parse().unwrap());
        let bytes = bytes.unwrap();
        assert_eq!(bytes.len(), 40 + 8 + 40 + 8);
        assert_eq!((bytes[6], &bytes[40..42]), (ICMPV6, &PROHIBITED_V6[..]));
        assert_eq!(sum(&bytes[8..], 58 + 56), 0xffff, "the checksum");
        let source: std::net::Ipv6Addr = "fd00::1".parse().unwrap();
        assert_eq!(bytes[48 + 8..48 + 24], source.octets());
        assert_eq!(bytes[88..92], [0x9c, 0x40, 0, 80], "the ports");
        let bytes = answer(&report(1, ["10.0.0.1", "10.0.0.2"]), "10.0.0.9".parse().unwrap());
        assert_eq!(bytes.unwrap()[48..56], [ECHO, 0, 0, 0, 0x9c, 0x40, 0, 0]);
    }
}
