//! Headers, keys, elements and comments as the kernel stores them.

use std::net::IpAddr;

use weir_model::{IpFamily, Name, PortRange, Protocol};
use weir_netlink::Body;

use crate::{
    ElementData, ElementKey, NftVerdict, SetKind, TableId, declaration::fields, expr::WireVerdict,
    uapi::*,
};

/// The length of the name of a link with its end.
pub(crate) const LINK_BYTES: usize = 16;
/// The header of a message about no table.
pub(crate) const UNSPEC_HEADER: [u8; NFGENMSG_LENGTH] = header(NFPROTO_UNSPEC, 0);
/// The header of the messages that begin and end a batch.
pub(crate) const BATCH_HEADER: [u8; NFGENMSG_LENGTH] = header(NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES);

/// The attribute that names the table. It is the first one for every kind of object.
pub(crate) const TABLE_ATTRIBUTE: u16 = NFTA_TABLE_NAME;
const _: () = assert!(
    NFTA_CHAIN_TABLE == TABLE_ATTRIBUTE
        && NFTA_RULE_TABLE == TABLE_ATTRIBUTE
        && NFTA_SET_TABLE == TABLE_ATTRIBUTE
        && NFTA_SET_ELEM_LIST_TABLE == TABLE_ATTRIBUTE
);

/// The policy of our base chain: packets without a verdict pass.
pub(crate) const ACCEPT_POLICY: u32 = NF_ACCEPT.unsigned_abs();

/// The header of a message about a table.
pub(crate) fn table_header(table: TableId) -> [u8; NFGENMSG_LENGTH] {
    header(table.family(), 0)
}

const fn header(family: u8, resource: u8) -> [u8; NFGENMSG_LENGTH] {
    [family, NFNETLINK_V0, 0, resource]
}

/// An element as the kernel stores it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct WireElement {
    pub(crate) key: KeyBytes,
    pub(crate) end: Option<Box<KeyBytes>>,
    pub(crate) flags: u32,
    pub(crate) verdict: Option<WireVerdict>,
    pub(crate) userdata: Vec<u8>,
    /// Whether the element has a timeout.
    pub(crate) expires: bool,
    /// Whether the element has an attribute that weir never writes.
    pub(crate) is_foreign: bool,
}

/// A key as the kernel stores it: each part padded to registers of four bytes.
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
    /// Parses a key. `None` if it is longer than any key of weir.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
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
        if let Some(target) = self.bytes.get_mut(start..start + part.len()) {
            target.copy_from_slice(part);
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

    fn link(self, link: &str) -> Self {
        let mut name = [0; LINK_BYTES];
        name.iter_mut().zip(link.bytes()).for_each(|(to, from)| *to = from);
        self.push(&name)
    }

    /// The number of a numbered set. nft expects the keys of intervals in network byte order.
    fn number(self, kind: SetKind, number: u32) -> Self {
        match kind.has_key_ranges() {
            true => self.push(&number.to_be_bytes()),
            false => self.push(&number.to_ne_bytes()),
        }
    }

    fn protocol(self, protocol: Protocol) -> Self {
        self.push(&[protocol.number()])
    }

    fn port(self, port: u16) -> Self {
        self.push(&port.to_be_bytes())
    }
}

/// The key for the sender of the replies of a terminated connection.
pub(crate) fn sender_key(source: IpAddr) -> KeyBytes {
    KeyBytes::default().address(source)
}

/// The key for the replies of a terminated connection.
pub(crate) fn cut_key(
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
    protocol: Protocol,
) -> KeyBytes {
    let key = KeyBytes::default().address(source.0).port(source.1);
    key.address(destination.0).port(destination.1).protocol(protocol)
}

/// The key for the replies of a terminated connection of a protocol without ports.
pub(crate) fn cut_pair_key(source: IpAddr, destination: IpAddr, protocol: u8) -> KeyBytes {
    KeyBytes::default().address(source).address(destination).push(&[protocol])
}

/// The address at the start of a key, and the rest.
pub(crate) fn split_address(family: IpFamily, key: &[u8]) -> Option<(IpAddr, &[u8])> {
    match family {
        IpFamily::V4 => key.split_first_chunk::<4>().map(|(bytes, rest)| ((*bytes).into(), rest)),
        IpFamily::V6 => key.split_first_chunk::<16>().map(|(bytes, rest)| ((*bytes).into(), rest)),
    }
}

/// The port at the start of a key, and the rest after its padding.
pub(crate) fn split_port(key: &[u8]) -> Option<(u16, &[u8])> {
    let ([high, low, ..], rest) = key.split_first_chunk::<4>()?;
    Some((u16::from_be_bytes([*high, *low]), rest))
}

