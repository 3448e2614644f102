//! A hand-written ICMP or ICMPv6 echo request. The kernel answers it.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Result,
    net::{connect, ipproto},
};

use super::{
    socket::{open_raw, receive_raw, send_datagram},
    wait::readable,
};

/// Whether an echo request from the current namespace of this thread is answered before the
/// timeout.
pub(super) fn ping(from: IpAddr, to: IpAddr, id: u16, timeout: Duration) -> Result<bool> {
    let (transport, request, reply) = match to {
        IpAddr::V4(_) => (ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (ipproto::ICMPV6, 128, 129),
    };
    let socket = open_raw(transport, from)?;
    connect(&socket, &SocketAddr::new(to, 0))?;
    send_datagram(&socket, &echo(request, id))?;
    let deadline = Instant::now() + timeout;
    while readable(&[socket.as_fd()], deadline)? {
        // A raw socket receives all packets from the other end, including neighbour discovery for
        // IPv6.
        while let Some((packet, ..)) = receive_raw(&socket)? {
            if packet.first() == Some(&reply) && packet.get(4..6) == Some(&id.to_be_bytes()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// RFC 792 and RFC 4443, section 4.1. The kernel writes the ICMPv6 checksum, which covers the
/// addresses.
fn echo(kind: u8, id: u16) -> [u8; 8] {
    let checksum = !(u16::from(kind) << 8).wrapping_add(id);
    let ([a, b], [c, d]) = (checksum.to_be_bytes(), id.to_be_bytes());
    [kind, 0, a, b, c, d, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_packet_with_its_checksum_sum_to_all_ones() {
        for id in [0, 1, 10_000, 59_999] {
            let words = echo(8, id);
            let words =
                words.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
            assert_eq!(words.sum::<u32>(), 0xffff, "{id}");
        }
    }
}
