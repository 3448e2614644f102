use std::net::IpAddr;

use weir_model::{Flow, Protocol};
use weir_netlink::{Attribute, Attributes, Body, Malformed, Message};

use crate::nfnetlink;

/// A tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The addresses and ports of its packets, before any translation.
    pub original: Tuple,
    /// The addresses and ports of its replies, as the server sends them.
    pub reply: Tuple,
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
    /// The source port.
    pub source_port: u16,
    /// The destination port.
    pub destination_port: u16,
}

impl Connection {
    /// The connection as policies see it: from its original source to its destination after service
    /// translation.
    pub fn flow(&self) -> Flow {
        Flow {
            from: self.original.source,
            to: self.reply.source,
            protocol: self.protocol,
            port: self.reply.source_port,
        }
    }

    /// Reads an entry of the kernel's list. `None` if policies cannot name its protocol.
    pub fn read(message: &Message<'_>) -> Result<Option<Connection>, Malformed> {
        let (mut original, mut reply, mut id, mut zone) = (None, None, None, 0);
        for attribute in message.attributes(nfnetlink::HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                CTA_TUPLE_ORIG => match Half::read(attribute.attributes())? {
                    Some(half) => {
                        zone = half.zone.unwrap_or(zone);
                        original = Some(half);
                    }
                    // The kernel sends the original tuple first, so this skips the rest.
                    None => return Ok(None),
                },
                CTA_TUPLE_REPLY => reply = Half::read(attribute.attributes())?,
                CTA_ZONE => zone = attribute.be_u16()?,
                CTA_ID => id = Some(attribute.be_u32()?),
                _ => (),
            }
        }
        let (Some(original), Some(reply), Some(id)) = (original, reply, id) else {
            return Err(Malformed::Message);
        };
        let protocol = original.protocol;
        Ok(Some(Connection { protocol, original: original.tuple, reply: reply.tuple, id, zone }))
    }

    /// Writes the attributes that identify this connection.
    pub fn write(&self, message: &mut Body<'_>) {
        let family = if self.original.source.is_ipv4() { nfnetlink::IPV4 } else { nfnetlink::IPV6 };
        message.fixed(&nfnetlink::header(family, 0)).nest(CTA_TUPLE_ORIG, |tuple| {
            tuple.nest(CTA_TUPLE_IP, |ip| {
                address(ip, self.original.source, CTA_IP_V4_SRC, CTA_IP_V6_SRC);
                address(ip, self.original.destination, CTA_IP_V4_DST, CTA_IP_V6_DST);
            });
            tuple.nest(CTA_TUPLE_PROTO, |transport| {
                transport
                    .u8(CTA_PROTO_NUM, self.protocol.number())
                    .be_u16(CTA_PROTO_SRC_PORT, self.original.source_port)
                    .be_u16(CTA_PROTO_DST_PORT, self.original.destination_port);
            });
        });
        message.be_u16(CTA_ZONE, self.zone).be_u32(CTA_ID, self.id);
    }
}

/// One direction, as the kernel sends it.
struct Half {
    protocol: Protocol,
    tuple: Tuple,
    zone: Option<u16>,
}

