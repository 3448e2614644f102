use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use weir_netlink::{Malformed, Message};

use crate::{nfnetlink, packet};

/// A packet that a rule logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The log prefix of the rule.
    pub prefix: String,
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The number of the transport protocol or, in a truncated packet, of the last known header.
    pub protocol: u8,
    /// The source port. Only the first fragment of a packet has ports.
    pub source_port: Option<u16>,
    /// The destination port.
    pub destination_port: Option<u16>,
    /// The type of an ICMP or ICMPv6 packet.
    pub icmp_type: Option<u8>,
    /// The length of the whole packet, headers included.
    pub length: u32,
    /// The kernel's timestamp or, without one, the time of reading.
    pub time: SystemTime,
    /// The index of the input link; on a bridge, that of the port.
    pub input: Option<u32>,
    /// The index of the output link.
    pub output: Option<u32>,
}

impl Logged {
    /// Reads a log message: the packet, unless it is not IP, and the message's number.
    pub fn read(
        message: &Message<'_>,
        now: SystemTime,
    ) -> Result<(Option<Logged>, Option<u32>), Malformed> {
        let (mut prefix, mut payload, mut number) = (&[][..], &[][..], None);
        let (mut time, mut input, mut port, mut output) = (now, None, None, None);
        for attribute in message.attributes(nfnetlink::HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                NFULA_TIMESTAMP => time = timestamp(attribute.array()?).unwrap_or(now),
                NFULA_IFINDEX_INDEV => input = Some(attribute.be_u32()?),
                NFULA_IFINDEX_PHYSINDEV => port = Some(attribute.be_u32()?),
                NFULA_IFINDEX_OUTDEV => output = Some(attribute.be_u32()?),
                NFULA_PAYLOAD => payload = attribute.value,
                NFULA_PREFIX => prefix = attribute.value,
                NFULA_SEQ => number = Some(attribute.be_u32()?),
                _ => (),
            }
        }
        let logged = packet::read(payload).map(|packet| Logged {
            prefix: text(prefix),
            source: packet.source,
            destination: packet.destination,
            protocol: packet.protocol,
            source_port: packet.ports.map(|(source, _)| source),
            destination_port: packet.ports.map(|(_, destination)| destination),
            icmp_type: packet.icmp_type,
            length: packet.length,
            time,
            input: port.or(input),
            output,
        });
        Ok((logged, number))
    }
}

/// Decodes text up to the first NUL and replaces invalid UTF-8.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// A time in seconds and microseconds since 1970.
fn timestamp(bytes: [u8; 16]) -> Option<SystemTime> {
    let [seconds, microseconds] =
        [0, 8].map(|at| u64::from_be_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| bytes[at + byte])));
    let since = Duration::from_secs(seconds).checked_add(Duration::from_micros(microseconds))?;
    SystemTime::UNIX_EPOCH.checked_add(since)
}

// Attributes, as in `linux/netfilter/nfnetlink_log.h`.
const NFULA_TIMESTAMP: u16 = 3;
const NFULA_IFINDEX_INDEV: u16 = 4;
const NFULA_IFINDEX_OUTDEV: u16 = 5;
const NFULA_IFINDEX_PHYSINDEV: u16 = 6;
const NFULA_PAYLOAD: u16 = 9;
const NFULA_PREFIX: u16 = 10;
const NFULA_SEQ: u16 = 12;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_netlink::{Body, Header, MessageWriter, Messages};

    use super::*;

    const SYN: [u8; 24] =
        [0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0, 80];

    type Read = Result<(Option<Logged>, Option<u32>), Malformed>;

    fn check(body: impl FnOnce(&mut Body<'_>), expected: impl FnOnce(Read)) {
        let mut writer = MessageWriter::default();
        let header = Header { kind: 0x400, flags: 0, sequence: 0 };
        writer
            .message(header, |message| body(message.fixed(&nfnetlink::header(nfnetlink::IPV4, 7))))
            .unwrap();
        let message = Messages::new(writer.bytes()).next().unwrap().unwrap();
        expected(Logged::read(&message, now()));
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
    }

    fn syn() -> Logged {
        Logged {
            prefix: "weir ".to_owned(),
            source: "10.0.0.1".parse().unwrap(),
            destination: "10.0.0.2".parse().unwrap(),
            protocol: 6,
            source_port: Some(40000),
            destination_port: Some(80),
            icmp_type: None,
            length: 60,
            time: now(),
            input: Some(3),
            output: None,
        }
    }

    #[test]
    fn a_packet_has_prefix_addresses_and_links() {
        let body = |message: &mut Body<'_>| {
            message.be_u32(NFULA_IFINDEX_INDEV, 3).text(NFULA_PREFIX, "weir ");
            message.be_u32(NFULA_SEQ, 9).bytes(NFULA_PAYLOAD, &SYN);
        };
        check(body, |read| assert_eq!(read, Ok((Some(syn()), Some(9)))));
    }

    #[test]
    fn a_valid_kernel_timestamp_is_used() {
        let at = |seconds: u64| {
            let time = [seconds.to_be_bytes(), 500_000_u64.to_be_bytes()].concat();
            move |message: &mut Body<'_>| {
                message.bytes(NFULA_TIMESTAMP, &time).bytes(NFULA_PAYLOAD, &SYN);
            }
        };
        let time = |read: Read| read.unwrap().0.unwrap().time;
        check(at(5), |read| {
            assert_eq!(time(read), SystemTime::UNIX_EPOCH + Duration::from_millis(5500));
        });
        check(at(u64::MAX), |read| assert_eq!(time(read), now()));
    }

    #[test]
    fn a_message_without_an_ip_packet_has_its_number() {
        let body = |message: &mut Body<'_>| {
            message.be_u32(NFULA_SEQ, 9).bytes(NFULA_PAYLOAD, &[0, 1, 8, 0]);
        };
        check(body, |read| assert_eq!(read, Ok((None, Some(9)))));
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_decoded(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let message = Message { kind: 0x400, flags: 0, sequence: 0, port: 0, payload: &payload };
            _ = Logged::read(&message, now());
        }
    }
}
