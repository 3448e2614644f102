use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SocketFlags, accept_with, connect, listen, recv, sockopt},
};
use weir_model::{Flow, Protocol, Verdict};

use super::{
    lab::Lab,
    sctp,
    socket::{open, receive_raw, send_datagram},
    wait::readable,
};
use crate::LabError;

/// A connection, or an exchange of datagrams, between two ends of a lab. It stays open until it is
/// dropped.
#[derive(Debug)]
pub struct Conversation {
    flow: Flow,
    near: End,
    far: End,
    /// The last byte that either end sent first.
    last_byte: u8,
}

impl Conversation {
    /// Opens a flow. The calling thread must be free to change its namespace.
    pub(super) fn open(
        lab: &Lab,
        flow: Flow,
        port: u16,
        timeout: Duration,
    ) -> Result<Conversation, LabError> {
        let near = |errno: Errno| LabError::Probe { flow, source: errno.into() };
        let far = |errno: Errno| LabError::Answer { flow, source: errno.into() };
        let deadline = Instant::now() + timeout;
        let (here, there) = (SocketAddr::new(flow.from, port), SocketAddr::new(flow.to, flow.port));
        lab.namespace(lab.plan.namespace_of(flow.to)).enter()?;
        let server = open(flow.protocol, flow.to, flow.port).map_err(far)?;
        match flow.protocol {
            Protocol::Tcp => listen(&server, 1),
            Protocol::Udp => connect(&server, &here),
            Protocol::Sctp => connect(&server, &SocketAddr::new(flow.from, 0)),
        }
        .map_err(far)?;
        lab.namespace(lab.plan.namespace_of(flow.from)).enter()?;
        let client = open(flow.protocol, flow.from, port).map_err(near)?;
        let there =
            if flow.protocol == Protocol::Sctp { SocketAddr::new(flow.to, 0) } else { there };
        match connect(&client, &there) {
            Ok(()) | Err(Errno::INPROGRESS) => (),
            Err(errno) => return Err(near(errno)),
        }
        let server = match flow.protocol {
            Protocol::Tcp => {
                if !readable(&[server.as_fd()], deadline).map_err(far)? {
                    return Err(LabError::Unanswered { flow });
                }
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let connection = accept_with(&server, flags).map_err(far)?;
                // Reset the connections on close, so that none stays in TIME_WAIT.
                for end in [&client, &connection] {
                    sockopt::set_socket_linger(end, Some(Duration::ZERO)).map_err(near)?;
                }
                connection
            }
            _ => server,
        };
        let ports = |own, other| (flow.protocol == Protocol::Sctp).then_some([own, other]);
        let client = End { socket: client, ports: ports(port, flow.port) };
        let server = End { socket: server, ports: ports(flow.port, port) };
        if flow.protocol == Protocol::Sctp
            && !associate(&client, &server, deadline).map_err(near)?
        {
            return Err(LabError::Unanswered { flow });
        }
        let mut conversation = Conversation { flow, near: client, far: server, last_byte: 0 };
        match conversation.exchange(timeout)? {
            Verdict::Allow => Ok(conversation),
            Verdict::Deny => Err(LabError::Unanswered { flow }),
        }
    }

    /// The near end sends one byte, and the far end echoes it. `Allow` if the echo arrives before
    /// the timeout, otherwise `Deny`.
    pub fn exchange(&mut self, timeout: Duration) -> Result<Verdict, LabError> {
        let flow = self.flow;
        let near = |errno: Errno| LabError::Probe { flow, source: errno.into() };
        let far = |errno: Errno| LabError::Answer { flow, source: errno.into() };
        self.last_byte = self.last_byte.wrapping_add(1);
        self.near.send(&[self.last_byte]).map_err(near)?;
        let deadline = Instant::now() + timeout;
        while readable(&[self.near.as_fd(), self.far.as_fd()], deadline).map_err(near)? {
            if let Some(bytes) = self.far.receive().map_err(far)? {
                self.far.send(&bytes).map_err(far)?;
            }
            // Lost bytes can arrive late, so only the last byte counts as the answer.
            let received = self.near.receive().map_err(near)?;
            if received.is_some_and(|bytes| bytes.contains(&self.last_byte)) {
                return Ok(Verdict::Allow);
            }
        }
        Ok(Verdict::Deny)
    }

    /// The far end sends one byte unprompted. `Allow` if the near end receives it before the
    /// timeout, otherwise `Deny`.
    pub fn call_back(&mut self, timeout: Duration) -> Result<Verdict, LabError> {
        let flow = self.flow;
        let near = |errno: Errno| LabError::Probe { flow, source: errno.into() };
        let far = |errno: Errno| LabError::Answer { flow, source: errno.into() };
        self.last_byte = self.last_byte.wrapping_add(1);
        self.far.send(&[self.last_byte]).map_err(far)?;
        let deadline = Instant::now() + timeout;
        while readable(&[self.near.as_fd()], deadline).map_err(near)? {
            let received = self.near.receive().map_err(near)?;
            if received.is_some_and(|bytes| bytes.contains(&self.last_byte)) {
                return Ok(Verdict::Allow);
            }
        }
        Ok(Verdict::Deny)
    }
}

/// One end of a conversation.
#[derive(Debug)]
struct End {
    socket: OwnedFd,
    /// The own port and the other one, for SCTP: a raw socket has no ports.
    ports: Option<[u16; 2]>,
}

impl End {
    fn send(&self, bytes: &[u8]) -> rustix::io::Result<()> {
        match self.ports {
            None => send_datagram(&self.socket, bytes),
            Some([own, other]) => send_datagram(&self.socket, &sctp::data(own, other, bytes)),
        }
    }

    /// Receives waiting bytes, or `None` if there are none, or packets of another association.
    fn receive(&self) -> rustix::io::Result<Option<Vec<u8>>> {
        let Some([own, other]) = self.ports else { return receive_bytes(&self.socket) };
        let packet = receive_raw(&self.socket)?.map(|(packet, ..)| packet);
        let packet = packet.filter(|packet| sctp::is_between(packet, other, own));
        Ok(packet.and_then(|packet| sctp::content(&packet).map(<[u8]>::to_vec)))
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Opens an SCTP association. Returns `false` after the deadline.
fn associate(client: &End, server: &End, deadline: Instant) -> rustix::io::Result<bool> {
    for (number, step) in sctp::HANDSHAKE.into_iter().enumerate() {
        let (from, to) = if number % 2 == 0 { (client, server) } else { (server, client) };
        let [own, other] = from.ports.unwrap_or_default();
        let packet = step(own, other);
        send_datagram(&from.socket, &packet)?;
        loop {
            if !readable(&[to.as_fd()], deadline)? {
                return Ok(false);
            }
            if receive_raw(&to.socket)?.is_some_and(|(received, ..)| received == packet) {
                break;
            }
        }
    }
    Ok(true)
}

/// Receives the waiting bytes, or `None` if there are none.
fn receive_bytes(socket: &OwnedFd) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut buffer = [0; 512];
    match recv(socket, &mut buffer[..], RecvFlags::empty()) {
        Ok((0, _)) => Err(Errno::CONNABORTED),
        Ok((length, _)) => Ok(Some(buffer[..length].to_vec())),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}
