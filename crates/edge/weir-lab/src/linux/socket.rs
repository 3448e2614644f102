use std::{
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
};

use rustix::{
    io::{Errno, Result},
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, ipproto, recvfrom,
        send, sendto, socket_with, sockopt,
    },
};
use weir_model::Protocol;

/// A socket of the namespace that this thread is in, bound to the address. It never blocks.
///
/// The address need not be on any link: all addresses of the outside are only routed there. SCTP has no sockets on many kernels
/// and gets raw ones, which have no port.
pub(super) fn open(protocol: Protocol, address: IpAddr, port: u16) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let (kind, transport, port) = match protocol {
        Protocol::Tcp => (SocketType::STREAM, ipproto::TCP, port),
        Protocol::Udp => (SocketType::DGRAM, ipproto::UDP, port),
        Protocol::Sctp => (SocketType::RAW, ipproto::SCTP, 0),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, Some(transport))?;
    match address {
        IpAddr::V4(_) => sockopt::set_ip_freebind(&socket, true)?,
        IpAddr::V6(_) => sockopt::set_ipv6_freebind(&socket, true)?,
    }
    if protocol == Protocol::Tcp {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &SocketAddr::new(address, port))?;
    Ok(socket)
}

/// What a datagram says, and who sent it; `None` if none is waiting.
pub(super) fn receive(
    socket: &OwnedFd,
    protocol: Protocol,
) -> Result<Option<(Vec<u8>, IpAddr, u16)>> {
    let mut buffer = [0; 512];
    let (length, _, sender) = match recvfrom(socket, &mut buffer[..], RecvFlags::empty()) {
        Err(Errno::AGAIN) => return Ok(None),
        received => received?,
    };
    let sender = sender.and_then(|sender| SocketAddr::try_from(sender).ok()).ok_or(Errno::PROTO)?;
    // Only raw sockets of IPv4 show the header of the packet, and it says its own length.
    let raw = protocol == Protocol::Sctp && sender.is_ipv4();
    let header = if raw { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
    let datagram = buffer[..length].get(header..).unwrap_or_default();
    Ok(Some((datagram.to_vec(), sender.ip(), sender.port())))
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
