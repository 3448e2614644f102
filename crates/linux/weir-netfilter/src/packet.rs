use std::net::IpAddr;

/// The fields at the start of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// The number of the transport protocol or, in a truncated packet, of the last known header.
    pub(crate) protocol: u8,
    /// The source and destination ports.
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) icmp_type: Option<u8>,
    /// The length of the whole packet.
    pub(crate) length: u32,
}

/// Reads a packet, which may be truncated. `None` without both addresses.
pub(crate) fn read(bytes: &[u8]) -> Option<Packet> {
    split(bytes).map(|(packet, _)| packet)
}

/// Reads a packet, and returns what begins with its transport header.
pub(crate) fn split(bytes: &[u8]) -> Option<(Packet, &[u8])> {
    match bytes.first()? >> 4 {
        4 => v4(bytes),
        6 => v6(bytes),
        _ => None,
    }
}

fn v4(bytes: &[u8]) -> Option<(Packet, &[u8])> {
    let header: &[u8; 20] = bytes.first_chunk()?;
    let words = usize::from(header[0] & 0xf);
    let [source, destination] = [12, 16].map(|at| [0, 1, 2, 3].map(|byte| header[at + byte]));
    let first = pair(header[6], header[7]) & FRAGMENT_OFFSET_V4 == 0;
    let transport = bytes.get(words * 4..).filter(|_| first && words >= 5).unwrap_or_default();
    let length = pair(header[2], header[3]).into();
    let packet = with_transport(source.into(), destination.into(), header[9], transport, length);
    Some((packet, transport))
}

fn v6(bytes: &[u8]) -> Option<(Packet, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<40>()?;
    let address = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
    let (source, destination) = (address(&header[8..24])?, address(&header[24..40])?);
    let (protocol, transport) = behind_extensions(header[6], rest);
    let length = u32::from(pair(header[4], header[5])) + 40;
    Some((with_transport(source, destination, protocol, transport, length), transport))
}

/// Follows the extension headers to the transport header or to the end of a truncated packet. Only
/// the first fragment has a transport header.
fn behind_extensions(mut protocol: u8, mut bytes: &[u8]) -> (u8, &[u8]) {
    loop {
        let Some(&[next, length]) = bytes.first_chunk() else { return (protocol, &[]) };
        let length = match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY | HIP | SHIM6 => {
                (usize::from(length) + 1) * 8
            }
            AUTHENTICATION => (usize::from(length) + 2) * 4,
            FRAGMENT => match bytes.get(2..4) {
                Some(&[high, low]) if pair(high, low) & FRAGMENT_OFFSET_V6 == 0 => 8,
                Some(_) => return (next, &[]),
                None => return (protocol, &[]),
            },
            _ => return (protocol, bytes),
        };
        protocol = next;
        bytes = bytes.get(length..).unwrap_or_default();
    }
}

fn with_transport(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    transport: &[u8],
    length: u32,
) -> Packet {
    let ports = match (protocol, transport.first_chunk()) {
        (TCP | UDP | DCCP | SCTP | UDP_LITE, Some(&[a, b, c, d])) => Some((pair(a, b), pair(c, d))),
        _ => None,
    };
    let icmp = if source.is_ipv4() { ICMP } else { ICMPV6 };
    let icmp_type = transport.first().copied().filter(|_| protocol == icmp);
    Packet { source, destination, protocol, ports, icmp_type, length }
}

