//! Netlink messages about sets, as in `linux/netfilter/ipset/ip_set.h`.

use std::{iter::Peekable, net::IpAddr};

use ipnet::IpNet;
use weir_model::{IpFamily, Name, Protocol};
use weir_netlink::{Attribute, Attributes, Body, Malformed};

use crate::{Entry, IpSetKind, installed::InstalledSet};

/// The netfilter subsystem of ipset.
const NFNL_SUBSYS_IPSET: u16 = 6 << 8;
pub(crate) const IPSET_CMD_CREATE: u16 = NFNL_SUBSYS_IPSET | 2;
pub(crate) const IPSET_CMD_DESTROY: u16 = NFNL_SUBSYS_IPSET | 3;
pub(crate) const IPSET_CMD_LIST: u16 = NFNL_SUBSYS_IPSET | 7;
pub(crate) const IPSET_CMD_ADD: u16 = NFNL_SUBSYS_IPSET | 9;
pub(crate) const IPSET_CMD_DEL: u16 = NFNL_SUBSYS_IPSET | 10;

/// The length of the header before the attributes.
pub(crate) const NFGENMSG_LENGTH: usize = 4;
/// The oldest protocol version, which every kernel supports.
const IPSET_PROTOCOL: u8 = 6;
/// The flag of a number in network byte order.
const NLA_F_NET_BYTEORDER: u16 = 0x4000;

const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_TYPENAME: u16 = 3;
const IPSET_ATTR_REVISION: u16 = 4;
const IPSET_ATTR_FAMILY: u16 = 5;
const IPSET_ATTR_FLAGS: u16 = 6;
const IPSET_ATTR_DATA: u16 = 7;
const IPSET_ATTR_ADT: u16 = 8;
const IPSET_ATTR_LINENO: u16 = 9;

const IPSET_ATTR_IP: u16 = 1;
const IPSET_ATTR_CIDR: u16 = 3;
const IPSET_ATTR_PORT: u16 = 4;
const IPSET_ATTR_TIMEOUT: u16 = 6;
const IPSET_ATTR_PROTO: u16 = 7;
const IPSET_ATTR_CADT_FLAGS: u16 = 8;
const IPSET_ATTR_MAXELEM: u16 = 19;
const IPSET_ATTR_IP2: u16 = 20;
const IPSET_ATTR_IFACE: u16 = 23;
const IPSET_ATTR_ELEMENTS: u16 = 24;
const IPSET_ATTR_COMMENT: u16 = 26;

const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
const IPSET_ATTR_IPADDR_IPV6: u16 = 2;

/// An entry excludes its network from the set.
const IPSET_FLAG_NOMATCH: u32 = 1 << 2;
/// Entries can have comments.
const IPSET_FLAG_WITH_COMMENT: u32 = 1 << 4;
/// List only names.
const IPSET_FLAG_LIST_SETNAME: u32 = 1 << 1;
/// List only headers.
const IPSET_FLAG_LIST_HEADER: u32 = 1 << 2;

/// The maximum length of an entry with its comment.
const MAX_ENTRY_LENGTH: usize = 400;

fn begin<'b, 'a>(body: &'b mut Body<'a>, name: &str) -> &'b mut Body<'a> {
    body.fixed(&[2, 0, 0, 0]).u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL).text(IPSET_ATTR_SETNAME, name)
}

/// Names the set of a request without other attributes.
pub(crate) fn write_name(body: &mut Body<'_>, name: &str) {
    begin(body, name);
}

/// Requests the names of all sets.
pub(crate) fn request_names(body: &mut Body<'_>) {
    body.fixed(&[2, 0, 0, 0])
        .u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL)
        .be_u32(IPSET_ATTR_FLAGS | NLA_F_NET_BYTEORDER, IPSET_FLAG_LIST_SETNAME);
}

/// Requests the header of each set.
pub(crate) fn request_headers(body: &mut Body<'_>) {
    body.fixed(&[2, 0, 0, 0])
        .u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL)
        .be_u32(IPSET_ATTR_FLAGS | NLA_F_NET_BYTEORDER, IPSET_FLAG_LIST_HEADER);
}

