//! Netlink messages about sets, as in `linux/netfilter/ipset/ip_set.h`.

use std::{iter::Peekable, net::IpAddr};

use ipnet::IpNet;
use weir_model::{IpFamily, Name, Protocol};
use weir_netlink::{Attribute, Attributes, Body, Malformed};

use crate::{Entry, Kind, installed::InstalledSet, text::MAXELEM};

/// The netfilter subsystem of ipset.
const SUBSYSTEM: u16 = 6 << 8;
pub(crate) const CREATE: u16 = SUBSYSTEM | 2;
pub(crate) const DESTROY: u16 = SUBSYSTEM | 3;
pub(crate) const LIST: u16 = SUBSYSTEM | 7;
pub(crate) const ADD: u16 = SUBSYSTEM | 9;
pub(crate) const REMOVE: u16 = SUBSYSTEM | 10;

/// The length of the header before the attributes.
pub(crate) const HEADER: usize = 4;
/// The oldest protocol version, which every kernel supports.
const VERSION: u8 = 6;
/// The flag of a number in network byte order.
const NETWORK_ORDER: u16 = 0x4000;

const PROTOCOL: u16 = 1;
const SET_NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const REVISION: u16 = 4;
const FAMILY: u16 = 5;
const FLAGS: u16 = 6;
const DATA: u16 = 7;
const ENTRIES: u16 = 8;
const LINE: u16 = 9;

const IP: u16 = 1;
const CIDR: u16 = 3;
const PORT: u16 = 4;
const TIMEOUT: u16 = 6;
const PROTO: u16 = 7;
const SET_FLAGS: u16 = 8;
const MAX: u16 = 19;
const IP2: u16 = 20;
const ELEMENTS: u16 = 24;
const COMMENT: u16 = 26;

const V4: u16 = 1;
const V6: u16 = 2;

/// Entries can have comments.
const WITH_COMMENT: u32 = 1 << 4;
/// List only names.
const NAMES_ONLY: u32 = 1 << 1;
/// List only headers.
const HEADERS_ONLY: u32 = 1 << 2;

/// The maximum length of an entry with its comment.
const MAX_ENTRY_LENGTH: usize = 400;

fn begin<'b, 'a>(body: &'b mut Body<'a>, name: &str) -> &'b mut Body<'a> {
    body.fixed(&[2, 0, 0, 0]).u8(PROTOCOL, VERSION).text(SET_NAME, name)
}

/// Names the set of a request without other attributes.
pub(crate) fn named(body: &mut Body<'_>, name: &str) {
    begin(body, name);
}

/// Requests the names of all sets.
pub(crate) fn names(body: &mut Body<'_>) {
    body.fixed(&[2, 0, 0, 0]).u8(PROTOCOL, VERSION).be_u32(FLAGS | NETWORK_ORDER, NAMES_ONLY);
}

/// Requests the header of each set.
pub(crate) fn heads(body: &mut Body<'_>) {
    body.fixed(&[2, 0, 0, 0]).u8(PROTOCOL, VERSION).be_u32(FLAGS | NETWORK_ORDER, HEADERS_ONLY);
}

/// The attributes that create a set.
pub(crate) fn create(body: &mut Body<'_>, name: &str, kind: Kind, family: IpFamily) {
    // New enough for comments and SCTP ports, and old enough for every tool to list it.
    let revision = match kind {
        Kind::Pods | Kind::Isolated | Kind::Addresses => 4,
        Kind::Ports | Kind::Grants | Kind::Cut => 5,
        Kind::Blocks => 6,
        Kind::BlockPorts => 7,
    };
    begin(body, name)
        .text(TYPE_NAME, kind.type_name())
        .u8(REVISION, revision)
        .u8(FAMILY, number(family))
        .nest(DATA, |data| {
            data.be_u32(MAX | NETWORK_ORDER, MAXELEM);
            match kind {
                Kind::Pods | Kind::Isolated => {
                    _ = data.be_u32(SET_FLAGS | NETWORK_ORDER, WITH_COMMENT)
                }
                Kind::Cut => _ = data.be_u32(TIMEOUT | NETWORK_ORDER, 0),
                _ => (),
            }
        });
}

/// Adds as many entries as fit into one message, and leaves the others.
pub(crate) fn entries<'e>(
    body: &mut Body<'_>,
    name: &str,
    entries: &mut Peekable<impl Iterator<Item = (&'e Entry, &'e str)>>,
    seconds: Option<u32>,
) {
    begin(body, name).u32(LINE, 0).nest(ENTRIES, |all| {
        while all.remaining_capacity() > MAX_ENTRY_LENGTH
            && let Some((one, note)) = entries.next()
        {
            all.nest(DATA, |data| {
                entry(data, one);
                if !note.is_empty() {
                    data.text(COMMENT, note);
                }
                if let Some(seconds) = seconds {
                    data.be_u32(TIMEOUT | NETWORK_ORDER, seconds);
                }
            });
        }
    });
}

fn entry(data: &mut Body<'_>, entry: &Entry) {
    let port = |data: &mut Body<'_>, protocol: Protocol, port: u16| {
        data.be_u16(PORT | NETWORK_ORDER, port).u8(PROTO, protocol.number());
    };
    match *entry {
        Entry::Address(at) => address(data, IP, at),
        Entry::Port(at, protocol, number) => {
            address(data, IP, at);
            port(data, protocol, number);
        }
        Entry::Grant(at, protocol, number, peer) => {
            address(data, IP, at);
            port(data, protocol, number);
            address(data, IP2, peer);
        }
        Entry::Block(net) => {
            address(data, IP, net.addr());
            data.u8(CIDR, net.prefix_len());
        }
        Entry::BlockPort(net, protocol, number) => {
            address(data, IP, net.addr());
            data.u8(CIDR, net.prefix_len());
            port(data, protocol, number);
        }
    }
}

