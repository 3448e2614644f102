use std::{fmt, net::IpAddr};

use weir_model::Protocol;
use weir_netlink::{Attribute, Attributes, Body, Malformed, Message};

use crate::nfnetlink;

/// A tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection {
    /// The number of the transport protocol.
    pub protocol: u8,
    /// The addresses and ports of its packets, before any translation.
    pub original: Tuple,
    /// The addresses and ports of its replies, as the server sends them.
    pub reply: Tuple,
    /// The original tuple of the connection because of which a helper expected this one, as for FTP
    /// data.
    pub master: Option<Tuple>,
    /// Whether the kernel saw its first packet in the middle of a TCP connection, so that the
    /// original sender may be the server.
    pub is_picked_up: bool,
    /// The transport part of the original tuple, as the kernel wrote it.
    transport: TransportBytes,
    /// Distinguishes it from earlier and later connections with the same tuple.
    pub id: u32,
    /// The zone of the original tuple. 0 unless rules set another one.
    pub zone: u16,
}

/// The addresses and ports of a connection in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The source port. 0 for a protocol without ports.
    pub source_port: u16,
    /// The destination port. 0 for a protocol without ports.
    pub destination_port: u16,
}

/// The attributes of a tuple's transport protocol, such as ports or the id of an echo.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct TransportBytes {
    bytes: [u8; TransportBytes::MAX],
    length: usize,
}

impl TransportBytes {
    /// The number of the protocol and four parts, each with its header.
    const MAX: usize = 40;

    fn copy(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut copy = TransportBytes { bytes: [0; TransportBytes::MAX], length: bytes.len() };
        let target = copy.bytes.get_mut(..bytes.len()).ok_or(Malformed::Attribute)?;
        target.copy_from_slice(bytes);
        Ok(copy)
    }

    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl fmt::Debug for TransportBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_slice())
    }
}

impl Connection {
    /// The source before any translation, and the destination after service translation: the ends
    /// that policies see.
    pub fn ends(&self) -> (IpAddr, IpAddr) {
        (self.original.source, self.reply.source)
    }

    /// The destination port that policies see. `None` if policies cannot name the protocol.
    pub fn port(&self) -> Option<(Protocol, u16)> {
        Protocol::from_number(self.protocol).map(|protocol| (protocol, self.reply.source_port))
    }

    /// The port of a connection in the other direction, between the same ends.
    pub fn reverse_port(&self) -> Option<(Protocol, u16)> {
        Protocol::from_number(self.protocol).map(|protocol| (protocol, self.original.source_port))
    }

    /// Reads an entry of the kernel's list.
    pub fn read(message: &Message<'_>) -> Result<Connection, Malformed> {
        let (mut original, mut reply, mut id, mut zone) = (None, None, None, 0);
        let (mut master, mut is_picked_up) = (None, false);
        for attribute in message.attributes(nfnetlink::HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                CTA_TUPLE_ORIG => {
                    let half = Half::read(attribute.attributes())?;
                    zone = half.zone.unwrap_or(zone);
                    original = Some(half);
                }
                CTA_TUPLE_REPLY => reply = Some(Half::read(attribute.attributes())?),
                CTA_TUPLE_MASTER => master = Some(Half::read(attribute.attributes())?.tuple),
                CTA_PROTOINFO => is_picked_up = is_liberal(attribute.attributes())?,
                CTA_ZONE => zone = attribute.be_u16()?,
                CTA_ID => id = Some(attribute.be_u32()?),
                _ => (),
            }
        }
        let (Some(original), Some(reply), Some(id)) = (original, reply, id) else {
            return Err(Malformed::Message);
        };
        Ok(Connection {
            protocol: original.protocol,
            original: original.tuple,
            reply: reply.tuple,
            master,
            is_picked_up,
            transport: TransportBytes::copy(original.transport)?,
            id,
            zone,
        })
    }

    /// Writes the attributes that identify this connection.
    pub fn write(&self, message: &mut Body<'_>) {
        let family = if self.original.source.is_ipv4() { nfnetlink::IPV4 } else { nfnetlink::IPV6 };
        message
            .fixed(&nfnetlink::header(family, 0))
            .nest(CTA_TUPLE_ORIG, |tuple| {
                tuple.nest(CTA_TUPLE_IP, |ip| {
                    address(ip, self.original.source, CTA_IP_V4_SRC, CTA_IP_V6_SRC);
                    address(ip, self.original.destination, CTA_IP_V4_DST, CTA_IP_V6_DST);
                });
                tuple.nest(CTA_TUPLE_PROTO, |transport| {
                    transport.fixed(self.transport.as_slice());
                });
            })
            .be_u16(CTA_ZONE, self.zone)
            .be_u32(CTA_ID, self.id);
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = self.ends();
        match self.port() {
            Some((protocol, port)) => write!(f, "{from} -> {to} {port}/{protocol}"),
            None => write!(f, "{from} -> {to} protocol {}", self.protocol),
        }
    }
}