/// The attributes that create a set.
pub(crate) fn write_set(body: &mut Body<'_>, name: &str, kind: IpSetKind, family: IpFamily) {
    // New enough for comments and SCTP ports, and old enough for every tool to list it.
    let revision = match kind {
        IpSetKind::Pods
        | IpSetKind::Isolated
        | IpSetKind::Addresses
        | IpSetKind::Ipvs
        | IpSetKind::Policies
        | IpSetKind::Sources => 4,
        IpSetKind::Ports | IpSetKind::Grants | IpSetKind::Cut => 5,
        IpSetKind::Links | IpSetKind::Records => 5,
        IpSetKind::Blocks => 6,
        IpSetKind::BlockPorts => 7,
    };
    begin(body, name)
        .text(IPSET_ATTR_TYPENAME, kind.type_name())
        .u8(IPSET_ATTR_REVISION, revision)
        .u8(IPSET_ATTR_FAMILY, family_number(family))
        .nest(IPSET_ATTR_DATA, |data| {
            data.be_u32(IPSET_ATTR_MAXELEM | NLA_F_NET_BYTEORDER, kind.max_entries());
            if let Some(seconds) = kind.timeout() {
                data.be_u32(IPSET_ATTR_TIMEOUT | NLA_F_NET_BYTEORDER, seconds);
            }
            if kind.is_commented() {
                data.be_u32(IPSET_ATTR_CADT_FLAGS | NLA_F_NET_BYTEORDER, IPSET_FLAG_WITH_COMMENT);
            }
        });
}

/// Adds as many entries as fit into one message, and leaves the others.
pub(crate) fn write_entries<'e>(
    body: &mut Body<'_>,
    name: &str,
    entries: &mut Peekable<impl Iterator<Item = (&'e Entry, &'e str)>>,
    seconds: Option<u32>,
) {
    begin(body, name).u32(IPSET_ATTR_LINENO, 0).nest(IPSET_ATTR_ADT, |all| {
        while all.remaining_capacity() > MAX_ENTRY_LENGTH
            && let Some((one, comment)) = entries.next()
        {
            all.nest(IPSET_ATTR_DATA, |data| {
                write_entry(data, one);
                if !comment.is_empty() {
                    data.text(IPSET_ATTR_COMMENT, comment);
                }
                if let Some(seconds) = seconds {
                    data.be_u32(IPSET_ATTR_TIMEOUT | NLA_F_NET_BYTEORDER, seconds);
                }
            });
        }
    });
}

fn write_entry(data: &mut Body<'_>, entry: &Entry) {
    let write_port = |data: &mut Body<'_>, protocol: u8, port: u16| {
        data.be_u16(IPSET_ATTR_PORT | NLA_F_NET_BYTEORDER, port).u8(IPSET_ATTR_PROTO, protocol);
    };
    let port = |data: &mut Body<'_>, protocol: Protocol, port: u16| {
        write_port(data, protocol.number(), port);
    };
    match *entry {
        Entry::Address(at) => write_address(data, IPSET_ATTR_IP, at),
        Entry::Port(at, protocol, number) => {
            write_address(data, IPSET_ATTR_IP, at);
            port(data, protocol, number);
        }
        Entry::Grant(at, protocol, number, peer) => {
            write_address(data, IPSET_ATTR_IP, at);
            port(data, protocol, number);
            write_address(data, IPSET_ATTR_IP2, peer);
        }
        Entry::Pair(at, protocol, peer) => {
            write_address(data, IPSET_ATTR_IP, at);
            write_port(data, protocol, 0);
            write_address(data, IPSET_ATTR_IP2, peer);
        }
        Entry::Block(net) | Entry::Except(net) => {
            write_address(data, IPSET_ATTR_IP, net.addr());
            data.u8(IPSET_ATTR_CIDR, net.prefix_len());
        }
        Entry::Link(net, ref link) => {
            write_address(data, IPSET_ATTR_IP, net.addr());
            data.u8(IPSET_ATTR_CIDR, net.prefix_len()).text(IPSET_ATTR_IFACE, link);
        }
        Entry::BlockPort(net, protocol, number) | Entry::ExceptPort(net, protocol, number) => {
            write_address(data, IPSET_ATTR_IP, net.addr());
            data.u8(IPSET_ATTR_CIDR, net.prefix_len());
            port(data, protocol, number);
        }
    }
    if matches!(entry, Entry::Except(_) | Entry::ExceptPort(..)) {
        data.be_u32(IPSET_ATTR_CADT_FLAGS | NLA_F_NET_BYTEORDER, IPSET_FLAG_NOMATCH);
    }
}

