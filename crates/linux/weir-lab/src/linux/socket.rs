use std::{
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::{Errno, Result},
    net::{
        AddressFamily, Protocol as Transport, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        ipproto, recvfrom, send, sendto, socket_with, sockopt,
    },
};
use weir_model::Protocol;

/// How long an address may be in use by a socket that was closed: a program that another thread starts has all sockets of this
/// process until it runs.
const LINGERING: Duration = Duration::from_secs(1);

/// A socket of the namespace that this thread is in, bound to the address. It never blocks.
///
/// The address need not be on any link: all addresses of the outside are only routed there. SCTP has no sockets on many kernels
/// and gets raw ones, which have no port.
pub(super) fn open(protocol: Protocol, address: IpAddr, port: u16) -> Result<OwnedFd> {
    match protocol {
        Protocol::Tcp => bound(SocketType::STREAM, ipproto::TCP, address, port),
        Protocol::Udp => bound(SocketType::DGRAM, ipproto::UDP, address, port),
        Protocol::Sctp => open_raw(ipproto::SCTP, address),
    }
}

/// The same for packets that are written by hand.
pub(super) fn open_raw(transport: Transport, address: IpAddr) -> Result<OwnedFd> {
    bound(SocketType::RAW, transport, address, 0)
}

fn bound(kind: SocketType, transport: Transport, address: IpAddr, port: u16) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, Some(transport))?;
    match address {
        IpAddr::V4(_) => sockopt::set_ip_freebind(&socket, true)?,
        IpAddr::V6(_) => sockopt::set_ipv6_freebind(&socket, true)?,
    }
    // A port may be listened at while a conversation goes on there.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    let deadline = Instant::now() + LINGERING;
    loop {
        match bind(&socket, &SocketAddr::new(address, port)) {
            Err(Errno::ADDRINUSE) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            result => return result.map(|()| socket),
        }
    }
}

/// What a datagram says, and who sent it; `None` if none is waiting.
pub(super) fn receive(socket: &OwnedFd) -> Result<Option<(Vec<u8>, IpAddr, u16)>> {
    let mut buffer = [0; 512];
    let (length, _, sender) = match recvfrom(socket, &mut buffer[..], RecvFlags::empty()) {
        Err(Errno::AGAIN) => return Ok(None),
        received => received?,
    };
    let sender = sender.and_then(|sender| SocketAddr::try_from(sender).ok()).ok_or(Errno::PROTO)?;
    Ok(Some((buffer[..length].to_vec(), sender.ip(), sender.port())))
}

/// The same for packets that are written by hand. Those of IPv4 come with their header, which says its own length.
pub(super) fn receive_raw(socket: &OwnedFd) -> Result<Option<(Vec<u8>, IpAddr, u16)>> {
    let Some((mut packet, from, port)) = receive(socket)? else { return Ok(None) };
    if from.is_ipv4() {
        let header = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
        packet.drain(..header.min(packet.len()));
    }
    Ok(Some((packet, from, port)))
}

/// Sends a datagram to whom the socket is connected. One that a filter of this namespace drops is as good as sent.
pub(super) fn say(socket: &OwnedFd, datagram: &[u8]) -> Result<()> {
    sent(send(socket, datagram, SendFlags::NOSIGNAL))
}

/// The same for a socket that is not connected.
pub(super) fn say_to(socket: &OwnedFd, datagram: &[u8], to: SocketAddr) -> Result<()> {
    sent(sendto(socket, datagram, SendFlags::NOSIGNAL, &to))
}

fn sent(result: Result<usize>) -> Result<()> {
    match result {
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}