fn pair(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

const FRAGMENT_OFFSET_V4: u16 = 0x1fff;
const FRAGMENT_OFFSET_V6: u16 = 0xfff8;

// Numbers of protocols, as IANA assigns them.
const HOP_BY_HOP: u8 = 0;
const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const DCCP: u8 = 33;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
const DESTINATION: u8 = 60;
const SCTP: u8 = 132;
const MOBILITY: u8 = 135;
const UDP_LITE: u8 = 136;
const HIP: u8 = 139;
const SHIM6: u8 = 140;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PORTS: [u8; 8] = [0x9c, 0x40, 0, 80, 0, 0, 0, 0];

    fn packet_v4(fragment: u16, protocol: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes =
            vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
        [&bytes, rest].concat()
    }

    fn packet_v6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 20, next, 64];
        for last in [1, 2] {
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        [&bytes, rest].concat()
    }

    /// A packet on one line.
    fn summary(bytes: &[u8]) -> String {
        let Some(packet) = read(bytes) else { return "nothing".to_owned() };
        let Packet { source, destination, protocol, ports, icmp_type, length } = packet;
        let ports = ports.map(|(from, to)| format!(" {from}->{to}")).unwrap_or_default();
        let icmp = icmp_type.map(|kind| format!(" type {kind}")).unwrap_or_default();
        format!("{source} -> {destination} protocol {protocol}{ports}{icmp}, {length} bytes")
    }

    #[test]
    fn ports_are_behind_the_header_and_its_options() {
        let plain = "10.0.0.1 -> 10.0.0.2 protocol 6 40000->80, 60 bytes";
        assert_eq!(summary(&packet_v4(0, TCP, &PORTS)), plain);
        let mut options = packet_v4(0, TCP, &[&[0; 8], &PORTS[..]].concat());
        options[0] = 0x47;
        assert_eq!(summary(&options), plain);
    }

    #[test]
    fn icmp_types_exist_in_their_own_family_only() {
        assert_eq!(
            summary(&packet_v4(0, ICMP, &[8, 0, 0, 0])),
            "10.0.0.1 -> 10.0.0.2 protocol 1 type 8, 60 bytes"
        );
        assert_eq!(
            summary(&packet_v6(ICMPV6, &[128, 0])),
            "fd00::1 -> fd00::2 protocol 58 type 128, 60 bytes"
        );
        assert_eq!(
            summary(&packet_v4(0, ICMPV6, &[8, 0, 0, 0])),
            "10.0.0.1 -> 10.0.0.2 protocol 58, 60 bytes"
        );
    }

    #[test]
    fn only_the_first_fragment_has_ports() {
        let first = packet_v4(0x2000, UDP, &PORTS);
        assert_eq!(summary(&first), "10.0.0.1 -> 10.0.0.2 protocol 17 40000->80, 60 bytes");
        let later = packet_v4(0x2001, UDP, &PORTS);
        assert_eq!(summary(&later), "10.0.0.1 -> 10.0.0.2 protocol 17, 60 bytes");
        let first = packet_v6(FRAGMENT, &[&[UDP, 0, 0, 1, 0, 0, 0, 7], &PORTS[..]].concat());
        assert_eq!(summary(&first), "fd00::1 -> fd00::2 protocol 17 40000->80, 60 bytes");
        let later = packet_v6(FRAGMENT, &[&[UDP, 0, 0, 9, 0, 0, 0, 7], &PORTS[..]].concat());
        assert_eq!(summary(&later), "fd00::1 -> fd00::2 protocol 17, 60 bytes");
    }

    #[test]
    fn extension_headers_are_followed() {
        let hop = [ROUTING, 0, 0, 0, 0, 0, 0, 0];
        let routing = [[AUTHENTICATION, 1, 0, 0, 0, 0, 0, 0], [0; 8]].concat();
        let authentication = [DESTINATION, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let destination = [TCP, 0, 0, 0, 0, 0, 0, 0];
        let chain = [&hop, &routing[..], &authentication, &destination, &PORTS].concat();
        let whole = packet_v6(HOP_BY_HOP, &chain);
        assert_eq!(summary(&whole), "fd00::1 -> fd00::2 protocol 6 40000->80, 60 bytes");
        let truncated = &whole[..40 + 8 + 10];
        assert_eq!(summary(truncated), "fd00::1 -> fd00::2 protocol 51, 60 bytes");
        assert_eq!(summary(&whole[..41]), "fd00::1 -> fd00::2 protocol 0, 60 bytes");
    }

    #[test]
    fn a_truncated_packet_yields_the_fields_it_contains() {
        let whole = packet_v4(0, TCP, &PORTS);
        assert_eq!(summary(&whole[..23]), "10.0.0.1 -> 10.0.0.2 protocol 6, 60 bytes");
        assert_eq!(summary(&whole[..19]), "nothing");
        assert_eq!(summary(&[]), "nothing");
        assert_eq!(summary(&[0x10; 80]), "nothing");
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_decoded(
            version in prop_oneof![Just(0x45_u8), Just(0x60), any::<u8>()],
            mut bytes in proptest::collection::vec(any::<u8>(), 1..200),
        ) {
            bytes[0] = version;
            _ = read(&bytes);
        }

        #[test]
        fn any_chain_of_extensions_ends(
            next in proptest::sample::select(vec![HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION]),
            links in proptest::collection::vec(
                proptest::sample::select(vec![HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION, TCP]),
                0..30,
            ),
        ) {
            let rest: Vec<u8> = links.iter().flat_map(|next| [*next, 0, 0, 0, 0, 0, 0, 0]).collect();
            prop_assert!(read(&packet_v6(next, &rest)).is_some());
        }
    }
}