/// An element as the kernel stores it. An interval takes two elements.
pub(crate) fn elements(
    kind: SetKind,
    key: &ElementKey,
    data: Option<&ElementData>,
) -> impl Iterator<Item = WireElement> {
    let userdata = data.map_or(Vec::new(), |data| userdata(&data.comment));
    let verdict = data.map(|data| match &data.verdict {
        NftVerdict::Jump(chain) => WireVerdict::to_chain(NFT_JUMP, chain),
        NftVerdict::Goto(chain) => WireVerdict::to_chain(NFT_GOTO, chain),
        NftVerdict::Return => WireVerdict::plain(NFT_RETURN),
        NftVerdict::Accept => WireVerdict::plain(NF_ACCEPT),
    });
    let start = KeyBytes::default();
    let (end, last) = match *key {
        ElementKey::Block(_, last) => (None, Some(last)),
        ElementKey::Service(PortRange { protocol, last, .. }) if kind.has_key_ranges() => {
            (Some(Box::new(start.protocol(protocol).port(last))), None)
        }
        ElementKey::NumberedService(number, PortRange { protocol, last, .. })
            if kind.has_key_ranges() =>
        {
            (Some(Box::new(start.number(kind, number).protocol(protocol).port(last))), None)
        }
        ElementKey::NumberedBlock(number, _, last) => {
            (Some(Box::new(start.number(kind, number).address(last))), None)
        }
        _ => (None, None),
    };
    let key = first_key(kind, key);
    let open = last.is_some() && last.and_then(after).is_none();
    let userdata = if open { OPEN_INTERVAL.into() } else { userdata };
    let first =
        WireElement { key, end, flags: 0, verdict, userdata, expires: false, is_foreign: false };
    let closing = last.and_then(after).map(|next| WireElement {
        key: start.address(next),
        flags: NFT_SET_ELEM_INTERVAL_END,
        ..WireElement::default()
    });
    std::iter::once(first).chain(closing)
}

/// The key of an element that the kernel stores as a single key.
pub(crate) fn bare_key(kind: SetKind, key: &ElementKey) -> Option<KeyBytes> {
    let is_more = matches!(key, ElementKey::Block(..)) || kind.has_key_ranges();
    (!is_more).then(|| first_key(kind, key))
}

/// The key itself, or the first of an interval.
fn first_key(kind: SetKind, key: &ElementKey) -> KeyBytes {
    let start = KeyBytes::default();
    match *key {
        ElementKey::LinkAddress(ref link, address) => start.link(link).address(address),
        ElementKey::Link(ref link) => start.link(link),
        ElementKey::Record(number, position) => {
            start.push(&number.to_ne_bytes()).push(&position.to_ne_bytes())
        }
        ElementKey::Address(address) | ElementKey::Block(address, _) => start.address(address),
        ElementKey::Pair(one, other) => start.address(one).address(other),
        ElementKey::Port(address, protocol, port) => {
            start.address(address).protocol(protocol).port(port)
        }
        ElementKey::Grant(pod, peer, protocol, port) => {
            start.address(pod).address(peer).protocol(protocol).port(port)
        }
        ElementKey::Service(PortRange { protocol, first, .. }) => {
            start.protocol(protocol).port(first)
        }
        ElementKey::NumberedAddress(number, address)
        | ElementKey::NumberedBlock(number, address, _) => {
            start.number(kind, number).address(address)
        }
        ElementKey::NumberedPort(number, address, protocol, port) => {
            start.number(kind, number).address(address).protocol(protocol).port(port)
        }
        ElementKey::NumberedService(number, PortRange { protocol, first, .. }) => {
            start.number(kind, number).protocol(protocol).port(first)
        }
        ElementKey::Family(family) => start.push(&[family_number(family)]),
    }
}

/// The kernel's number of an address family.
pub(crate) fn family_number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => NFPROTO_IPV4,
        IpFamily::V6 => NFPROTO_IPV6,
    }
}

/// The userdata by which nft marks an interval that ends with the last address.
const OPEN_INTERVAL: [u8; 6] = {
    let [a, b, c, d] = SET_ELEM_F_INTERVAL_OPEN.to_ne_bytes();
    [NFTNL_UDATA_SET_ELEM_FLAGS, 4, a, b, c, d]
};

fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(address) => address.to_bits().checked_add(1).map(|next| IpAddr::V6(next.into())),
    }
}

/// The userdata of a rule or an element: its comment. Empty without a comment.
pub(crate) fn userdata(comment: &str) -> Vec<u8> {
    tagged(NFTNL_UDATA_COMMENT, comment)
}

/// The comment in the userdata of an element.
pub(crate) fn comment(userdata: &[u8]) -> Option<&str> {
    let [NFTNL_UDATA_COMMENT, length, rest @ ..] = userdata else { return None };
    let text = rest.get(..usize::from(*length))?.strip_suffix(&[0])?;
    str::from_utf8(text).ok()
}

