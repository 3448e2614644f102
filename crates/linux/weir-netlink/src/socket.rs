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

use crate::{Malformed, Message, Messages, Refusal};

/// A line to the kernel about the network namespace that it was opened in.
pub struct Socket {
    socket: netlink_sys::Socket,
    /// Where answers are put. The kernel fills no more than half of it in a dump.
    buffer: Vec<u8>,
}

/// Which part of the kernel is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes.
    Route,
    /// nf_tables, conntrack, ipset, logs of packets.
    Netfilter,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket failed.
    #[error("cannot {what} over netlink")]
    Socket {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The kernel said nothing.
    #[error("the kernel did not answer")]
    Silence,
    /// What was listed changed meanwhile, so that something may be missing or be there twice. Ask again.
    #[error("what the kernel listed changed meanwhile")]
    Interrupted,
    /// The kernel's answer cannot be read.
    #[error("the kernel's answer cannot be read")]
    Malformed(#[from] Malformed),
}

/// How long an answer may take. The kernel has it ready when the request is sent, unless the machine is very busy.
const PATIENCE: Duration = Duration::from_secs(20);
const BUFFER: usize = 64 * 1024;
/// The kernel doubles what it is asked for, in a number that has a sign.
const LARGEST: usize = (i32::MAX / 2) as usize;
/// A message that says nothing.
const NOOP: u16 = 1;
/// The flag of a message from a list that changed while it was read.
const DUMP_INTERRUPTED: u16 = 0x10;

impl Socket {
    /// Opens a line about the network namespace that this thread is in. Later the thread may be elsewhere.
    pub fn open(protocol: Protocol) -> io::Result<Socket> {
        let number = match protocol {
            Protocol::Route => netlink_sys::protocols::NETLINK_ROUTE,
            Protocol::Netfilter => netlink_sys::protocols::NETLINK_NETFILTER,
        };
        let socket = netlink_sys::Socket::new(number)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        // Errors come with a reason, and without the request, which may be large.
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        Ok(Socket { socket, buffer: vec![0; BUFFER] })
    }

    /// Our own address, as the kernel gave it. It names us where the kernel says who did something.
    pub fn port(&self) -> io::Result<u32> {
        Ok(SocketAddrNetlink::try_from(getsockname(&self.socket)?)?.pid())
    }

    /// Listens to what the kernel tells everyone in a group.
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.socket.add_membership(group)
    }

    /// Listens no more.
    pub fn leave(&self, group: u32) -> io::Result<()> {
        self.socket.drop_membership(group)
    }

    /// How many bytes may wait to be received: as many as asked for, or as many as the machine allows to everyone.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes.min(LARGEST);
        match sockopt::set_socket_recv_buffer_size_force(&self.socket, bytes) {
            Err(Errno::PERM) => sockopt::set_socket_recv_buffer_size(&self.socket, bytes)?,
            result => result?,
        }
        Ok(())
    }

    /// Sends messages as they are, all at once. The send buffer grows if it has to.
    pub fn send(&self, messages: &[u8]) -> io::Result<()> {
        let sent = match self.try_send(messages) {
            Err(Errno::MSGSIZE) => {
                self.set_send_buffer(messages.len().saturating_add(BUFFER))?;
                self.try_send(messages)?
            }
            sent => sent?,
        };
        if sent == messages.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives what is there, as it is, or waits for it; `None` after the patience, if there is one.
    ///
    /// Several messages may be received at once. `ENOBUFS` means that messages were lost, and `EMSGSIZE` that the
    /// buffer was too small and the rest is lost. The socket is fine after both.
    pub fn receive<'b>(
        &self,
        buffer: &'b mut [u8],
        patience: Option<Duration>,
    ) -> io::Result<Option<&'b [u8]>> {
        match receive(&self.socket, buffer, patience)? {
            Some(length) => Ok(Some(&buffer[..length])),
            None => Ok(None),
        }
    }

    /// Sends one request, with [`ACK`](crate::kind::ACK), and waits for the kernel's verdict.
    ///
    /// Answers are told apart by the sequence number of the request.
    pub fn request(&mut self, request: &[u8]) -> Result<(), NetlinkError> {
        self.query(request, |_| ())
    }

    /// Sends one request, with [`ACK`](crate::kind::ACK) or [`DUMP`](crate::kind::DUMP), and visits all that the kernel says before its verdict.
    ///
    /// After [`NetlinkError::Interrupted`] all was visited that came; whoever needs to know exactly asks again.
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
            let length = receive(&self.socket, &mut self.buffer, Some(PATIENCE))
                .map_err(failed("receive"))?
                .ok_or(NetlinkError::Silence)?;
            for message in Messages::new(&self.buffer[..length]) {
                let message = message?;
                // What is left of an earlier answer, or was told to everyone.
                if message.sequence != sequence || message.kind == NOOP {
                    continue;
                }
                interrupted |= message.flags & DUMP_INTERRUPTED != 0;
                match message.verdict().or_else(|| message.end_of_dump()) {
                    Some(Err(refusal)) => return Err(refusal.into()),
                    Some(Ok(())) if interrupted => return Err(NetlinkError::Interrupted),
                    Some(Ok(())) => return Ok(()),
                    None => visit(message),
                }
            }
        }
    }

    fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes.min(LARGEST);
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

