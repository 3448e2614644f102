//! Packets of SCTP associations, written by hand, because the kernel may lack SCTP. A kernel with SCTP
//! sends an ABORT for an association that it does not know.

/// The packets that open an association, sent by the client and the server in turn.
pub(super) const HANDSHAKE: [fn(u16, u16) -> Vec<u8>; 4] =
    [init, init_ack, cookie_echo, cookie_ack];

/// The INIT packet.
pub(super) fn init(from: u16, to: u16) -> Vec<u8> {
    packet(from, to, 0, [INIT, 0], &start(&[]))
}

/// The answer to a packet, if it is an INIT.
pub(super) fn answer(packet: &[u8]) -> Option<Vec<u8>> {
    let opens = packet.get(12) == Some(&INIT);
    let tag = u32::from_be_bytes(packet.get(16..20)?.try_into().ok()?);
    opens.then(|| answer_to(tag, port(packet, 2), port(packet, 0)))
}

/// Whether a packet has these ports.
pub(super) fn is_between(packet: &[u8], from: u16, to: u16) -> bool {
    packet.len() >= 12 && port(packet, 0) == from && port(packet, 2) == to
}

/// A packet with content.
pub(super) fn data(from: u16, to: u16, content: &[u8]) -> Vec<u8> {
    // The number of the packet, the stream with its number, and the protocol above.
    let head = [[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]].concat();
    packet(from, to, TAG, [DATA, WHOLE_MESSAGE], &[&head, content].concat())
}

/// The content of a packet, if it has some.
pub(super) fn content(packet: &[u8]) -> Option<&[u8]> {
    let length = u16::from_be_bytes([*packet.get(14)?, *packet.get(15)?]);
    packet.get(28..12 + usize::from(length)).filter(|_| packet[12] == DATA)
}

const DATA: u8 = 0;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;

/// The flags of a message that is in one packet.
const WHOLE_MESSAGE: u8 = 3;

/// The verification tag that both ends choose.
const TAG: u32 = 0x7765_6972;
/// An arbitrary cookie.
const COOKIE: [u8; 4] = *b"weir";

fn init_ack(from: u16, to: u16) -> Vec<u8> {
    answer_to(TAG, from, to)
}

fn answer_to(tag: u32, from: u16, to: u16) -> Vec<u8> {
    let parameter = [&[0, 7, 0, 8][..], &COOKIE].concat();
    packet(from, to, tag, [INIT_ACK, 0], &start(&parameter))
}

fn cookie_echo(from: u16, to: u16) -> Vec<u8> {
    packet(from, to, TAG, [COOKIE_ECHO, 0], &COOKIE)
}

fn cookie_ack(from: u16, to: u16) -> Vec<u8> {
    packet(from, to, TAG, [COOKIE_ACK, 0], &[])
}

/// What both ends say about themselves: RFC 9260, section 3.3.2.
fn start(parameters: &[u8]) -> Vec<u8> {
    let (window, streams, first) = (65_536_u32, 1_u16, 1_u32);
    let (tag, window, first) = (TAG.to_be_bytes(), window.to_be_bytes(), first.to_be_bytes());
    let streams = [streams.to_be_bytes(); 2].concat();
    [&tag[..], &window, &streams, &first, parameters].concat()
}

/// The header and one chunk with its type and flags: RFC 9260, section 3.1.
fn packet(from: u16, to: u16, verification: u32, chunk: [u8; 2], content: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(40);
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    packet.extend(verification.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(chunk);
    packet.extend((4 + content.len() as u16).to_be_bytes());
    packet.extend(content);
    packet.resize(packet.len().next_multiple_of(4), 0);
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

    #[test]
    fn content_is_found_in_packets_that_have_some() {
        let packet = data(40_000, 80, b"hello");
        assert_eq!(packet.len(), 36, "a multiple of 4");
        assert_eq!(content(&packet), Some(&b"hello"[..]));
        for step in HANDSHAKE {
            assert_eq!(content(&step(40_000, 80)), None);
        }
        assert_eq!(content(&packet[..30]), None);
        assert_eq!(content(&[]), None);
    }
}
