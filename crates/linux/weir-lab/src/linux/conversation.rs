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
    socket::{open, say},
    wait::readable,
};
use crate::LabError;

/// A connection, or datagrams to and fro, between two ends of a lab. It stays open until it is dropped.
#[derive(Debug)]
pub struct Conversation {
    flow: Flow,
    near: OwnedFd,
    far: OwnedFd,
    /// The last byte that somebody said first.
    said: u8,
}

impl Conversation {
    /// Opens a flow from a thread that may be moved about.
    pub(super) fn open(
        lab: &Lab,
        flow: Flow,
        port: u16,
        patience: Duration,
    ) -> Result<Conversation, LabError> {
        let near = |errno: Errno| LabError::Probe { flow, source: errno.into() };
        let far = |errno: Errno| LabError::Answer { flow, source: errno.into() };
        let deadline = Instant::now() + patience;
        let (here, there) = (SocketAddr::new(flow.from, port), SocketAddr::new(flow.to, flow.port));
        lab.namespace(lab.plan.spot(flow.to)).enter()?;
        let server = open(flow.protocol, flow.to, flow.port).map_err(far)?;
        match flow.protocol {
            Protocol::Tcp => listen(&server, 1),
            _ => connect(&server, &here),
        }
        .map_err(far)?;
        lab.namespace(lab.plan.spot(flow.from)).enter()?;
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
                let visitor = accept_with(&server, flags).map_err(far)?;
                // Closing is then forgetting: no connection is left to be waited for.
                for end in [&client, &visitor] {
                    sockopt::set_socket_linger(end, Some(Duration::ZERO)).map_err(near)?;
                }
                visitor
            }
            _ => server,
        };
        let mut conversation = Conversation { flow, near: client, far: server, said: 0 };
        match conversation.exchange(patience)? {
            Verdict::Allow => Ok(conversation),
            Verdict::Deny => Err(LabError::Unanswered { flow }),
        }
    }

    /// Says one byte more. `Allow`: it came back from the other end. `Deny`: it did not within the patience.
    pub fn exchange(&mut self, patience: Duration) -> Result<Verdict, LabError> {
        let flow = self.flow;
        let near = |errno: Errno| LabError::Probe { flow, source: errno.into() };
        let far = |errno: Errno| LabError::Answer { flow, source: errno.into() };
        self.said = self.said.wrapping_add(1);
        say(&self.near, &[self.said]).map_err(near)?;
        let deadline = Instant::now() + patience;
        while readable(&[self.near.as_fd(), self.far.as_fd()], deadline).map_err(near)? {
            if let Some(heard) = hear(&self.far).map_err(far)? {
                say(&self.far, &heard).map_err(far)?;
            }
            // What was lost before may come late; only what was said last is an answer.
            if hear(&self.near).map_err(near)?.is_some_and(|heard| heard.contains(&self.said)) {
                return Ok(Verdict::Allow);
            }
        }
        Ok(Verdict::Deny)
    }

    /// The far end says one byte more, though nobody asked. `Allow`: the near end heard it. `Deny`: not within the patience.
    pub fn call_back(&mut self, patience: Duration) -> Result<Verdict, LabError> {
        let flow = self.flow;
        let near = |errno: Errno| LabError::Probe { flow, source: errno.into() };
        let far = |errno: Errno| LabError::Answer { flow, source: errno.into() };
        self.said = self.said.wrapping_add(1);
        say(&self.far, &[self.said]).map_err(far)?;
        let deadline = Instant::now() + patience;
        while readable(&[self.near.as_fd()], deadline).map_err(near)? {
            if hear(&self.near).map_err(near)?.is_some_and(|heard| heard.contains(&self.said)) {
                return Ok(Verdict::Allow);
            }
        }
        Ok(Verdict::Deny)
    }
}

/// What the other end said; `None` if nothing is waiting.
fn hear(socket: &OwnedFd) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut buffer = [0; 512];
    match recv(socket, &mut buffer[..], RecvFlags::empty()) {
        Ok((0, _)) => Err(Errno::CONNABORTED),
        Ok((length, _)) => Ok(Some(buffer[..length].to_vec())),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}
