//! Sends answers to denied packets, within limits.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};
use weir_datapath::{ANSWERS_PER_SECOND, Rejection};
use weir_model::{Direction, IpFamily};

use crate::{answer::answer, kernel, layout::Report};

/// Raw sockets of a network namespace, and the answers of this second.
#[derive(Debug)]
pub(crate) struct Answering {
    rejection: Rejection,
    /// The sockets for IPv4 and IPv6. A node can lack one of the families.
    sockets: [Option<OwnedFd>; 2],
    since: Instant,
    sent: [u32; 2],
}

impl Answering {
    /// Opens the sockets in the network namespace of this thread.
    pub(crate) fn open(rejection: Rejection) -> io::Result<Self> {
        let families = [AddressFamily::INET, AddressFamily::INET6];
        let mut sockets = [None, None];
        for (socket, family) in sockets.iter_mut().zip(families) {
            let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            // Packets of this protocol have their own IP header.
            *socket = match net::socket_with(family, kind, flags, Some(net::ipproto::RAW)) {
                Ok(opened) => Some(opened),
                Err(rustix::io::Errno::AFNOSUPPORT) => None,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(Answering { rejection, sockets, since: Instant::now(), sent: [0; 2] })
    }

    /// Answers a denied packet, if its sender may get an answer. A lost answer is not an error.
    pub(crate) fn answer(&mut self, report: &Report, direction: Direction) {
        let to = report.destination.0;
        // As in the kernel, nothing answers for a group of receivers.
        let is_group = to.is_multicast() || to == IpAddr::V4(Ipv4Addr::BROADCAST);
        let is_wanted = report.is_answerable && self.rejection.answers(direction) && !is_group;
        if !is_wanted || !self.is_within_limit(direction) {
            return;
        }
        let source = report.source.0;
        let is_in_cluster = || {
            let mut networks = self.rejection.networks(IpFamily::from(source));
            networks.any(|network| network.contains(&source)) || kernel::is_pod_of_node(source)
        };
        // A packet that a pod must not send comes from a pod of this node.
        if direction == Direction::Ingress && !is_in_cluster() {
            return;
        }
        if let Some(here) = own_address(source)
            && let Some(packet) = answer(report, here)
            && let Some(socket) = &self.sockets[usize::from(source.is_ipv6())]
        {
            _ = net::sendto(socket, &packet, SendFlags::empty(), &SocketAddr::new(source, 0));
            self.sent[usize::from(direction == Direction::Egress)] += 1;
        }
    }

    /// Whether there may be another answer in this second.
    fn is_within_limit(&mut self, direction: Direction) -> bool {
        if self.since.elapsed() >= Duration::from_secs(1) {
            (self.since, self.sent) = (Instant::now(), [0; 2]);
        }
        self.sent[usize::from(direction == Direction::Egress)] < ANSWERS_PER_SECOND
    }
}

/// The address from which this node sends to another.
fn own_address(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // It only chooses a route. The port does not matter.
    socket.connect((to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