fn address(data: &mut Body<'_>, kind: u16, address: IpAddr) {
    data.nest(kind, |inside| match address {
        IpAddr::V4(address) => _ = inside.bytes(V4 | NETWORK_ORDER, &address.octets()),
        IpAddr::V6(address) => _ = inside.bytes(V6 | NETWORK_ORDER, &address.octets()),
    });
}

/// The number of a family.
pub(crate) fn number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

/// The name of the set in a message.
pub(crate) fn name_in(attributes: Attributes<'_>) -> Result<Name, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == SET_NAME {
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
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            TYPE_NAME => set.type_name = attribute.text()?.to_owned(),
            FAMILY => set.family = attribute.u8()?,
            DATA => parse_header(set, attribute.attributes())?,
            ENTRIES => {
                for one in attribute.attributes() {
                    match parse_entry(one?.attributes())? {
                        Some((entry, note)) => _ = set.entries.insert(entry, note),
                        None => set.has_unknown_entries = true,
                    }
                }
            }
            _ => (),
        }
    }
    Ok(())
}

fn parse_header(set: &mut InstalledSet, attributes: Attributes<'_>) -> Result<(), Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            MAX => set.max = attribute.be_u32()?,
            SET_FLAGS => set.commented = attribute.be_u32()? & WITH_COMMENT != 0,
            TIMEOUT => set.timed = true,
            ELEMENTS => set.size = attribute.be_u32()?,
            _ => (),
        }
    }
    Ok(())
}

/// Parses an entry and its comment. `None` if weir would not write such an entry.
fn parse_entry(attributes: Attributes<'_>) -> Result<Option<(Entry, Name)>, Malformed> {
    let (mut ip, mut ip2, mut cidr, mut port, mut protocol) = (None, None, None, None, None);
    let mut note = Name::from("");
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IP => ip = parse_address(attribute)?,
            IP2 => ip2 = parse_address(attribute)?,
            CIDR => cidr = Some(attribute.u8()?),
            PORT => port = Some(attribute.be_u16()?),
            PROTO => protocol = Some(attribute.u8()?),
            COMMENT => note = attribute.text()?.into(),
            // A network that is excluded from the set (`nomatch`). Ours have none.
            SET_FLAGS => return Ok(None),
            _ => (),
        }
    }
    let protocol = match protocol {
        None => None,
        Some(number) => match Protocol::from_number(number) {
            None => return Ok(None),
            known => known,
        },
    };
    let net = |ip: IpAddr, length| IpNet::new(ip, length).ok();
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
    Ok(entry.map(|entry| (entry, note)))
}

fn parse_address(attribute: Attribute<'_>) -> Result<Option<IpAddr>, Malformed> {
    for inside in attribute.attributes() {
        let inside = inside?;
        match inside.kind {
            V4 => return inside.array::<4>().map(|octets| Some(octets.into())),
            V6 => return inside.array::<16>().map(|octets| Some(octets.into())),
            _ => (),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use weir_netlink::{Header, Messages, Writer};

    use super::*;

    #[test]
    fn entries_survive_a_round_trip() {
        let a = IpAddr::from([10, 0, 0, 1]);
        let b: IpAddr = "fd00::1".parse().unwrap();
        let all = [
            Entry::Address(a),
            Entry::Port(b, Protocol::Sctp, 7),
            Entry::Grant(a, Protocol::Udp, 53, a),
            Entry::Block("10.0.0.0/8".parse().unwrap()),
            Entry::BlockPort("fd00::/8".parse().unwrap(), Protocol::Tcp, 80),
        ];
        let mut writer = Writer::default();
        let header = Header { kind: ADD, flags: 0, sequence: 0 };
        let mut left = all.iter().map(|entry| (entry, "why")).peekable();
        writer.message(header, |body| entries(body, "S", &mut left, None)).unwrap();
        assert_eq!(left.next(), None);
        let message = Messages::new(writer.bytes()).next().unwrap().unwrap();
        assert_eq!(&*name_in(message.attributes(HEADER)).unwrap(), "S");
        let mut set = InstalledSet::default();
        parse_message(&mut set, message.attributes(HEADER)).unwrap();
        let note = Name::from("why");
        assert_eq!(set.entries, all.into_iter().map(|entry| (entry, note.clone())).collect());
        assert!(!set.has_unknown_entries);
    }

    #[test]
    fn entries_that_do_not_fit_are_left_for_the_next_message() {
        let all: Vec<Entry> =
            (0..10_000_u32).map(|n| Entry::Address(IpAddr::from(n.to_be_bytes()))).collect();
        let mut left = all.iter().map(|entry| (entry, "")).peekable();
        let header = Header { kind: ADD, flags: 0, sequence: 0 };
        let mut messages = 0;
        while left.peek().is_some() {
            let mut writer = Writer::default();
            writer.message(header, |body| entries(body, "S", &mut left, Some(1))).unwrap();
            messages += 1;
        }
        assert!((2..6).contains(&messages), "{messages}");
    }
}
