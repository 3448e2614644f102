//! Packets that are written by hand.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::net::{self, RecvFlags, SendFlags, sockopt};

use crate::{
    Backend,
    cluster::{TrialCluster, address},
};

/// A raw socket of a protocol, between two pods.
pub(crate) struct Raw {
    socket: OwnedFd,
    peer: IpAddr,
}

impl Raw {
    pub(crate) fn open<B: Backend>(
        cluster: &TrialCluster<B>,
        number: u8,
        [here, peer]: [&str; 2],
    ) -> Raw {
        let (here, peer) = (address(here), address(peer));
        let open = || {
            let family = match here {
                IpAddr::V4(_) => net::AddressFamily::INET,
                IpAddr::V6(_) => net::AddressFamily::INET6,
            };
            let protocol = net::Protocol::from_raw(u32::from(number).try_into().unwrap());
            let socket = net::socket(family, net::SocketType::RAW, Some(protocol)).unwrap();
            net::bind(&socket, &SocketAddr::new(here, 0)).unwrap();
            socket
        };
        Raw { socket: cluster.lab.at(here, open).unwrap(), peer }
    }

    pub(crate) fn send(&self, content: &[u8]) {
        let to = SocketAddr::new(self.peer, 0);
        net::sendto(&self.socket, content, SendFlags::empty(), &to).unwrap();
    }

    /// Whether a packet with this end arrives from the peer.
    pub(crate) fn receives(&self, content: &[u8], timeout: Duration) -> bool {
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(timeout)).unwrap();
        let mut buffer = [0; 256];
        while let Ok((length, ..)) = net::recv(&self.socket, &mut buffer, RecvFlags::empty()) {
            if buffer[..length].ends_with(content) {
                return true;
            }
        }
        false
    }
}
