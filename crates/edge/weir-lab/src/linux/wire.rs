use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType},
};

use super::namespace::Namespace;
use crate::LabError;

/// The index that the loopback link of every namespace has.
pub(super) const LOOPBACK: u32 = 1;
/// The index that we give to the link to the next namespace up, `eth0`.
pub(super) const UPLINK: u32 = 100;

/// Both ends of every link have the same hardware address, and none asks for addresses: a frame that is sent is for
/// the other end. So there are no neighbours to be found, and no duplicates to be looked for.
const HARDWARE: [u8; 6] = *b"\x02weir\0";

/// A line to the kernel about the links, addresses and routes of one namespace.
#[derive(Debug)]
pub(super) struct Wire(OwnedFd);

/// A route to one address or, without one, to all.
pub(super) struct Route {
    pub(super) to: Option<IpAddr>,
    pub(super) family: Family,
    pub(super) link: u32,
    pub(super) kind: RouteKind,
}

/// What a route is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteKind {
    /// Sends what nothing else speaks about.
    Unicast,
    /// Sends, and is asked together with the routes that keep things here.
    UnicastFirst,
    /// Keeps what it is for in this namespace.
    Local,
}

/// An address family.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4 = 2,
    V6 = 10,
}

impl Family {
    pub(super) const BOTH: [Family; 2] = [Family::V4, Family::V6];

