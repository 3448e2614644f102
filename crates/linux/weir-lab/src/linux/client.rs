use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::{Errno, Result},
    net::{RecvFlags, connect, recv, sockopt},
};
use weir_model::{Flow, Protocol};

use super::{
    sctp,
    socket::{open, receive, receive_raw, send_datagram},
};

/// The near end of a probe.
#[derive(Debug)]
pub(super) struct Client {
    flow: Flow,
    port: u16,
    socket: OwnedFd,
}

impl Client {
    /// Sends the first packet of a flow from the current namespace of this thread.
    pub(super) fn start(flow: Flow, port: u16) -> Result<Client> {
        let socket = open(flow.protocol, flow.from, port)?;
        match flow.protocol {
            Protocol::Tcp => {
                // Reset the connection on close, so that none stays in TIME_WAIT.
                sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
                match connect(&socket, &SocketAddr::new(flow.to, flow.port)) {
                    Ok(()) | Err(Errno::INPROGRESS) => (),
                    Err(errno) => return Err(errno),
                }
            }
            Protocol::Udp => {
                connect(&socket, &SocketAddr::new(flow.to, flow.port))?;
                send_datagram(&socket, b"?")?;
            }
            Protocol::Sctp => {
                connect(&socket, &SocketAddr::new(flow.to, 0))?;
                send_datagram(&socket, &sctp::init(port, flow.port))?;
            }
        }
        Ok(Client { flow, port, socket })
    }

    /// Whether the answer has arrived.
    pub(super) fn is_answered(&self) -> Result<bool> {
        match self.flow.protocol {
            Protocol::Tcp => match recv(&self.socket, &mut [0_u8; 1][..], RecvFlags::empty()) {
                Ok((0, _)) => Err(Errno::CONNABORTED),
                Ok(_) => Ok(true),
                Err(Errno::AGAIN) => Ok(false),
                Err(errno) => Err(errno),
            },
            Protocol::Udp => Ok(receive(&self.socket)?.is_some()),
            // A raw socket receives all packets between the two ends. Any reply counts: a kernel
            // with SCTP can send its ABORT before the lab's server answers.
            Protocol::Sctp => {
                while let Some((packet, ..)) = receive_raw(&self.socket)? {
                    if sctp::is_between(&packet, self.flow.port, self.port) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
