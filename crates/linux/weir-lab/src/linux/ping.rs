//! An echo request of ICMP or ICMPv6, written by hand. Its answer is the kernel's own.

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
    socket::{open_raw, receive_raw, say},
    wait::readable,
};

/// Whether an echo request from the namespace that this thread is in comes back in time.
pub(super) fn ping(from: IpAddr, to: IpAddr, id: u16, patience: Duration) -> Result<bool> {
    let (transport, request, reply) = match to {
        IpAddr::V4(_) => (ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (ipproto::ICMPV6, 128, 129),
    };
    let socket = open_raw(transport, from)?;
    connect(&socket, &SocketAddr::new(to, 0))?;
    say(&socket, &echo(request, id))?;
    let deadline = Instant::now() + patience;
    while readable(&[socket.as_fd()], deadline)? {
        // A raw socket hears all that the other end says, and of IPv6 the search for neighbours too.
        while let Some((packet, ..)) = receive_raw(&socket)? {
            if packet.first() == Some(&reply) && packet.get(4..6) == Some(&id.to_be_bytes()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// RFC 792 and RFC 4443, section 4.1. The checksum of ICMPv6 is the kernel's to write: it covers the addresses.
fn echo(kind: u8, id: u16) -> [u8; 8] {
    let checksum = !(u16::from(kind) << 8).wrapping_add(id);
    let ([a, b], [c, d]) = (checksum.to_be_bytes(), id.to_be_bytes());
    [kind, 0, a, b, c, d, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_makes_the_sum_of_all_words_whole() {
        for id in [0, 1, 10_000, 59_999] {
            let words = echo(8, id);
            let words =
                words.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
            assert_eq!(words.sum::<u32>(), 0xffff, "{id}");
        }
    }
}
