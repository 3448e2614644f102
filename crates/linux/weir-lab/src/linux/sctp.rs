//! The first two packets of an SCTP association, written by hand, because the kernel may lack SCTP.

/// The INIT packet.
pub(super) fn init(from: u16, to: u16) -> Vec<u8> {
    packet(from, to, 0, INIT, &[])
}

/// The answer to a packet, if it is an INIT.
pub(super) fn answer(packet: &[u8]) -> Option<Vec<u8>> {
    let opens = packet.get(12) == Some(&INIT);
    let tag = u32::from_be_bytes(packet.get(16..20)?.try_into().ok()?);
    // An arbitrary cookie: the client never returns it.
    let cookie = [0, 7, 0, 8, b'w', b'e', b'i', b'r'];
    opens.then(|| self::packet(port(packet, 2), port(packet, 0), tag, INIT_ACK, &cookie))
}

/// Whether a packet has these ports.
pub(super) fn is_between(packet: &[u8], from: u16, to: u16) -> bool {
    packet.len() >= 12 && port(packet, 0) == from && port(packet, 2) == to
}

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;

/// The header and one chunk: RFC 9260, sections 3.1 and 3.3.2.
fn packet(from: u16, to: u16, verification: u32, chunk: u8, parameters: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(40);
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    packet.extend(verification.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend([chunk, 0]);
    packet.extend((20 + parameters.len() as u16).to_be_bytes());
    let (tag, window, streams, first) = (0x7765_6972_u32, 65_536_u32, 1_u16, 1_u32);
    packet.extend(tag.to_be_bytes());
    packet.extend(window.to_be_bytes());
    packet.extend(streams.to_be_bytes());
    packet.extend(streams.to_be_bytes());
    packet.extend(first.to_be_bytes());
    packet.extend(parameters);
    let checksum = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&checksum);
    packet
}

fn port(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn only_an_init_packet_is_answered() {
        let init = init(40_000, 80);
        assert_eq!(init.len(), 32);
        assert!(is_between(&init, 40_000, 80));
        let reply = answer(&init).unwrap();
        assert!(is_between(&reply, 80, 40_000));
        assert_eq!(reply[4..8], init[16..20], "the verification tag is the requested one");
        assert_eq!(answer(&reply), None);
        assert_eq!(answer(&init[..15]), None);
        assert_eq!(answer(&[]), None);
    }
}
