use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    net::{
        RecvFlags, SendFlags, bind, getsockname, netlink::SocketAddrNetlink, recvfrom, send,
        sockopt,
    },
};

use crate::{Malformed, Message, Messages, Rejection};

/// A netlink socket of the network namespace in which it was opened.
pub struct Socket {
    socket: netlink_sys::Socket,
    /// The receive buffer. The kernel fills at most half of it in a dump.
    buffer: Vec<u8>,
}

/// The netlink protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkProtocol {
    /// Links, addresses and routes.
    Route,
    /// nf_tables, conntrack, ipset and packet logs.
    Netfilter,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket failed.
    #[error("cannot {what} over netlink")]
    Socket {
        /// The operation.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The kernel rejected the request.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// No reply arrived within the timeout.
    #[error("timed out waiting for a reply of the kernel")]
    Timeout,
    /// The list changed while the kernel sent it, so entries may be missing or repeated. Retry.
    #[error("the list changed while the kernel sent it")]
    Interrupted,
    /// The reply cannot be decoded.
    #[error("cannot decode the reply of the kernel")]
    Malformed(#[from] Malformed),
}

/// The timeout of a reply. The kernel replies while it handles the request, so only a very busy
/// machine comes near it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
const BUFFER_BYTES: usize = 64 * 1024;
/// The largest socket buffer: the kernel doubles the number in a signed integer.
const MAX_SOCKET_BUFFER: usize = (i32::MAX / 2) as usize;
/// The type of a message without content.
const NOOP: u16 = 1;
/// The flag of a message from a list that changed while the kernel sent it.
const DUMP_INTERRUPTED: u16 = 0x10;

impl Socket {
    /// Opens a socket in the network namespace of the calling thread, which may change it later.
    pub fn open(protocol: NetlinkProtocol) -> io::Result<Socket> {
        let number = match protocol {
            NetlinkProtocol::Route => netlink_sys::protocols::NETLINK_ROUTE,
            NetlinkProtocol::Netfilter => netlink_sys::protocols::NETLINK_NETFILTER,
        };
        let socket = netlink_sys::Socket::new(number)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        // Errors carry a reason, and no echo of the request, which may be large.
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        Ok(Socket { socket, buffer: vec![0; BUFFER_BYTES] })
    }

    /// The port of this socket. The kernel uses it to name the author of a change.
    pub fn port(&self) -> io::Result<u32> {
        Ok(SocketAddrNetlink::try_from(getsockname(&self.socket)?)?.pid())
    }

    /// Joins a multicast group.
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.socket.add_membership(group)
    }

    /// Leaves a multicast group.
    pub fn leave(&self, group: u32) -> io::Result<()> {
        self.socket.drop_membership(group)
    }

    /// Sets the size of the receive buffer. Without the privilege, the system's maximum applies.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes.min(MAX_SOCKET_BUFFER);
        match sockopt::set_socket_recv_buffer_size_force(&self.socket, bytes) {
            Err(Errno::PERM) => sockopt::set_socket_recv_buffer_size(&self.socket, bytes)?,
            result => result?,
        }
        Ok(())
    }

    /// Sends messages in one datagram, and enlarges the send buffer if necessary.
    pub fn send(&self, messages: &[u8]) -> io::Result<()> {
        let sent = match self.try_send(messages) {
            Err(Errno::MSGSIZE) => {
                self.set_send_buffer(messages.len().saturating_add(BUFFER_BYTES))?;
                self.try_send(messages)?
            }
            sent => sent?,
        };
        if sent == messages.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives one datagram, which may contain several messages. `None` after the timeout.
    ///
    /// `ENOBUFS` means that messages were lost. `EMSGSIZE` means that the buffer was too small and
    /// the rest of the datagram is lost. The socket stays usable after both.
    pub fn receive<'b>(
        &self,
        buffer: &'b mut [u8],
        timeout: Option<Duration>,
    ) -> io::Result<Option<&'b [u8]>> {
        match receive(&self.socket, buffer, timeout)? {
            Some(length) => Ok(Some(&buffer[..length])),
            None => Ok(None),
        }
    }

    /// Sends one request with [`ACK`](crate::kind::ACK) and waits for the kernel's verdict.
    ///
    /// The sequence number of the request identifies its replies.
    pub fn request(&mut self, request: &[u8]) -> Result<(), NetlinkError> {
        self.query(request, |_| ())
    }

    /// Sends one request with [`ACK`](crate::kind::ACK) or [`DUMP`](crate::kind::DUMP), and visits
    /// the replies before the kernel's verdict.
    ///
    /// Before [`NetlinkError::Interrupted`] it visits all replies. A caller that needs an exact
    /// list retries.
    pub fn query(
        &mut self,
        request: &[u8],
        mut visit: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        let failed = |what| move |source| NetlinkError::Socket { what, source };
        let sequence = Messages::new(request).next().ok_or(Malformed::Message)??.sequence;
        self.send(request).map_err(failed("send"))?;
        let mut interrupted = false;
        loop {
            let length = receive(&self.socket, &mut self.buffer, Some(REPLY_TIMEOUT))
                .map_err(failed("receive"))?
                .ok_or(NetlinkError::Timeout)?;
            for message in Messages::new(&self.buffer[..length]) {
                let message = message?;
                // A late reply to an earlier request, or a multicast message.
                if message.sequence != sequence || message.kind == NOOP {
                    continue;
                }
                interrupted |= message.flags & DUMP_INTERRUPTED != 0;
                match message.verdict().or_else(|| message.end_of_dump()) {
                    Some(Err(rejection)) => return Err(rejection.into()),
                    Some(Ok(())) if interrupted => return Err(NetlinkError::Interrupted),
                    Some(Ok(())) => return Ok(()),
                    None => visit(message),
                }
            }
        }
    }

    fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes.min(MAX_SOCKET_BUFFER);
        match sockopt::set_socket_send_buffer_size_force(&self.socket, bytes) {
            Err(Errno::PERM) => sockopt::set_socket_send_buffer_size(&self.socket, bytes)?,
            result => result?,
        }
        Ok(())
    }

    fn try_send(&self, messages: &[u8]) -> rustix::io::Result<usize> {
        retry_on_intr(|| send(&self.socket, messages, SendFlags::empty()))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Socket").field(&self.socket).finish()
    }
}