fn write_address(data: &mut Body<'_>, kind: u16, address: IpAddr) {
    data.nest(kind, |inside| match address {
        IpAddr::V4(address) => {
            _ = inside.bytes(IPSET_ATTR_IPADDR_IPV4 | NLA_F_NET_BYTEORDER, &address.octets())
        }
        IpAddr::V6(address) => {
            _ = inside.bytes(IPSET_ATTR_IPADDR_IPV6 | NLA_F_NET_BYTEORDER, &address.octets())
        }
    });
}

/// The number of an address family in the kernel: `AF_INET` or `AF_INET6`.
pub(crate) fn family_number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

/// The name of the set in a message.
pub(crate) fn parse_name(attributes: Attributes<'_>) -> Result<Name, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == IPSET_ATTR_SETNAME {
            return Ok(attribute.text()?.into());
        }
    }
    Err(Malformed::Message)
}

/// Parses one message of a list into a set.
pub(crate) fn parse_message(
    set: &mut InstalledSet,
    attributes: Attributes<'_>,
) -> Result<(), Malformed> {
    parse_set(set, attributes.clone())?;
    visit_entries(attributes, |entry| match entry {
        Some((entry, comment)) => _ = set.entries.insert(entry, comment),
        None => set.has_unknown_entries = true,
    })
}

/// Parses one message of a list into a set, without the entries.
pub(crate) fn parse_set(
    set: &mut InstalledSet,
    attributes: Attributes<'_>,
) -> Result<(), Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IPSET_ATTR_TYPENAME => set.type_name = attribute.text()?.to_owned(),
            IPSET_ATTR_FAMILY => set.family = attribute.u8()?,
            IPSET_ATTR_DATA => parse_header(set, attribute.attributes())?,
            _ => (),
        }
    }
    Ok(())
}

/// Visits the entries in one message of a list, with their comments. `None` is an entry that weir
/// would not write.
pub(crate) fn visit_entries(
    attributes: Attributes<'_>,
    mut visit: impl FnMut(Option<(Entry, Name)>),
) -> Result<(), Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == IPSET_ATTR_ADT {
            for one in attribute.attributes() {
                visit(parse_entry(one?.attributes())?);
            }
        }
    }
    Ok(())
}

fn parse_header(set: &mut InstalledSet, attributes: Attributes<'_>) -> Result<(), Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IPSET_ATTR_MAXELEM => set.max = attribute.be_u32()?,
            IPSET_ATTR_CADT_FLAGS => {
                set.commented = attribute.be_u32()? & IPSET_FLAG_WITH_COMMENT != 0
            }
            IPSET_ATTR_TIMEOUT => set.timed = true,
            IPSET_ATTR_ELEMENTS => set.size = attribute.be_u32()?,
            _ => (),
        }
    }
    Ok(())
}

/// Parses an entry and its comment. `None` if weir would not write such an entry.
fn parse_entry(attributes: Attributes<'_>) -> Result<Option<(Entry, Name)>, Malformed> {
    let (mut ip, mut ip2, mut cidr, mut port, mut protocol) = (None, None, None, None, None);
    let mut link: Option<Name> = None;
    let mut comment = Name::from("");
    let mut is_excluded = false;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IPSET_ATTR_IP => ip = parse_address(attribute)?,
            IPSET_ATTR_IP2 => ip2 = parse_address(attribute)?,
            IPSET_ATTR_CIDR => cidr = Some(attribute.u8()?),
            IPSET_ATTR_PORT => port = Some(attribute.be_u16()?),
            IPSET_ATTR_PROTO => protocol = Some(attribute.u8()?),
            IPSET_ATTR_IFACE => link = Some(attribute.text()?.into()),
            IPSET_ATTR_COMMENT => comment = attribute.text()?.into(),
            IPSET_ATTR_CADT_FLAGS => match attribute.be_u32()? {
                IPSET_FLAG_NOMATCH => is_excluded = true,
                _ => return Ok(None),
            },
            _ => (),
        }
    }
    let protocol = match protocol {
        None => None,
        Some(number) => match Protocol::from_number(number) {
            None => {
                let pair = ip.zip(ip2).filter(|_| cidr.is_none() && port == Some(0));
                let pair = pair.map(|(ip, peer)| Entry::Pair(ip, number, peer));
                return Ok(pair.map(|entry| (entry, comment)));
            }
            known => known,
        },
    };
    let net = |ip: IpAddr, length| IpNet::new(ip, length).ok();
    if let Some(link) = link {
        let net = ip.zip(cidr).and_then(|(ip, length)| net(ip, length));
        let net = net.filter(|_| !is_excluded);
        return Ok(net.map(|net| (Entry::Link(net, link), comment)));
    }
    let entry = match (ip, cidr, protocol.zip(port), ip2) {
        (Some(ip), None, None, None) => Some(Entry::Address(ip)),
        (Some(ip), None, Some((protocol, port)), None) => Some(Entry::Port(ip, protocol, port)),
        (Some(ip), None, Some((protocol, port)), Some(peer)) => {
            Some(Entry::Grant(ip, protocol, port, peer))
        }
        (Some(ip), Some(length), None, None) => net(ip, length).map(Entry::Block),
        (Some(ip), Some(length), Some((protocol, port)), None) => {
            net(ip, length).map(|net| Entry::BlockPort(net, protocol, port))
        }
        _ => None,
    };
    let entry = match entry {
        Some(Entry::Block(net)) if is_excluded => Some(Entry::Except(net)),
        Some(Entry::BlockPort(net, protocol, port)) if is_excluded => {
            Some(Entry::ExceptPort(net, protocol, port))
        }
        // Only networks can be excluded.
        entry => entry.filter(|_| !is_excluded),
    };
    Ok(entry.map(|entry| (entry, comment)))
}