/// Whether the kernel does not check the sequence numbers of either direction, because it did not
/// see the connection begin.
fn is_liberal(attributes: Attributes<'_>) -> Result<bool, Malformed> {
    let mut liberal = 0;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind != CTA_PROTOINFO_TCP {
            continue;
        }
        for part in attribute.attributes() {
            let part = part?;
            if matches!(part.kind, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL | CTA_PROTOINFO_TCP_FLAGS_REPLY)
            {
                let [flags, _mask] = part.array::<2>()?;
                liberal += u8::from(flags & IP_CT_TCP_FLAG_BE_LIBERAL != 0);
            }
        }
    }
    Ok(liberal == 2)
}

/// One direction, as the kernel sends it.
struct Half<'a> {
    protocol: u8,
    tuple: Tuple,
    /// The attributes of the transport protocol.
    transport: &'a [u8],
    zone: Option<u16>,
}

impl<'a> Half<'a> {
    fn read(attributes: Attributes<'a>) -> Result<Half<'a>, Malformed> {
        let (mut source, mut destination) = (None, None);
        let (mut protocol, mut source_port, mut destination_port) = (None, 0, 0);
        let (mut transport, mut zone): (&[u8], _) = (&[], None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                CTA_TUPLE_IP => {
                    for ip in attribute.attributes() {
                        let ip = ip?;
                        match ip.kind {
                            CTA_IP_V4_SRC => source = Some(v4(ip)?),
                            CTA_IP_V4_DST => destination = Some(v4(ip)?),
                            CTA_IP_V6_SRC => source = Some(v6(ip)?),
                            CTA_IP_V6_DST => destination = Some(v6(ip)?),
                            _ => (),
                        }
                    }
                }
                CTA_TUPLE_PROTO => {
                    transport = attribute.value;
                    for part in attribute.attributes() {
                        let part = part?;
                        match part.kind {
                            CTA_PROTO_NUM => protocol = Some(part.u8()?),
                            CTA_PROTO_SRC_PORT => source_port = part.be_u16()?,
                            CTA_PROTO_DST_PORT => destination_port = part.be_u16()?,
                            _ => (),
                        }
                    }
                }
                CTA_TUPLE_ZONE => zone = Some(attribute.be_u16()?),
                _ => (),
            }
        }
        let (Some(protocol), Some(source), Some(destination)) = (protocol, source, destination)
        else {
            return Err(Malformed::Message);
        };
        let tuple = Tuple { source, destination, source_port, destination_port };
        Ok(Half { protocol, tuple, transport, zone })
    }
}

fn v4(attribute: Attribute<'_>) -> Result<IpAddr, Malformed> {
    attribute.array::<4>().map(IpAddr::from)
}

fn v6(attribute: Attribute<'_>) -> Result<IpAddr, Malformed> {
    attribute.array::<16>().map(IpAddr::from)
}

fn address(body: &mut Body<'_>, address: IpAddr, v4: u16, v6: u16) {
    match address {
        IpAddr::V4(address) => body.bytes(v4, &address.octets()),
        IpAddr::V6(address) => body.bytes(v6, &address.octets()),
    };
}

