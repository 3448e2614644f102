use std::{
    cell::RefCell,
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd},
};

use weir_model::IpFamily;
use weir_netlink::{
    Body, Header, Message, MessageWriter, NetlinkError, NetlinkProtocol, Socket, kind,
};

use super::namespace::NetNamespace;
use crate::LabError;

/// The index of the loopback link in every namespace.
pub(super) const LOOPBACK: u32 = 1;
/// The index of the link to the next namespace up, `eth0`.
pub(super) const UPLINK: u32 = 100;
/// The index of a node's bridge, `br0`.
pub(super) const BRIDGE: u32 = 101;

/// The hardware address of both ends of a standalone link, and of every bridge. A standalone link
/// uses no ARP, so every frame reaches the other end without neighbour or duplicate detection. The
/// kernel generates the addresses of links on a bridge.
const HARDWARE_ADDRESS: [u8; 6] = *b"\x02weir\0";

/// A netlink socket for the links, addresses and routes of one namespace.
#[derive(Debug)]
pub(super) struct Rtnetlink(RefCell<Socket>);

/// The topology of a pair of links.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// The two ends are alone.
    Alone,
    /// The local end is a port of the bridge.
    Bridged,
}

/// A route to one address, or the default route.
pub(super) struct Route {
    pub(super) to: Option<IpAddr>,
    pub(super) family: IpFamily,
    /// The gateway, or `None` if the destination is on the link.
    pub(super) via: Option<IpAddr>,
    pub(super) link: u32,
    pub(super) kind: RouteKind,
}

/// The kind of a route.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteKind {
    /// Forwards packets, with low precedence: in the main table.
    Unicast,
    /// Forwards packets, with the precedence of local routes: in the local table.
    UnicastFirst,
    /// Delivers packets in this namespace.
    Local,
}

/// The number of an address family in the kernel: `AF_INET` or `AF_INET6`.
fn family_number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

impl Rtnetlink {
    /// Opens a socket for the current namespace of this thread. It stays there when the thread
    /// moves.
    pub(super) fn open() -> Result<Rtnetlink, LabError> {
        let what = || "open a netlink socket".to_owned();
        let socket = Socket::open(NetlinkProtocol::Route);
        socket
            .map(|socket| Rtnetlink(RefCell::new(socket)))
            .map_err(|source| LabError::Link { what: what(), source })
    }

    /// Creates a pair of links: one here, which is up immediately, and `eth0` in the other
    /// namespace.
    pub(super) fn join(
        &self,
        link: u32,
        name: &str,
        there: &NetNamespace,
        ends: Ends,
    ) -> Result<(), LabError> {
        let there = there.as_fd().as_raw_fd().cast_unsigned();
        let what = || format!("create the link {name}");
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

    /// Creates a bridge without ports.
    pub(super) fn bridge(&self) -> Result<(), LabError> {
        let what = || "create a bridge".to_owned();
        self.ask(RTM_NEWLINK, kind::CREATE | kind::EXCL, what, |message| {
            this_link(message, BRIDGE, 0)
                .text(IFLA_IFNAME, "br0")
                .bytes(IFLA_ADDRESS, &HARDWARE_ADDRESS)
                .nest(IFLA_LINKINFO, |info| _ = info.text(IFLA_INFO_KIND, "bridge"));
        })
    }

    /// Brings a link up.
    pub(super) fn up(&self, link: u32) -> Result<(), LabError> {
        let what = || format!("bring link {link} up");
        self.ask(RTM_SETLINK, 0, what, |message| _ = this_link(message, link, IFF_UP))
    }

    /// Adds an address to a link.
    pub(super) fn address(&self, link: u32, address: IpAddr) -> Result<(), LabError> {
        let bytes = octets(address);
        let bits = (bytes.len() * 8) as u8;
        let what = || format!("add {address} to a link");
        self.ask(RTM_NEWADDR, kind::CREATE, what, |message| {
            message
                .fixed(&[family_number(address.into()), bits, IFA_F_NODAD, 0])
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
                .fixed(&[
                    family_number(route.family),
                    bits,
                    0,
                    0,
                    table,
                    RTPROT_STATIC,
                    scope,
                    kind,
                ])
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

    /// Whether a link is running: both ends are up, and the kernel has noticed.
    pub(super) fn is_running(&self, link: u32) -> Result<bool, LabError> {
        let what = || format!("query link {link}");
        let body = |message: &mut Body<'_>| _ = this_link(message, link, 0);
        let mut running = false;
        self.look(RTM_GETLINK, 0, what, body, |answer| {
            let flags = answer.payload.get(8..12).and_then(|flags| flags.try_into().ok());
            running = flags.is_some_and(|flags| u32::from_ne_bytes(flags) & IFF_RUNNING != 0);
        })?;
        Ok(running)
    }

    /// Whether an address of this namespace is active. IPv6 addresses need some time.
    pub(super) fn is_local(&self, address: IpAddr) -> Result<bool, LabError> {
        let bytes = octets(address);
        let what = || format!("look up the route to {address}");
        let body = |message: &mut Body<'_>| {
            let bits = (bytes.len() * 8) as u8;
            message
                .fixed(&[family_number(address.into()), bits, 0, 0, 0, 0, 0, 0])
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
        let mut writer = MessageWriter::default();
        writer
            .message(Header { kind, flags, sequence: 0 }, body)
            .map_err(io::Error::other)
            .and_then(|()| self.0.borrow_mut().query(writer.bytes(), visit).map_err(io_error))
            .map_err(|source| LabError::Link { what: what(), source })
    }
}

/// Starts a message about a link with its index and the flags to set.
fn this_link<'a, 'b>(body: &'a mut Body<'b>, link: u32, flags: u32) -> &'a mut Body<'b> {
    let flags = flags.to_ne_bytes();
    body.fixed(&[0; 4]).fixed(&link.to_ne_bytes()).fixed(&flags).fixed(&flags)
}

/// Starts a message about one end of a pair.
fn this_end<'a, 'b>(body: &'a mut Body<'b>, link: u32, flags: u32, ends: Ends) -> &'a mut Body<'b> {
    match ends {
        Ends::Alone => {
            this_link(body, link, flags | IFF_NOARP).bytes(IFLA_ADDRESS, &HARDWARE_ADDRESS)
        }
        Ends::Bridged => this_link(body, link, flags),
    }
}

/// The kernel's error, with its text if there is one.
fn io_error(error: NetlinkError) -> io::Error {
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

// Constants of `linux/rtnetlink.h`.
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