/// Receives from the kernel and ignores other senders.
fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    timeout: Option<Duration>,
) -> io::Result<Option<usize>> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        match recvfrom(&socket, &mut *buffer, flags) {
            Ok((_, length, sender)) => {
                let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
                match sender {
                    Some(sender) if sender.pid() != 0 => continue,
                    _ if length > buffer.len() => return Err(Errno::MSGSIZE.into()),
                    _ => return Ok(Some(length)),
                }
            }
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => (),
            Err(errno) => return Err(errno.into()),
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
        let left = left.map(Timespec::try_from).transpose().unwrap_or_default();
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => (),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, MessageWriter, kind};

    const RTM_GETLINK: u16 = 18;
    const UNUSED_LINK: u32 = 0x7fff_fff0;

    /// A request for one link, which needs no privilege.
    fn get_link(writer: &mut MessageWriter, link: u32, flags: u16) {
        let header = Header { kind: RTM_GETLINK, flags: kind::REQUEST | flags, sequence: link };
        let body = [[0; 4], link.to_ne_bytes(), [0; 4], [0; 4]].concat();
        writer.message(header, |message| _ = message.fixed(&body)).unwrap();
    }

    fn route() -> (Socket, MessageWriter) {
        (Socket::open(NetlinkProtocol::Route).unwrap(), MessageWriter::default())
    }

    #[test]
    fn all_links_are_listed() {
        let (mut socket, mut writer) = route();
        get_link(&mut writer, 0, kind::DUMP);
        let mut links = Vec::new();
        socket.query(writer.bytes(), |message| links.push(message.payload[4])).unwrap();
        assert!(links.contains(&1), "link 1 is the loopback: {links:?}");
    }

    #[test]
    fn a_rejection_has_its_code_and_the_next_request_its_own_reply() {
        let (mut socket, mut writer) = route();
        get_link(&mut writer, UNUSED_LINK, kind::ACK);
        let error = socket.request(writer.bytes()).unwrap_err();
        let NetlinkError::Rejected(rejection) = error else { panic!("{error}") };
        assert_eq!(rejection.errno(), Some(Errno::NODEV));
        writer.clear();
        get_link(&mut writer, 1, kind::ACK);
        socket.request(writer.bytes()).unwrap();
    }

    #[test]
    fn replies_to_other_requests_are_ignored() {
        let (mut socket, mut writer) = route();
        get_link(&mut writer, UNUSED_LINK, kind::ACK);
        socket.send(writer.bytes()).unwrap();
        writer.clear();
        get_link(&mut writer, 1, kind::ACK);
        let mut replies = 0;
        socket.query(writer.bytes(), |_| replies += 1).unwrap();
        assert_eq!(replies, 1);
    }

    #[test]
    fn a_request_larger_than_the_send_buffer_is_sent() {
        let (mut socket, mut writer) = route();
        let noop = Header { kind: NOOP, flags: kind::REQUEST, sequence: 1 };
        writer.message(noop, |body| _ = body.fixed(&[0; 300_000])).unwrap();
        get_link(&mut writer, 1, kind::ACK);
        socket.request(writer.bytes()).unwrap();
    }

    #[test]
    fn receive_returns_none_after_the_timeout() {
        let (socket, _) = route();
        socket.set_receive_buffer(1 << 20).unwrap();
        assert_ne!(socket.port().unwrap(), 0);
        let timeout = Some(Duration::from_millis(20));
        let began = Instant::now();
        assert_eq!(socket.receive(&mut [0; 100], timeout).unwrap(), None);
        assert!(began.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_buffer_that_is_too_small_is_an_error() {
        let (socket, mut writer) = route();
        get_link(&mut writer, 1, 0);
        socket.send(writer.bytes()).unwrap();
        let error = socket.receive(&mut [0; 100], None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::MSGSIZE.raw_os_error()));
    }
}