// Attributes, as in `linux/netfilter/nfnetlink_conntrack.h`.
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_PROTOINFO: u16 = 4;
const CTA_ID: u16 = 12;
const CTA_TUPLE_MASTER: u16 = 14;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;
/// From `linux/netfilter/nf_conntrack_tcp.h`.
const IP_CT_TCP_FLAG_BE_LIBERAL: u8 = 0x08;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_netlink::{Header, MessageWriter, Messages};

    use super::*;

    const HEADER: Header = Header { kind: 0x100, flags: 0, sequence: 0 };

    fn tuple(source: &str, source_port: u16, destination: &str, destination_port: u16) -> Tuple {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        Tuple { source, destination, source_port, destination_port }
    }

    /// A connection to a service: the destination and, by masquerading, the source are translated.
    fn translated() -> (Tuple, Tuple) {
        (tuple("10.0.0.1", 40000, "10.96.0.1", 80), tuple("10.0.0.2", 8080, "192.168.0.1", 50000))
    }

    fn write_tuple(body: &mut Body<'_>, kind: u16, number: u8, tuple: Tuple, zone: Option<u16>) {
        body.nest(kind, |half| {
            half.nest(CTA_TUPLE_IP, |ip| {
                address(ip, tuple.source, CTA_IP_V4_SRC, CTA_IP_V6_SRC);
                address(ip, tuple.destination, CTA_IP_V4_DST, CTA_IP_V6_DST);
            });
            half.nest(CTA_TUPLE_PROTO, |transport| {
                transport
                    .u8(CTA_PROTO_NUM, number)
                    .be_u16(CTA_PROTO_SRC_PORT, tuple.source_port)
                    .be_u16(CTA_PROTO_DST_PORT, tuple.destination_port);
            });
            zone.into_iter().for_each(|zone| _ = half.be_u16(CTA_TUPLE_ZONE, zone));
        });
    }

    /// The message of the kernel for a connection with the id 7.
    fn written(
        (original, reply): (Tuple, Tuple),
        number: u8,
        original_zone: Option<u16>,
        more: impl FnOnce(&mut Body<'_>),
    ) -> Vec<u8> {
        let mut writer = MessageWriter::default();
        writer
            .message(HEADER, |body| {
                body.fixed(&nfnetlink::header(nfnetlink::IPV4, 0));
                write_tuple(body, CTA_TUPLE_ORIG, number, original, original_zone);
                write_tuple(body, CTA_TUPLE_REPLY, number, reply, None);
                body.be_u32(CTA_ID, 7);
                more(body);
            })
            .unwrap();
        writer.bytes().to_vec()
    }

    fn read(bytes: &[u8]) -> Result<Connection, Malformed> {
        Connection::read(&Messages::new(bytes).next().unwrap()?)
    }

    #[test]
    fn policies_see_the_source_before_and_the_destination_after_translation() {
        let connection = read(&written(translated(), 6, None, |_| ())).unwrap();
        assert_eq!(connection.to_string(), "10.0.0.1 -> 10.0.0.2 8080/TCP");
        assert_eq!((connection.original, connection.reply), translated());
        assert_eq!((connection.id, connection.zone, connection.master), (7, 0, None));
        let v6 = (tuple("fd00::1", 1, "fd00::2", 2), tuple("fd00::2", 2, "fd00::1", 1));
        let connection = read(&written(v6, 132, None, |body| _ = body.be_u16(CTA_ZONE, 9)));
        let connection = connection.unwrap();
        assert_eq!(connection.to_string(), "fd00::1 -> fd00::2 2/SCTP");
        assert_eq!(connection.zone, 9);
    }

    #[test]
    fn a_zone_may_apply_to_one_direction() {
        assert_eq!(read(&written(translated(), 6, Some(5), |_| ())).unwrap().zone, 5);
    }

    #[test]
    fn protocols_that_policies_cannot_name_have_no_port() {
        for number in [1, 47, 253] {
            let connection = read(&written(translated(), number, None, |_| ())).unwrap();
            assert_eq!((connection.protocol, connection.port()), (number, None));
        }
    }

    #[test]
    fn an_expected_connection_knows_its_master() {
        let master = tuple("10.0.0.1", 40001, "10.96.0.1", 21);
        let with_master =
            |body: &mut Body<'_>| write_tuple(body, CTA_TUPLE_MASTER, 6, master, None);
        let connection = read(&written(translated(), 6, None, with_master)).unwrap();
        assert_eq!(connection.master, Some(master));
    }

    #[test]
    fn a_connection_is_picked_up_if_the_kernel_checks_no_sequence_numbers() {
        let flags = |original: u8, reply: u8| {
            let more = move |body: &mut Body<'_>| {
                body.nest(CTA_PROTOINFO, |info| {
                    info.nest(CTA_PROTOINFO_TCP, |tcp| {
                        tcp.bytes(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &[original, 0])
                            .bytes(CTA_PROTOINFO_TCP_FLAGS_REPLY, &[reply, 0]);
                    });
                });
            };
            read(&written(translated(), 6, None, more)).unwrap().is_picked_up
        };
        assert!(flags(0x0a, 0x0a));
        assert!(!flags(0x0a, 0x02));
        assert!(!flags(0x03, 0x03));
    }

    #[test]
    fn a_connection_is_identified_by_its_tuple_zone_and_id() {
        let connection = read(&written(translated(), 6, Some(5), |_| ())).unwrap();
        let mut writer = MessageWriter::default();
        writer.message(HEADER, |body| connection.write(body)).unwrap();
        let message = Messages::new(writer.bytes()).next().unwrap().unwrap();
        assert_eq!(message.payload[..4], [nfnetlink::IPV4, 0, 0, 0]);
        let attributes: Vec<_> = message.attributes(4).map(Result::unwrap).collect();
        let [tuple, zone, id] = attributes[..] else { panic!("{attributes:?}") };
        assert_eq!(Half::read(tuple.attributes()).unwrap().tuple, connection.original);
        assert_eq!((zone.kind, zone.be_u16()), (CTA_ZONE, Ok(5)));
        assert_eq!((id.kind, id.be_u32()), (CTA_ID, Ok(7)));
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_decoded(
            payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            _ = Connection::read(&Message { kind: 0x100, flags: 0, sequence: 0, port: 0, payload: &payload });
        }

        #[test]
        fn damaged_messages_are_handled(offset in 16..180_usize, byte: u8, end in 0..180_usize) {
            let mut bytes = written(translated(), 6, Some(1), |_| ());
            let length = bytes.len();
            bytes[offset.min(length - 1)] = byte;
            let payload = &bytes[16..end.clamp(16, length)];
            _ = Connection::read(&Message { kind: 0x100, flags: 0, sequence: 0, port: 0, payload });
        }
    }
}