    pub(super) fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

impl Wire {
    /// Opens a line about the namespace that this thread is in. Later the thread may be elsewhere.
    pub(super) fn open() -> Result<Wire, LabError> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // Protocol 0 is NETLINK_ROUTE.
        );
        let failed = |errno: Errno| LabError::Link {
            what: "open a netlink socket".to_owned(),
            source: errno.into(),
        };
        socket.map(Wire).map_err(failed)
    }

    /// Makes a pair of links: one here, up at once, and `eth0` in the other namespace.
    pub(super) fn join(&self, link: u32, name: &str, there: &Namespace) -> Result<(), LabError> {
        let there = there.as_fd().as_raw_fd().cast_unsigned().to_ne_bytes();
        let request = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)
            .link(link, IFF_NOARP | IFF_UP)
            .text(IFLA_IFNAME, name)
            .attribute(IFLA_ADDRESS, &HARDWARE)
            .nest(IFLA_LINKINFO, |info| {
                info.text(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
                    data.nest(VETH_INFO_PEER, |peer| {
                        peer.link(UPLINK, IFF_NOARP)
                            .text(IFLA_IFNAME, "eth0")
                            .attribute(IFLA_ADDRESS, &HARDWARE)
                            .attribute(IFLA_NET_NS_FD, &there)
                    })
                })
            });
        self.ask(request, || format!("make the link {name}"))
    }

    /// Brings a link up.
    pub(super) fn up(&self, link: u32) -> Result<(), LabError> {
        let request = Message::new(RTM_SETLINK, 0).link(link, IFF_UP);
        self.ask(request, || format!("bring link {link} up"))
    }

    /// Gives a link an address.
    pub(super) fn address(&self, link: u32, address: IpAddr) -> Result<(), LabError> {
        let bytes = octets(address);
        let bits = (bytes.len() * 8) as u8;
        let request = Message::new(RTM_NEWADDR, NLM_F_CREATE)
            .bytes(&[Family::of(address) as u8, bits, IFA_F_NODAD, 0])
            .bytes(&link.to_ne_bytes())
            .attribute(IFA_LOCAL, &bytes)
            .attribute(IFA_ADDRESS, &bytes);
        self.ask(request, || format!("give {address} to a link"))
    }

    /// Adds a route.
    pub(super) fn route(&self, route: &Route) -> Result<(), LabError> {
        let to = route.to.map(octets).unwrap_or_default();
        let (table, scope, kind) = match route.kind {
            RouteKind::Unicast => (RT_TABLE_MAIN, RT_SCOPE_LINK, RTN_UNICAST),
            RouteKind::UnicastFirst => (RT_TABLE_LOCAL, RT_SCOPE_LINK, RTN_UNICAST),
            RouteKind::Local => (RT_TABLE_LOCAL, RT_SCOPE_HOST, RTN_LOCAL),
        };
        let bits = (to.len() * 8) as u8;
        let mut request = Message::new(RTM_NEWROUTE, NLM_F_CREATE)
            .bytes(&[route.family as u8, bits, 0, 0, table, RTPROT_STATIC, scope, kind])
            .bytes(&0u32.to_ne_bytes())
            .attribute(RTA_OIF, &route.link.to_ne_bytes());
        if !to.is_empty() {
            request = request.attribute(RTA_DST, &to);
        }
        let name = || route.to.map_or("everything".to_owned(), |to| to.to_string());
        self.ask(request, || format!("route {} to a link", name()))
    }

    /// Whether packets can pass over a link: it and its other end are up, and the kernel has noticed.
    pub(super) fn is_running(&self, link: u32) -> Result<bool, LabError> {
        let request = Message::new(RTM_GETLINK, 0).link(link, 0);
        let reply = self.look(request, || format!("look at link {link}"))?;
        let flags = reply.get(HEADER + 8..HEADER + 12).and_then(|flags| flags.try_into().ok());
        Ok(flags.is_some_and(|flags| u32::from_ne_bytes(flags) & IFF_RUNNING != 0))
    }

    /// Whether an address of this namespace is in use, for IPv6 takes its time.
    pub(super) fn is_local(&self, address: IpAddr) -> Result<bool, LabError> {
        let bytes = octets(address);
        let request = Message::new(RTM_GETROUTE, 0)
            .bytes(&[Family::of(address) as u8, (bytes.len() * 8) as u8])
            .bytes(&[0; 10])
            .attribute(RTA_DST, &bytes);
        let reply = self.look(request, || format!("look up the route to {address}"))?;
        Ok(reply.get(HEADER + 7) == Some(&RTN_LOCAL))
    }

    fn ask(&self, request: Message, what: impl Fn() -> String) -> Result<(), LabError> {
        self.look(request, what).map(drop)
    }

    fn look(&self, request: Message, what: impl Fn() -> String) -> Result<Vec<u8>, LabError> {
        self.send(request).map_err(|source| LabError::Link { what: what(), source })
    }

    /// Sends a request and waits for the first message of the answer, if it is not an error.
    fn send(&self, request: Message) -> io::Result<Vec<u8>> {
        rustix::net::send(&self.0, &request.finish(), SendFlags::empty())?;
        let mut reply = vec![0; 8192];
        let (length, _) = rustix::net::recv(&self.0, &mut reply[..], RecvFlags::empty())?;
        reply.truncate(length);
        let field = |at: usize| reply.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        let kind = reply.get(4..6).and_then(|bytes| bytes.try_into().ok());
        match (kind.map(u16::from_ne_bytes), field(HEADER).map(i32::from_ne_bytes)) {
            (Some(NLMSG_ERROR), Some(0)) => Ok(reply),
            (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(-code)),
            (Some(_), Some(_)) => Ok(reply),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A netlink request that is being written.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Message {
        // A question needs no acknowledgement: it has an answer.
        let answer = if matches!(kind, RTM_GETLINK | RTM_GETROUTE) { 0 } else { NLM_F_ACK };
        Message(vec![0; 4])
            .bytes(&kind.to_ne_bytes())
            .bytes(&(NLM_F_REQUEST | answer | flags).to_ne_bytes())
            .bytes(&[0; 8])
    }

    fn bytes(mut self, bytes: &[u8]) -> Message {
        self.0.extend_from_slice(bytes);
        self
    }

    /// What every message about a link begins with: which one, and the flags to be set.
    fn link(self, link: u32, flags: u32) -> Message {
        let flags = flags.to_ne_bytes();
        self.bytes(&[0; 4]).bytes(&link.to_ne_bytes()).bytes(&flags).bytes(&flags)
    }

    fn attribute(self, kind: u16, value: &[u8]) -> Message {
        self.nest(kind, |message| message.bytes(value))
    }

    fn text(self, kind: u16, value: &str) -> Message {
        self.nest(kind, |message| message.bytes(value.as_bytes()).bytes(&[0]))
    }

    /// An attribute whose value is written by someone else.
    fn nest(mut self, kind: u16, value: impl FnOnce(Message) -> Message) -> Message {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 2]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        let mut message = value(self);
        let length = (message.0.len() - start) as u16;
        message.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        message.0.resize(message.0.len().next_multiple_of(4), 0);
        message
    }

    fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// The length of a message's header.
const HEADER: usize = 16;

// The kernel's words, as in `linux/netlink.h` and `linux/rtnetlink.h`.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const IFF_UP: u32 = 0x1;
const IFF_RUNNING: u32 = 0x40;
const IFF_NOARP: u32 = 0x80;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 0x2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTPROT_STATIC: u8 = 4;
const RT_TABLE_MAIN: u8 = 254;
const RT_TABLE_LOCAL: u8 = 255;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_HOST: u8 = 254;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