impl Half {
    fn read(attributes: Attributes<'_>) -> Result<Option<Half>, Malformed> {
        let (mut source, mut destination) = (None, None);
        let (mut protocol, mut source_port, mut destination_port) = (None, None, None);
        let mut zone = None;
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
                    for transport in attribute.attributes() {
                        let transport = transport?;
                        match transport.kind {
                            CTA_PROTO_NUM => match Protocol::from_number(transport.u8()?) {
                                Some(found) => protocol = Some(found),
                                None => return Ok(None),
                            },
                            CTA_PROTO_SRC_PORT => source_port = Some(transport.be_u16()?),
                            CTA_PROTO_DST_PORT => destination_port = Some(transport.be_u16()?),
                            _ => (),
                        }
                    }
                }
                CTA_TUPLE_ZONE => zone = Some(attribute.be_u16()?),
                _ => (),
            }
        }
        match (protocol, source, destination, source_port, destination_port) {
            (
                Some(protocol),
                Some(source),
                Some(destination),
                Some(source_port),
                Some(destination_port),
            ) => {
                let tuple = Tuple { source, destination, source_port, destination_port };
                Ok(Some(Half { protocol, tuple, zone }))
            }
            _ => Err(Malformed::Message),
        }
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
const CTA_ID: u16 = 12;
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
    fn translated() -> Connection {
        Connection {
            protocol: Protocol::Tcp,
            original: tuple("10.0.0.1", 40000, "10.96.0.1", 80),
            reply: tuple("10.0.0.2", 8080, "192.168.0.1", 50000),
            id: 7,
            zone: 0,
        }
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

    /// The message of the kernel for a connection.
    fn written(connection: &Connection, number: u8, original_zone: Option<u16>) -> Vec<u8> {
        let mut writer = MessageWriter::default();
        writer
            .message(HEADER, |body| {
                body.fixed(&nfnetlink::header(nfnetlink::IPV4, 0));
                write_tuple(body, CTA_TUPLE_ORIG, number, connection.original, original_zone);
                write_tuple(body, CTA_TUPLE_REPLY, number, connection.reply, None);
                body.be_u32(CTA_ID, connection.id);
                if connection.zone != 0 && original_zone.is_none() {
                    body.be_u16(CTA_ZONE, connection.zone);
                }
            })
            .unwrap();
        writer.bytes().to_vec()
    }

    fn read(bytes: &[u8]) -> Result<Option<Connection>, Malformed> {
        Connection::read(&Messages::new(bytes).next().unwrap()?)
    }

    #[test]
    fn policies_see_the_source_before_and_the_destination_after_translation() {
        let flow = translated().flow();
        assert_eq!(flow.to_string(), "10.0.0.1 -> 10.0.0.2 8080/TCP");
    }

    #[test]
    fn listed_connections_are_decoded() {
        let connection = translated();
        assert_eq!(read(&written(&connection, 6, None)), Ok(Some(connection)));
        let v6 = Connection {
            protocol: Protocol::Sctp,
            original: tuple("fd00::1", 1, "fd00::2", 2),
            reply: tuple("fd00::2", 2, "fd00::1", 1),
            zone: 9,
            ..connection
        };
        assert_eq!(read(&written(&v6, 132, None)), Ok(Some(v6)));
    }

    #[test]
    fn a_zone_may_apply_to_one_direction() {
        let connection = Connection { zone: 5, ..translated() };
        assert_eq!(read(&written(&connection, 6, Some(5))), Ok(Some(connection)));
    }

    #[test]
    fn protocols_that_policies_cannot_name_are_skipped() {
        assert_eq!(read(&written(&translated(), 1, None)), Ok(None));
        assert_eq!(read(&written(&translated(), 47, None)), Ok(None));
    }

    #[test]
    fn a_connection_is_identified_by_its_tuple_zone_and_id() {
        let connection = Connection { zone: 5, ..translated() };
        let mut writer = MessageWriter::default();
        writer.message(HEADER, |body| connection.write(body)).unwrap();
        let message = Messages::new(writer.bytes()).next().unwrap().unwrap();
        assert_eq!(message.payload[..4], [nfnetlink::IPV4, 0, 0, 0]);
        let attributes: Vec<_> = message.attributes(4).map(Result::unwrap).collect();
        let [tuple, zone, id] = attributes[..] else { panic!("{attributes:?}") };
        assert_eq!(Half::read(tuple.attributes()).unwrap().unwrap().tuple, connection.original);
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
            let mut bytes = written(&translated(), 6, Some(1));
            let length = bytes.len();
            bytes[offset.min(length - 1)] = byte;
            let payload = &bytes[16..end.clamp(16, length)];
            _ = Connection::read(&Message { kind: 0x100, flags: 0, sequence: 0, port: 0, payload });
        }
    }
}