/// Receives from the kernel and from nobody else.
fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    patience: Option<Duration>,
) -> io::Result<Option<usize>> {
    let deadline = patience.map(|patience| Instant::now() + patience);
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
    use crate::{Header, Writer, kind};

    const RTM_GETLINK: u16 = 18;
    const NOBODY: u32 = 0x7fff_fff0;

    /// A question about one link, as everyone may ask it.
    fn about_link(writer: &mut Writer, link: u32, flags: u16) {
        let header = Header { kind: RTM_GETLINK, flags: kind::REQUEST | flags, sequence: link };
        let body = [[0; 4], link.to_ne_bytes(), [0; 4], [0; 4]].concat();
        writer.message(header, |message| _ = message.fixed(&body)).unwrap();
    }

    fn route() -> (Socket, Writer) {
        (Socket::open(Protocol::Route).unwrap(), Writer::default())
    }

    #[test]
    fn all_links_are_listed() {
        let (mut socket, mut writer) = route();
        about_link(&mut writer, 0, kind::DUMP);
        let mut links = Vec::new();
        socket.query(writer.bytes(), |message| links.push(message.payload[4])).unwrap();
        assert!(links.contains(&1), "the first link is the loopback: {links:?}");
    }

    #[test]
    fn a_refusal_has_its_code_and_the_next_question_its_own_answer() {
        let (mut socket, mut writer) = route();
        about_link(&mut writer, NOBODY, kind::ACK);
        let error = socket.request(writer.bytes()).unwrap_err();
        let NetlinkError::Refused(refusal) = error else { panic!("{error}") };
        assert_eq!(refusal.error.raw_os_error(), Some(Errno::NODEV.raw_os_error()));
        writer.clear();
        about_link(&mut writer, 1, kind::ACK);
        socket.request(writer.bytes()).unwrap();
    }

    #[test]
    fn answers_to_others_are_not_taken_for_our_own() {
        let (mut socket, mut writer) = route();
        about_link(&mut writer, NOBODY, kind::ACK);
        socket.send(writer.bytes()).unwrap();
        writer.clear();
        about_link(&mut writer, 1, kind::ACK);
        let mut answers = 0;
        socket.query(writer.bytes(), |_| answers += 1).unwrap();
        assert_eq!(answers, 1);
    }

    #[test]
    fn what_is_larger_than_the_send_buffer_is_sent() {
        let (mut socket, mut writer) = route();
        let noop = Header { kind: NOOP, flags: kind::REQUEST, sequence: 1 };
        writer.message(noop, |body| _ = body.fixed(&[0; 300_000])).unwrap();
        about_link(&mut writer, 1, kind::ACK);
        socket.request(writer.bytes()).unwrap();
    }

    #[test]
    fn silence_is_waited_for_as_long_as_asked() {
        let (socket, _) = route();
        socket.set_receive_buffer(1 << 20).unwrap();
        assert_ne!(socket.port().unwrap(), 0);
        let patience = Some(Duration::from_millis(20));
        let began = Instant::now();
        assert_eq!(socket.receive(&mut [0; 100], patience).unwrap(), None);
        assert!(began.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_buffer_that_is_too_small_is_an_error() {
        let (socket, mut writer) = route();
        about_link(&mut writer, 1, 0);
        socket.send(writer.bytes()).unwrap();
        let error = socket.receive(&mut [0; 100], None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::MSGSIZE.raw_os_error()));
    }
}
