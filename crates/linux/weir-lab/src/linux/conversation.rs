use std::{
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SocketFlags, accept_with, connect, listen, recv, sockopt},
};
use weir_model::{Flow, Protocol, Verdict};

use super::{
    lab::Lab,
    socket::{open, send_datagram},
    wait::readable,
};
use crate::LabError;

/// A connection, or an exchange of datagrams, between two ends of a lab. It stays open until it is
/// dropped.
#[derive(Debug)]
pub struct Conversation {
    flow: Flow,
    near: OwnedFd,
    far: OwnedFd,
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
            _ => connect(&server, &here),
        }
        .map_err(far)?;
        lab.namespace(lab.plan.namespace_of(flow.from)).enter()?;
        let client = open(flow.protocol, flow.from, port).map_err(near)?;
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
        send_datagram(&self.near, &[self.last_byte]).map_err(near)?;
        let deadline = Instant::now() + timeout;
        while readable(&[self.near.as_fd(), self.far.as_fd()], deadline).map_err(near)? {
            if let Some(bytes) = receive_bytes(&self.far).map_err(far)? {
                send_datagram(&self.far, &bytes).map_err(far)?;
            }
            // Lost bytes can arrive late, so only the last byte counts as the answer.
            if receive_bytes(&self.near)
                .map_err(near)?
                .is_some_and(|bytes| bytes.contains(&self.last_byte))
            {
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
        send_datagram(&self.far, &[self.last_byte]).map_err(far)?;
        let deadline = Instant::now() + timeout;
        while readable(&[self.near.as_fd()], deadline).map_err(near)? {
            if receive_bytes(&self.near)
                .map_err(near)?
                .is_some_and(|bytes| bytes.contains(&self.last_byte))
            {
                return Ok(Verdict::Allow);
            }
        }
        Ok(Verdict::Deny)
    }
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
