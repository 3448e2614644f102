use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::{Errno, Result},
    net::{SocketFlags, accept_with, listen},
};
use weir_model::{Flow, Protocol};

use super::{
    sctp,
    socket::{open, receive, receive_raw, send_datagram, send_to_address},
};

/// The address of a server. One server handles all flows to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServerAddress {
    address: IpAddr,
    protocol: Protocol,
    /// 0 for SCTP: raw sockets have no ports.
    port: u16,
}

impl ServerAddress {
    pub(super) fn for_flow(flow: &Flow) -> ServerAddress {
        let port = if flow.protocol == Protocol::Sctp { 0 } else { flow.port };
        ServerAddress { address: flow.to, protocol: flow.protocol, port }
    }
}

/// The far end of probes.
#[derive(Debug)]
pub(super) struct Server {
    protocol: Protocol,
    socket: OwnedFd,
}

impl Server {
    /// Opens a server in the current namespace of this thread.
    pub(super) fn open(service: ServerAddress) -> Result<Server> {
        let socket = open(service.protocol, service.address, service.port)?;
        if service.protocol == Protocol::Tcp {
            listen(&socket, 4096)?;
        }
        Ok(Server { protocol: service.protocol, socket })
    }

    /// Answers all pending requests.
    pub(super) fn serve(&self) -> Result<()> {
        if self.protocol == Protocol::Tcp {
            return self.answer_connections();
        }
        let next = match self.protocol {
            Protocol::Sctp => receive_raw,
            _ => receive,
        };
        while let Some((datagram, from, port)) = next(&self.socket)? {
            let reply = match self.protocol {
                Protocol::Sctp => sctp::answer(&datagram),
                _ => Some(datagram),
            };
            if let Some(reply) = reply {
                send_to_address(&self.socket, &reply, SocketAddr::new(from, port))?;
            }
        }
        Ok(())
    }

    fn answer_connections(&self) -> Result<()> {
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(connection) => match send_datagram(&connection, b"!") {
                    // A client that has already gone gets no answer; the near end reports that.
                    Ok(()) | Err(Errno::CONNRESET | Errno::PIPE) => (),
                    Err(errno) => return Err(errno),
                },
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::CONNABORTED) => (),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
