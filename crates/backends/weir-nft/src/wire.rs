//! Numbers of the kernel's nf_tables, and keys and comments as it stores them.

use std::net::IpAddr;

use weir_model::{PortRange, Protocol};
use weir_netlink::Body;

use crate::{Aim, Family, Go, Key, Kind, expr, expr::Verdict};

pub(crate) const TABLE: &str = "weir";
/// The header before the attributes of every message: the family `inet`, version 0, no resource.
pub(crate) const INET: [u8; 4] = [1, 0, 0, 0];
/// The same where no table is meant.
pub(crate) const ANY: [u8; 4] = [0, 0, 0, 0];
/// The same for the ends of a batch: the resource is nf_tables.
pub(crate) const BATCH: [u8; 4] = [0, 0, 0, SUBSYSTEM];
const SUBSYSTEM: u8 = 10;

/// The type of a message about nf_tables.
pub(crate) const fn message(number: u16) -> u16 {
    (SUBSYSTEM as u16) << 8 | number
}

pub(crate) const BATCH_BEGIN: u16 = 0x10;
pub(crate) const BATCH_END: u16 = 0x11;
pub(crate) const NEW_TABLE: u16 = message(0);
pub(crate) const GET_TABLE: u16 = message(1);
pub(crate) const DELETE_TABLE: u16 = message(2);
pub(crate) const NEW_CHAIN: u16 = message(3);
pub(crate) const GET_CHAIN: u16 = message(4);
pub(crate) const DELETE_CHAIN: u16 = message(5);
pub(crate) const NEW_RULE: u16 = message(6);
pub(crate) const GET_RULE: u16 = message(7);
pub(crate) const DELETE_RULE: u16 = message(8);
pub(crate) const NEW_SET: u16 = message(9);
pub(crate) const GET_SET: u16 = message(10);
pub(crate) const DELETE_SET: u16 = message(11);
pub(crate) const NEW_ELEMENTS: u16 = message(12);
pub(crate) const GET_ELEMENTS: u16 = message(13);
pub(crate) const DELETE_ELEMENTS: u16 = message(14);
pub(crate) const NEW_GENERATION: u16 = message(15);
pub(crate) const GET_GENERATION: u16 = message(16);
pub(crate) const GET_OBJECT: u16 = message(19);
pub(crate) const GET_FLOWTABLE: u16 = message(23);

/// The group that hears of every change.
pub(crate) const CHANGES: u32 = 7;

/// The hook, and the priority there.
pub(crate) const FORWARD: (u32, i32) = (2, 0);

/// A set that lives with the rule that has it.
pub(crate) const ANONYMOUS: u32 = 0x1;
const INTERVAL: u32 = 0x4;
const MAP: u32 = 0x8;
const TIMEOUT: u32 = 0x10;
const CONCATENATION: u32 = 0x80;
/// The element ends the interval that the one before it began.
pub(crate) const INTERVAL_END: u32 = 0x1;

/// The type of a map's data.
pub(crate) const VERDICT: u32 = 0xffff_ff00;

/// What a set is declared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) flags: u32,
    pub(crate) key_type: u32,
    pub(crate) key_length: u32,
    pub(crate) data_type: u32,
}

/// One part of a key: its type for nft, and its length in bytes.
fn fields(kind: Kind) -> Vec<(u32, u32)> {
    let address = |family| match family {
        Family::V4 => (7, 4),
        Family::V6 => (8, 16),
    };
    let (protocol, port) = ((12, 1), (13, 2));
    match kind {
        Kind::Addresses(family)
        | Kind::Chains(family)
        | Kind::Blocks(family)
        | Kind::BlockChains(family)
        | Kind::CutSenders(family) => vec![address(family)],
        Kind::Pairs(family) => vec![address(family), address(family)],
        Kind::Ports(family) => vec![address(family), protocol, port],
        Kind::Grants(family) => vec![address(family), address(family), protocol, port],
        Kind::Services | Kind::ServiceRanges => vec![protocol, port],
        Kind::Cut(family) => vec![address(family), port, address(family), port, protocol],
    }
}