/// The userdata of a set: the byte order of its keys, and its comment.
pub(crate) fn set_userdata(kind: SetKind, comment: &str) -> Vec<u8> {
    let is_single = fields(kind).len() == 1;
    let order = match kind {
        SetKind::Links | SetKind::ReportLinks => BYTEORDER_HOST_ENDIAN,
        _ if is_single => BYTEORDER_BIG_ENDIAN,
        _ => BYTEORDER_INVALID,
    };
    let mut all = vec![NFTNL_UDATA_SET_KEYBYTEORDER, 4];
    all.extend(order.to_ne_bytes());
    all.extend(tagged(NFTNL_UDATA_SET_COMMENT, comment));
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

impl WireElement {
    /// Writes the element as one of a list.
    pub(crate) fn write(&self, list: &mut Body<'_>) {
        list.nest(NFTA_LIST_ELEM, |element| {
            element.nest(NFTA_SET_ELEM_KEY, |key| {
                key.bytes(NFTA_DATA_VALUE, self.key.as_slice());
            });
            if let Some(end) = &self.end {
                element.nest(NFTA_SET_ELEM_KEY_END, |key| {
                    key.bytes(NFTA_DATA_VALUE, end.as_slice());
                });
            }
            if self.flags != 0 {
                element.be_u32(NFTA_SET_ELEM_FLAGS, self.flags);
            }
            if let Some(verdict) = &self.verdict {
                element.nest(NFTA_SET_ELEM_DATA, |data| verdict.write(data));
            }
            if !self.userdata.is_empty() {
                element.bytes(NFTA_SET_ELEM_USERDATA, &self.userdata);
            }
        });
    }
}

/// The key of an element of a set that changes. `None` if weir writes no such element.
pub(crate) fn key(kind: SetKind, element: &WireElement) -> Option<ElementKey> {
    if element.flags != 0 || element.end.is_some() {
        return None;
    }
    let mut rest = element.key.as_slice();
    let key = match kind {
        SetKind::Addresses(family) | SetKind::Chains(family) => {
            ElementKey::Address(address(family, &mut rest)?)
        }
        SetKind::Pairs(family) => {
            ElementKey::Pair(address(family, &mut rest)?, address(family, &mut rest)?)
        }
        SetKind::Ports(family) => {
            ElementKey::Port(address(family, &mut rest)?, protocol(&mut rest)?, port(&mut rest)?)
        }
        SetKind::Grants(family) => {
            let (pod, peer) = (address(family, &mut rest)?, address(family, &mut rest)?);
            ElementKey::Grant(pod, peer, protocol(&mut rest)?, port(&mut rest)?)
        }
        SetKind::Families => {
            let number = split_array::<4>(&mut rest)?;
            let is_it = |family: &IpFamily| number == [family_number(*family), 0, 0, 0];
            ElementKey::Family(IpFamily::BOTH.into_iter().find(is_it)?)
        }
        SetKind::LinkAddresses(family) => {
            ElementKey::LinkAddress(link(&mut rest)?, address(family, &mut rest)?)
        }
        SetKind::Links => ElementKey::Link(link(&mut rest)?),
        SetKind::Records => {
            let mut number = || split_array::<4>(&mut rest).map(u32::from_ne_bytes);
            ElementKey::Record(number()?, number()?)
        }
        SetKind::NumberedAddresses(family) => {
            let number = u32::from_ne_bytes(split_array::<4>(&mut rest)?);
            ElementKey::NumberedAddress(number, address(family, &mut rest)?)
        }
        SetKind::NumberedPorts(family) => {
            let number = u32::from_ne_bytes(split_array::<4>(&mut rest)?);
            let address = address(family, &mut rest)?;
            ElementKey::NumberedPort(number, address, protocol(&mut rest)?, port(&mut rest)?)
        }
        SetKind::Blocks(_)
        | SetKind::BlockChains(_)
        | SetKind::NumberedBlocks(_)
        | SetKind::NumberedServices
        | SetKind::NumberedServiceRanges
        | SetKind::Services
        | SetKind::ServiceRanges
        | SetKind::ServiceChains
        | SetKind::ServiceRangeChains
        | SetKind::Cut(_)
        | SetKind::CutPairs(_)
        | SetKind::CutSenders(_)
        | SetKind::Sources(_)
        | SetKind::ReportLinks => return None,
    };
    rest.is_empty().then_some(key)
}

fn split_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*first)
}

fn address(family: IpFamily, rest: &mut &[u8]) -> Option<IpAddr> {
    Some(match family {
        IpFamily::V4 => IpAddr::from(split_array::<4>(rest)?),
        IpFamily::V6 => IpAddr::from(split_array::<16>(rest)?),
    })
}

fn link(rest: &mut &[u8]) -> Option<Name> {
    let name = split_array::<LINK_BYTES>(rest)?;
    let name = name.split(|byte| *byte == 0).next()?;
    Some(str::from_utf8(name).ok()?.into())
}

fn protocol(rest: &mut &[u8]) -> Option<Protocol> {
    let [number, ..] = split_array::<4>(rest)?;
    Protocol::from_number(number)
}

fn port(rest: &mut &[u8]) -> Option<u16> {
    let [high, low, ..] = split_array::<4>(rest)?;
    Some(u16::from_be_bytes([high, low]))
}
