//! The links of the node, its routes to pods, and its neighbours, over rtnetlink.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use rustix::io::Errno;
use weir_netlink::{
    Attributes, Body, Header, Malformed, Message, MessageWriter, Messages, NetlinkError,
    NetlinkProtocol, Socket, kind,
};

/// A link of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    /// The kind of a virtual link, such as `veth`. Empty for a physical one.
    pub(crate) kind: String,
    /// Whether it is a port of another link, such as a bridge.
    pub(crate) is_port: bool,
    /// Whether its other end is in another network namespace.
    pub(crate) is_remote: bool,
}

/// The way from the node to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Over the link with this index.
    Over(u32),
    /// It is an address of the node itself.
    Own,
    /// The node has no route to it.
    Missing,
}

/// An address that the node resolved to a station on a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Neighbour {
    pub(crate) link: u32,
    pub(crate) address: IpAddr,
    /// The hardware address.
    pub(crate) station: Vec<u8>,
}

/// Reads links, routes and neighbours.
pub(crate) struct RouteSocket {
    socket: Socket,
    sequence: u32,
}

impl RouteSocket {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(RouteSocket { socket: Socket::open(NetlinkProtocol::Route)?, sequence: 0 })
    }

    /// The links, by index.
    pub(crate) fn links(&mut self) -> io::Result<BTreeMap<u32, Link>> {
        let mut links = BTreeMap::new();
        let body = |body: &mut Body<'_>| {
            body.fixed(&[0; IFINFOMSG_LENGTH]).u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        };
        self.query(RTM_GETLINK, kind::DUMP, body, |message| {
            if let Some(index) = word(message, 4) {
                links.insert(index, parse_link(message.attributes(IFINFOMSG_LENGTH))?);
            }
            Ok(())
        })?;
        Ok(links)
    }

    /// Whether a link of this name exists.
    pub(crate) fn has_link(&mut self, name: &str) -> io::Result<bool> {
        let body = |body: &mut Body<'_>| {
            body.fixed(&[0; IFINFOMSG_LENGTH]).text(IFLA_IFNAME, name);
        };
        match self.query(RTM_GETLINK, kind::ACK, body, |_| Ok(())) {
            Err(error) if errno(&error) == Some(Errno::NODEV) => Ok(false),
            found => found.map(|()| true),
        }
    }

    /// The routes to addresses. It sends requests in batches, to save system calls.
    pub(crate) fn routes(
        &mut self,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> io::Result<BTreeMap<IpAddr, Route>> {
        self.lookup_routes(addresses, parse_route)
    }

    /// The links of addresses that have a route of their own, without a gateway.
    pub(crate) fn own_routes(
        &mut self,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> io::Result<BTreeMap<IpAddr, u32>> {
        let routes = self.lookup_routes(addresses, parse_own_route)?;
        Ok(routes.into_iter().filter_map(|(address, link)| Some((address, link?))).collect())
    }

    fn lookup_routes<T>(
        &mut self,
        addresses: impl IntoIterator<Item = IpAddr>,
        parse: fn(&Message<'_>) -> io::Result<T>,
    ) -> io::Result<BTreeMap<IpAddr, T>> {
        let addresses: Vec<IpAddr> = addresses.into_iter().collect();
        let (mut routes, mut buffer) = (BTreeMap::new(), vec![0; BUFFER_BYTES]);
        for chunk in addresses.chunks(REQUESTS_PER_BATCH) {
            let mut waiting: BTreeMap<u32, IpAddr> = BTreeMap::new();
            let mut writer = MessageWriter::default();
            for address in chunk {
                self.sequence = self.sequence.wrapping_add(1);
                waiting.insert(self.sequence, *address);
                let header =
                    Header { kind: RTM_GETROUTE, flags: kind::REQUEST, sequence: self.sequence };
                let written = writer.message(header, |body| write_route_request(body, *address));
                written.expect("the request fits into a message");
            }
            self.socket.send(writer.bytes())?;
            while !waiting.is_empty() {
                let received = self.socket.receive(&mut buffer, Some(REPLY_TIMEOUT))?;
                for message in Messages::new(received.ok_or(io::ErrorKind::TimedOut)?) {
                    let message = message.map_err(io::Error::other)?;
                    let Some(address) = waiting.remove(&message.sequence) else { continue };
                    routes.insert(address, parse(&message)?);
                }
            }
        }
        Ok(routes)
    }

    /// The neighbours on all links.
    pub(crate) fn neighbours(&mut self) -> io::Result<Vec<Neighbour>> {
        let mut all = Vec::new();
        let body = |body: &mut Body<'_>| _ = body.fixed(&[0; NDMSG_LENGTH]);
        self.query(RTM_GETNEIGH, kind::DUMP, body, |message| {
            all.extend(parse_neighbour(message)?);
            Ok(())
        })?;
        Ok(all)
    }

    pub(crate) fn query(
        &mut self,
        number: u16,
        flags: u16,
        body: impl FnOnce(&mut Body<'_>),
        mut visit: impl FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut writer = MessageWriter::default();
        let flags = kind::REQUEST | flags;
        let written = writer.message(Header { kind: number, flags, sequence: self.sequence }, body);
        written.expect("the request fits into a message");
        let mut read = Ok(());
        let listed = self.socket.query(writer.bytes(), |message| {
            if read.is_ok() {
                read = visit(&message);
            }
        });
        match listed {
            // The list changed meanwhile. The next inspection finds what this one missed.
            Ok(()) | Err(NetlinkError::Interrupted) => read.map_err(io::Error::other),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// The number of requests in one datagram. All replies must fit into the socket's buffer.
const REQUESTS_PER_BATCH: usize = 32;
const BUFFER_BYTES: usize = 64 * 1024;
/// The kernel replies while it handles the request.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The errors of a lookup without a usable route.
const UNREACHABLE: [Errno; 4] =
    [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::ACCESS, Errno::INVAL];

/// The kernel's reason for a rejected request.
fn errno(error: &io::Error) -> Option<Errno> {
    match error.get_ref()?.downcast_ref::<NetlinkError>()? {
        NetlinkError::Rejected(rejection) => rejection.errno(),
        _ => None,
    }
}

fn write_route_request(body: &mut Body<'_>, address: IpAddr) {
    let (family, bytes) = match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    };
    let mut header = [0; RTMSG_LENGTH];
    (header[0], header[1]) = (family, if family == AF_INET { 32 } else { 128 });
    // The matching route is enough. Resolving it would select a source address, and with IPv6
    // compare the addresses of all links.
    header[8..].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
    body.fixed(&header).bytes(RTA_DST, &bytes);
}

fn parse_route(message: &Message<'_>) -> io::Result<Route> {
    match message.verdict() {
        Some(Err(rejection)) if rejection.errno().is_some_and(|one| UNREACHABLE.contains(&one)) => {
            return Ok(Route::Missing);
        }
        Some(Err(rejection)) => return Err(io::Error::other(rejection)),
        _ => (),
    }
    let over = parse_output(message.attributes(RTMSG_LENGTH)).map_err(io::Error::other)?;
    Ok(match (message.payload.get(7), over) {
        (Some(&RTN_UNICAST), Some(link)) => Route::Over(link),
        (Some(&RTN_LOCAL), _) => Route::Own,
        _ => Route::Missing,
    })
}

/// The link of a route to one address. Of several next hops, none is the link of a pod.
fn parse_own_route(message: &Message<'_>) -> io::Result<Option<u32>> {
    let Route::Over(link) = parse_route(message)? else { return Ok(None) };
    let is_whole = match message.payload.get(..2) {
        Some(&[AF_INET, length]) => length == 32,
        Some(&[AF_INET6, length]) => length == 128,
        _ => false,
    };
    let indirect = [RTA_GATEWAY, RTA_MULTIPATH, RTA_VIA, RTA_NH_ID];
    for attribute in message.attributes(RTMSG_LENGTH) {
        if indirect.contains(&attribute.map_err(io::Error::other)?.kind) {
            return Ok(None);
        }
    }
    Ok(is_whole.then_some(link))
}

fn parse_link(attributes: Attributes<'_>) -> Result<Link, Malformed> {
    let mut link = Link::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            // The kernel accepts any bytes.
            IFLA_IFNAME => link.name = attribute.text().unwrap_or("?").to_owned(),
            IFLA_MASTER => link.is_port = true,
            IFLA_LINK_NETNSID => link.is_remote = true,
            IFLA_LINKINFO => {
                for inner in attribute.attributes() {
                    let inner = inner?;
                    if inner.kind == IFLA_INFO_KIND {
                        link.kind = inner.text()?.to_owned();
                    }
                }
            }
            _ => (),
        }
    }
    Ok(link)
}

/// The link that a route leads to.
fn parse_output(attributes: Attributes<'_>) -> Result<Option<u32>, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            RTA_OIF => return attribute.u32().map(Some),
            // Of several next hops, the first one is enough: a pod has one link.
            RTA_MULTIPATH => {
                let hop = attribute.value.get(4..8).and_then(|bytes| bytes.try_into().ok());
                return Ok(hop.map(u32::from_ne_bytes));
            }
            _ => (),
        }
    }
    Ok(None)
}

/// A neighbour with an address that can be a pod's.
fn parse_neighbour(message: &Message<'_>) -> Result<Option<Neighbour>, Malformed> {
    let (Some(link), Some(&[low, high])) = (word(message, 4), message.payload.get(8..10)) else {
        return Err(Malformed::Message);
    };
    if u16::from_ne_bytes([low, high]) & (NUD_INCOMPLETE | NUD_FAILED | NUD_NOARP) != 0 {
        return Ok(None);
    }
    let (mut address, mut station) = (None, None);
    for attribute in message.attributes(NDMSG_LENGTH) {
        let attribute = attribute?;
        match attribute.kind {
            NDA_DST if attribute.value.len() == 4 => {
                address = Some(IpAddr::from(attribute.array::<4>()?));
            }
            NDA_DST => address = Some(IpAddr::from(attribute.array::<16>()?)),
            NDA_LLADDR => station = Some(attribute.value.to_vec()),
            _ => (),
        }
    }
    let neighbour = address.zip(station).filter(|(address, _)| is_global(*address));
    Ok(neighbour.map(|(address, station)| Neighbour { link, address, station }))
}

/// Whether a packet with this address can come from another link.
fn is_global(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => is_link_local(address),
    };
    !is_local && !address.is_multicast() && !address.is_loopback() && !address.is_unspecified()
}

fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

/// The number at an offset of the fixed header.
pub(crate) fn word(message: &Message<'_>, at: usize) -> Option<u32> {
    let bytes = message.payload.get(at..at + 4)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

// From `linux/rtnetlink.h`, `linux/if_link.h` and `linux/neighbour.h`.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RTM_GETLINK: u16 = 18;
const RTM_GETROUTE: u16 = 26;
const RTM_GETNEIGH: u16 = 30;
const IFINFOMSG_LENGTH: usize = 16;
const RTMSG_LENGTH: usize = 12;
const NDMSG_LENGTH: usize = 12;
const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const RTA_NH_ID: u16 = 30;
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_INCOMPLETE: u16 = 0x01;
const NUD_FAILED: u16 = 0x20;
const NUD_NOARP: u16 = 0x40;
