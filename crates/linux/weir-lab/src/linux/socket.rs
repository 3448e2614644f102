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

/// How long to retry while a closed socket still holds the address. A program that another thread
/// starts holds all sockets of this process until it calls exec.
const ADDRESS_IN_USE_RETRY: Duration = Duration::from_secs(1);

/// A non-blocking socket in the current namespace of this thread, bound to the address.
///
/// The address need not be on a link: the addresses of the outside are only routed. Many kernels
/// lack SCTP, so SCTP uses raw sockets, which have no port.
pub(super) fn open(protocol: Protocol, address: IpAddr, port: u16) -> Result<OwnedFd> {
    match protocol {
        Protocol::Tcp => bound(SocketType::STREAM, ipproto::TCP, address, port),
        Protocol::Udp => bound(SocketType::DGRAM, ipproto::UDP, address, port),
        Protocol::Sctp => open_raw(ipproto::SCTP, address),
    }
}

/// A raw socket for hand-written packets.
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
    // A server can listen on a port while a conversation uses it.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    let deadline = Instant::now() + ADDRESS_IN_USE_RETRY;
    loop {
        match bind(&socket, &SocketAddr::new(address, port)) {
            Err(Errno::ADDRINUSE) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            result => return result.map(|()| socket),
        }
    }
}

/// Receives a datagram and its sender, or `None` if none is waiting.
pub(super) fn receive(socket: &OwnedFd) -> Result<Option<(Vec<u8>, IpAddr, u16)>> {
    let mut buffer = [0; 512];
    let (length, _, sender) = match recvfrom(socket, &mut buffer[..], RecvFlags::empty()) {
        Err(Errno::AGAIN) => return Ok(None),
        received => received?,
    };
    let sender = sender.and_then(|sender| SocketAddr::try_from(sender).ok()).ok_or(Errno::PROTO)?;
    Ok(Some((buffer[..length].to_vec(), sender.ip(), sender.port())))
}

/// Receives from a raw socket. IPv4 packets include a header of variable length.
pub(super) fn receive_raw(socket: &OwnedFd) -> Result<Option<(Vec<u8>, IpAddr, u16)>> {
    let Some((mut packet, from, port)) = receive(socket)? else { return Ok(None) };
    if from.is_ipv4() {
        let header = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
        packet.drain(..header.min(packet.len()));
    }
    Ok(Some((packet, from, port)))
}

/// Sends a datagram on a connected socket. A datagram that a filter of this namespace drops counts
/// as sent.
pub(super) fn send_datagram(socket: &OwnedFd, datagram: &[u8]) -> Result<()> {
    sent(send(socket, datagram, SendFlags::NOSIGNAL))
}

/// Sends a datagram on a socket that is not connected.
pub(super) fn send_to_address(socket: &OwnedFd, datagram: &[u8], to: SocketAddr) -> Result<()> {
    sent(sendto(socket, datagram, SendFlags::NOSIGNAL, &to))
}

fn sent(result: Result<usize>) -> Result<()> {
    match result {
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}