impl Kind {
    pub(crate) fn declared(self) -> Declared {
        let fields = fields(self);
        let flags = match self {
            Kind::Blocks(_) => INTERVAL,
            Kind::BlockChains(_) => INTERVAL | MAP,
            Kind::Chains(_) => MAP,
            Kind::ServiceRanges => INTERVAL | CONCATENATION,
            Kind::Cut(_) | Kind::CutSenders(_) => TIMEOUT,
            Kind::Addresses(_)
            | Kind::Pairs(_)
            | Kind::Ports(_)
            | Kind::Grants(_)
            | Kind::Services => 0,
        };
        Declared {
            flags,
            key_type: fields.iter().fold(0, |all, (kind, _)| all << 6 | kind),
            key_length: fields.iter().map(|(_, length)| length.next_multiple_of(4)).sum(),
            data_type: if self.is_map() { VERDICT } else { 0 },
        }
    }

    /// The lengths of the parts of a key, where the kernel needs to know them.
    pub(crate) fn concatenation(self) -> Option<Vec<u32>> {
        matches!(self, Kind::ServiceRanges)
            .then(|| fields(self).into_iter().map(|(_, length)| length).collect())
    }

    /// Whether its elements never change while it has its name.
    pub(crate) fn is_constant(self) -> bool {
        matches!(
            self,
            Kind::Blocks(_) | Kind::BlockChains(_) | Kind::Services | Kind::ServiceRanges
        )
    }
}

/// An element as the kernel stores it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Element {
    pub(crate) key: KeyBytes,
    pub(crate) end: Option<Box<KeyBytes>>,
    pub(crate) flags: u32,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) note: Vec<u8>,
    /// Whether the kernel will remove it in time.
    pub(crate) expires: bool,
    /// Whether something hangs on it that ours never have.
    pub(crate) is_odd: bool,
}

/// A key as the kernel stores it: every part in whole registers of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyBytes {
    bytes: [u8; 44],
    length: u8,
}

impl Default for KeyBytes {
    fn default() -> Self {
        KeyBytes { bytes: [0; 44], length: 0 }
    }
}

impl KeyBytes {
    /// Reads a key; `None` if it is longer than any of ours.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut key = KeyBytes::default();
        key.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        key.length = u8::try_from(bytes.len()).ok()?;
        Some(key)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    fn push(mut self, part: &[u8]) -> Self {
        let start = usize::from(self.length);
        if let Some(room) = self.bytes.get_mut(start..start + part.len()) {
            room.copy_from_slice(part);
            self.length = (start + part.len()).next_multiple_of(4).try_into().unwrap_or(u8::MAX);
        }
        self
    }

    fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.push(&address.octets()),
            IpAddr::V6(address) => self.push(&address.octets()),
        }
    }

    fn protocol(self, protocol: Protocol) -> Self {
        self.push(&[expr::number(protocol)])
    }

    fn port(self, port: u16) -> Self {
        self.push(&port.to_be_bytes())
    }
}

/// The key of who sends the packets of a connection that was cut.
pub(crate) fn sender_key(source: IpAddr) -> KeyBytes {
    KeyBytes::default().address(source)
}

/// The key of a packet of a connection that was cut.
pub(crate) fn cut_key(
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
    protocol: Protocol,
) -> KeyBytes {
    let key = KeyBytes::default().address(source.0).port(source.1);
    key.address(destination.0).port(destination.1).protocol(protocol)
}

/// An element of a set, as the kernel stores it: an interval is two.
pub(crate) fn elements(kind: Kind, key: &Key, aim: Option<&Aim>) -> impl Iterator<Item = Element> {
    let note = aim.map_or(Vec::new(), |aim| note(&aim.comment));
    let verdict = aim.map(|aim| match &aim.go {
        Go::Jump(chain) => Verdict::to(expr::JUMP, chain),
        Go::Goto(chain) => Verdict::to(expr::GOTO, chain),
        Go::Return => Verdict::plain(expr::RETURN),
        Go::Accept => Verdict::plain(expr::ACCEPT),
        Go::Continue => Verdict::plain(expr::CONTINUE),
    });
    let start = KeyBytes::default();
    let (end, last) = match *key {
        Key::Block(_, last) => (None, Some(last)),
        Key::Service(PortRange { protocol, last, .. }) if kind == Kind::ServiceRanges => {
            (Some(Box::new(start.protocol(protocol).port(last))), None)
        }
        _ => (None, None),
    };
    let key = first_key(key);
    let open = last.is_some() && last.and_then(after).is_none();
    let note = if open { OPEN.into() } else { note };
    let first = Element { key, end, flags: 0, verdict, note, expires: false, is_odd: false };
    let closing = last.and_then(after).map(|next| Element {
        key: start.address(next),
        flags: INTERVAL_END,
        ..Element::default()
    });
    std::iter::once(first).chain(closing)
}