fn parse_address(attribute: Attribute<'_>) -> Result<Option<IpAddr>, Malformed> {
    for inside in attribute.attributes() {
        let inside = inside?;
        match inside.kind {
            IPSET_ATTR_IPADDR_IPV4 => return inside.array::<4>().map(|octets| Some(octets.into())),
            IPSET_ATTR_IPADDR_IPV6 => {
                return inside.array::<16>().map(|octets| Some(octets.into()));
            }
            _ => (),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use weir_netlink::{Header, MessageWriter, Messages};

    use super::*;

    #[test]
    fn entries_survive_a_round_trip() {
        let a = IpAddr::from([10, 0, 0, 1]);
        let b: IpAddr = "fd00::1".parse().unwrap();
        let all = [
            Entry::Address(a),
            Entry::Port(b, Protocol::Sctp, 7),
            Entry::Grant(a, Protocol::Udp, 53, a),
            Entry::Pair(a, 47, a),
            Entry::Block("10.0.0.0/8".parse().unwrap()),
            Entry::BlockPort("fd00::/8".parse().unwrap(), Protocol::Tcp, 80),
            Entry::Except("10.1.0.0/16".parse().unwrap()),
            Entry::ExceptPort("fd00::1/128".parse().unwrap(), Protocol::Sctp, 80),
            Entry::Link("10.0.0.1/32".parse().unwrap(), "veth1".into()),
        ];
        let mut writer = MessageWriter::default();
        let header = Header { kind: IPSET_CMD_ADD, flags: 0, sequence: 0 };
        let mut left = all.iter().map(|entry| (entry, "why")).peekable();
        writer.message(header, |body| write_entries(body, "S", &mut left, None)).unwrap();
        assert_eq!(left.next(), None);
        let message = Messages::new(writer.bytes()).next().unwrap().unwrap();
        assert_eq!(&*parse_name(message.attributes(NFGENMSG_LENGTH)).unwrap(), "S");
        let mut set = InstalledSet::default();
        parse_message(&mut set, message.attributes(NFGENMSG_LENGTH)).unwrap();
        let comment = Name::from("why");
        assert_eq!(set.entries, all.into_iter().map(|entry| (entry, comment.clone())).collect());
        assert!(!set.has_unknown_entries);
    }

    #[test]
    fn entries_that_do_not_fit_are_left_for_the_next_message() {
        let all: Vec<Entry> =
            (0..10_000_u32).map(|n| Entry::Address(IpAddr::from(n.to_be_bytes()))).collect();
        let mut left = all.iter().map(|entry| (entry, "")).peekable();
        let header = Header { kind: IPSET_CMD_ADD, flags: 0, sequence: 0 };
        let mut messages = 0;
        while left.peek().is_some() {
            let mut writer = MessageWriter::default();
            writer.message(header, |body| write_entries(body, "S", &mut left, Some(1))).unwrap();
            messages += 1;
        }
        assert!((2..6).contains(&messages), "{messages}");
    }
}
