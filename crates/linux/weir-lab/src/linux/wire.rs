use std::{
    cell::RefCell,
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd},
};

use weir_netlink::{Body, Header, Message, NetlinkError, Protocol, Socket, Writer, kind};

use super::namespace::Namespace;
use crate::LabError;

/// The index that the loopback link of every namespace has.
pub(super) const LOOPBACK: u32 = 1;
/// The index that we give to the link to the next namespace up, `eth0`.
pub(super) const UPLINK: u32 = 100;
/// The index that we give to the bridge of a node, `br0`.
pub(super) const BRIDGE: u32 = 101;

/// Both ends of a link that stands alone have the same hardware address, and none asks for addresses: a frame that is sent is
/// for the other end. So there are no neighbours to be found, and no duplicates to be looked for. A bridge has this address
/// too, and whoever is joined to it one that the kernel makes up.
const HARDWARE: [u8; 6] = *b"\x02weir\0";

/// A line to the kernel about the links, addresses and routes of one namespace.
#[derive(Debug)]
pub(super) struct Wire(RefCell<Socket>);

/// Who else is on a pair of links.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// Nobody.
    Alone,
    /// Those on the bridge, which the end here is a port of.
    Bridged,
}

/// A route to one address or, without one, to all.
pub(super) struct Route {
    pub(super) to: Option<IpAddr>,
    pub(super) family: Family,
    /// Who passes it on; `None`: whoever it is for is on the link.
    pub(super) via: Option<IpAddr>,
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
        let what = || "open a netlink socket".to_owned();
        let socket = Socket::open(Protocol::Route);
        socket
            .map(|socket| Wire(RefCell::new(socket)))
            .map_err(|source| LabError::Link { what: what(), source })
    }

    /// Makes a pair of links: one here, up at once, and `eth0` in the other namespace.
    pub(super) fn join(
        &self,
        link: u32,
        name: &str,
        there: &Namespace,
        ends: Ends,
    ) -> Result<(), LabError> {
        let there = there.as_fd().as_raw_fd().cast_unsigned();
        let what = || format!("make the link {name}");
        self.ask(RTM_NEWLINK, kind::CREATE | kind::EXCL, what, |message| {
            this_end(message, link, IFF_UP, ends).text(IFLA_IFNAME, name);
            if ends == Ends::Bridged {
                message.u32(IFLA_MASTER, BRIDGE);
            }
            message.nest(IFLA_LINKINFO, |info| {
                info.text(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
                    data.nest(VETH_INFO_PEER, |peer| {
                        this_end(peer, UPLINK, 0, ends)
                            .text(IFLA_IFNAME, "eth0")
                            .u32(IFLA_NET_NS_FD, there);
                    });
                });
            });
        })
    }

    /// Makes a bridge without ports.
    pub(super) fn bridge(&self) -> Result<(), LabError> {
        let what = || "make a bridge".to_owned();
        self.ask(RTM_NEWLINK, kind::CREATE | kind::EXCL, what, |message| {
            this_link(message, BRIDGE, 0)
                .text(IFLA_IFNAME, "br0")
                .bytes(IFLA_ADDRESS, &HARDWARE)
                .nest(IFLA_LINKINFO, |info| _ = info.text(IFLA_INFO_KIND, "bridge"));
        })
    }

    /// Brings a link up.
    pub(super) fn up(&self, link: u32) -> Result<(), LabError> {
        let what = || format!("bring link {link} up");
        self.ask(RTM_SETLINK, 0, what, |message| _ = this_link(message, link, IFF_UP))
    }

    /// Gives a link an address.
    pub(super) fn address(&self, link: u32, address: IpAddr) -> Result<(), LabError> {
        let bytes = octets(address);
        let bits = (bytes.len() * 8) as u8;
        let what = || format!("give {address} to a link");
        self.ask(RTM_NEWADDR, kind::CREATE, what, |message| {
            message
                .fixed(&[Family::of(address) as u8, bits, IFA_F_NODAD, 0])
                .fixed(&link.to_ne_bytes())
                .bytes(IFA_LOCAL, &bytes)
                .bytes(IFA_ADDRESS, &bytes);
        })
    }

    /// Adds a route.
    pub(super) fn route(&self, route: &Route) -> Result<(), LabError> {
        let to = route.to.map(octets).unwrap_or_default();
        let (table, scope, kind) = match route.kind {
            RouteKind::Unicast if route.via.is_some() => {
                (RT_TABLE_MAIN, RT_SCOPE_UNIVERSE, RTN_UNICAST)
            }
            RouteKind::Unicast => (RT_TABLE_MAIN, RT_SCOPE_LINK, RTN_UNICAST),
            RouteKind::UnicastFirst => (RT_TABLE_LOCAL, RT_SCOPE_LINK, RTN_UNICAST),
            RouteKind::Local => (RT_TABLE_LOCAL, RT_SCOPE_HOST, RTN_LOCAL),
        };
        let bits = (to.len() * 8) as u8;
        let name = || route.to.map_or("everything".to_owned(), |to| to.to_string());
        let what = || format!("route {} to a link", name());
        self.ask(RTM_NEWROUTE, kind::CREATE, what, |message| {
            message
                .fixed(&[route.family as u8, bits, 0, 0, table, RTPROT_STATIC, scope, kind])
                .fixed(&[0; 4])
                .u32(RTA_OIF, route.link);
            if !to.is_empty() {
                message.bytes(RTA_DST, &to);
            }
            if let Some(via) = route.via {
                message.bytes(RTA_GATEWAY, &octets(via));
            }
        })
    }

    /// Whether packets can pass over a link: it and its other end are up, and the kernel has noticed.
    pub(super) fn is_running(&self, link: u32) -> Result<bool, LabError> {
        let what = || format!("look at link {link}");
        let body = |message: &mut Body<'_>| _ = this_link(message, link, 0);
        let mut running = false;
        self.look(RTM_GETLINK, 0, what, body, |answer| {
            let flags = answer.payload.get(8..12).and_then(|flags| flags.try_into().ok());
            running = flags.is_some_and(|flags| u32::from_ne_bytes(flags) & IFF_RUNNING != 0);
        })?;
        Ok(running)
    }

    /// Whether an address of this namespace is in use, for IPv6 takes its time.
    pub(super) fn is_local(&self, address: IpAddr) -> Result<bool, LabError> {
        let bytes = octets(address);
        let what = || format!("look up the route to {address}");
        let body = |message: &mut Body<'_>| {
            let bits = (bytes.len() * 8) as u8;
            message
                .fixed(&[Family::of(address) as u8, bits, 0, 0, 0, 0, 0, 0])
                .fixed(&[0; 4])
                .bytes(RTA_DST, &bytes);
        };
        let mut local = false;
        self.look(RTM_GETROUTE, 0, what, body, |answer| {
            local = answer.payload.get(7) == Some(&RTN_LOCAL);
        })?;
        Ok(local)
    }

    fn ask(
        &self,
        kind: u16,
        flags: u16,
        what: impl Fn() -> String,
        body: impl FnOnce(&mut Body<'_>),
    ) -> Result<(), LabError> {
        self.look(kind, flags, what, body, |_| ())
    }

    fn look(
        &self,
        kind: u16,
        flags: u16,
        what: impl Fn() -> String,
        body: impl FnOnce(&mut Body<'_>),
        visit: impl FnMut(Message<'_>),
    ) -> Result<(), LabError> {
        let flags = kind::REQUEST | kind::ACK | flags;
        let mut writer = Writer::default();
        writer
            .message(Header { kind, flags, sequence: 0 }, body)
            .map_err(io::Error::other)
            .and_then(|()| self.0.borrow_mut().query(writer.bytes(), visit).map_err(unlucky))
            .map_err(|source| LabError::Link { what: what(), source })
    }
}

/// What every message about a link begins with: which one, and the flags to be set.
fn this_link<'a, 'b>(body: &'a mut Body<'b>, link: u32, flags: u32) -> &'a mut Body<'b> {
    let flags = flags.to_ne_bytes();
    body.fixed(&[0; 4]).fixed(&link.to_ne_bytes()).fixed(&flags).fixed(&flags)
}

/// The same for an end of a pair.
fn this_end<'a, 'b>(body: &'a mut Body<'b>, link: u32, flags: u32, ends: Ends) -> &'a mut Body<'b> {
    match ends {
        Ends::Alone => this_link(body, link, flags | IFF_NOARP).bytes(IFLA_ADDRESS, &HARDWARE),
        Ends::Bridged => this_link(body, link, flags),
    }
}

/// The kernel's own error, unless it had more to say.
fn unlucky(error: NetlinkError) -> io::Error {
    match error {
        NetlinkError::Rejected(rejection) if rejection.reason.is_none() => rejection.error,
        error => io::Error::other(error),
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

// The kernel's words, as in `linux/rtnetlink.h`.
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
const IFLA_MASTER: u16 = 10;
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
const RTA_GATEWAY: u16 = 5;
const RTPROT_STATIC: u8 = 4;
const RT_TABLE_MAIN: u8 = 254;
const RT_TABLE_LOCAL: u8 = 255;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_HOST: u8 = 254;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