/// The key of an element that is stored as one key.
pub(crate) fn bare_key(kind: Kind, key: &Key) -> Option<KeyBytes> {
    let is_more = matches!(key, Key::Block(..)) || kind == Kind::ServiceRanges;
    (!is_more).then(|| first_key(key))
}

/// The key itself, or the first of an interval.
fn first_key(key: &Key) -> KeyBytes {
    let start = KeyBytes::default();
    match *key {
        Key::Address(address) | Key::Block(address, _) => start.address(address),
        Key::Pair(one, other) => start.address(one).address(other),
        Key::Port(address, protocol, port) => start.address(address).protocol(protocol).port(port),
        Key::Grant(pod, peer, protocol, port) => {
            start.address(pod).address(peer).protocol(protocol).port(port)
        }
        Key::Service(PortRange { protocol, first, .. }) => start.protocol(protocol).port(first),
    }
}

/// What nft notes at an interval that reaches to the end of all addresses.
const OPEN: [u8; 6] = {
    let [a, b, c, d] = 1_u32.to_ne_bytes();
    [1, 4, a, b, c, d]
};

fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(address) => address.to_bits().checked_add(1).map(|next| IpAddr::V6(next.into())),
    }
}

/// A comment as nft notes it at a rule or an element; nothing if there is none.
pub(crate) fn note(comment: &str) -> Vec<u8> {
    tagged(0, comment)
}

/// What nft notes at a set: the order of the bytes in its keys, and a comment.
pub(crate) fn set_note(kind: Kind, comment: &str) -> Vec<u8> {
    let order: u32 = if fields(kind).len() == 1 { 2 } else { 0 };
    let mut all = vec![0, 4];
    all.extend(order.to_ne_bytes());
    all.extend(tagged(7, comment));
    all
}

fn tagged(tag: u8, comment: &str) -> Vec<u8> {
    let Ok(length) = u8::try_from(comment.len() + 1) else { return Vec::new() };
    if comment.is_empty() {
        return Vec::new();
    }
    let mut all = vec![tag, length];
    all.extend(comment.as_bytes());
    all.push(0);
    all
}

impl Element {
    /// Writes it as an element of a list of elements.
    pub(crate) fn write(&self, list: &mut Body<'_>) {
        list.nest(1, |element| {
            element.nest(1, |key| _ = key.bytes(1, self.key.as_slice()));
            if let Some(end) = &self.end {
                element.nest(10, |key| _ = key.bytes(1, end.as_slice()));
            }
            if self.flags != 0 {
                element.be_u32(3, self.flags);
            }
            if let Some(verdict) = &self.verdict {
                element.nest(2, |data| verdict.write(data));
            }
            if !self.note.is_empty() {
                element.bytes(6, &self.note);
            }
        });
    }
}

/// The key of an element of a set whose elements come and go; `None` if it is none of ours.
pub(crate) fn key(kind: Kind, element: &Element) -> Option<Key> {
    if element.flags != 0 || element.end.is_some() {
        return None;
    }
    let mut rest = element.key.as_slice();
    let key = match kind {
        Kind::Addresses(family) | Kind::Chains(family) => Key::Address(address(family, &mut rest)?),
        Kind::Pairs(family) => Key::Pair(address(family, &mut rest)?, address(family, &mut rest)?),
        Kind::Ports(family) => {
            Key::Port(address(family, &mut rest)?, protocol(&mut rest)?, port(&mut rest)?)
        }
        Kind::Grants(family) => {
            let (pod, peer) = (address(family, &mut rest)?, address(family, &mut rest)?);
            Key::Grant(pod, peer, protocol(&mut rest)?, port(&mut rest)?)
        }
        Kind::Blocks(_)
        | Kind::BlockChains(_)
        | Kind::Services
        | Kind::ServiceRanges
        | Kind::Cut(_)
        | Kind::CutSenders(_) => return None,
    };
    rest.is_empty().then_some(key)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*first)
}

fn address(family: Family, rest: &mut &[u8]) -> Option<IpAddr> {
    Some(match family {
        Family::V4 => IpAddr::from(take::<4>(rest)?),
        Family::V6 => IpAddr::from(take::<16>(rest)?),
    })
}

fn protocol(rest: &mut &[u8]) -> Option<Protocol> {
    let [found, ..] = take::<4>(rest)?;
    Protocol::ALL.into_iter().find(|protocol| expr::number(*protocol) == found)
}

fn port(rest: &mut &[u8]) -> Option<u16> {
    let [high, low, ..] = take::<4>(rest)?;
    Some(u16::from_be_bytes([high, low]))
}
