//! The maps that programs and agent share, and the bytes of their keys and values.
//!
//! Numbers are in the order of the machine, because programs load them as numbers. Addresses and
//! ports are in network order, as in packets.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use weir_model::{IpFamily, Protocol};

/// A map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapId {
    /// The epoch and the mode.
    Config,
    /// The kind of each known address, or the number of its pod.
    Addresses(IpFamily),
    /// The kind of other addresses, by the longest network.
    Networks(IpFamily),
    /// The pods of this node.
    Pods,
    /// The decisions of tiers about kinds, where they differ from the usual decision of the tier.
    Decisions,
    /// The actions of lists of ports.
    Ports,
    /// The digest of each kind, for the next agent.
    Kinds,
    /// The digest of each tier, for the next agent.
    Tiers,
    /// The connections that passed.
    Flows(IpFamily),
    /// The number of denied packets by cause.
    Denied,
}

/// The number of denied packets is kept for each of these causes: ingress, egress and replies.
pub const CAUSES: u32 = 3;

/// The kind of a map, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the kernel")]
pub enum MapType {
    Hash = 1,
    Array = 2,
    PercpuArray = 6,
    LruHash = 9,
    LpmTrie = 11,
}

/// The declaration of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the kernel")]
pub struct Declaration {
    pub map_type: MapType,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
}

/// The capacity for pods of the node with different kinds or rules.
pub const MAX_PODS: u32 = 1 << 14;

/// The number of connections that the node remembers, for each family.
pub const MAX_FLOWS: u32 = 1 << 17;

impl MapId {
    /// All maps.
    pub const ALL: [MapId; 13] = [
        MapId::Config,
        MapId::Addresses(IpFamily::V4),
        MapId::Addresses(IpFamily::V6),
        MapId::Networks(IpFamily::V4),
        MapId::Networks(IpFamily::V6),
        MapId::Pods,
        MapId::Decisions,
        MapId::Ports,
        MapId::Kinds,
        MapId::Tiers,
        MapId::Flows(IpFamily::V4),
        MapId::Flows(IpFamily::V6),
        MapId::Denied,
    ];

    /// The declaration of the map for a capacity of addresses, decisions and port ranges.
    pub fn declaration(self, capacity: u32) -> Declaration {
        let (map_type, key_size, value_size, max_entries) = match self {
            MapId::Config => (MapType::Array, 4, Config::BYTES, 1),
            MapId::Addresses(family) => (MapType::Hash, address_bytes(family), 8, capacity),
            MapId::Networks(family) => (MapType::LpmTrie, 4 + address_bytes(family), 4, capacity),
            MapId::Pods => (MapType::Array, 4, PodEntry::BYTES, MAX_PODS),
            MapId::Decisions => (MapType::Hash, 8, 8, capacity),
            MapId::Ports => (MapType::LpmTrie, 12, 4, capacity),
            MapId::Kinds | MapId::Tiers => (MapType::Hash, 4, 16, capacity),
            MapId::Flows(family) => {
                (MapType::LruHash, 2 * address_bytes(family) + 8, 16, MAX_FLOWS)
            }
            MapId::Denied => (MapType::PercpuArray, 4, 8, CAUSES),
        };
        Declaration { map_type, key_size, value_size, max_entries }
    }

    /// Whether the map outlives a replacement of the rules.
    pub fn is_shared(self) -> bool {
        matches!(self, MapId::Flows(_))
    }
}

impl fmt::Display for MapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapId::Config => f.write_str("config"),
            MapId::Addresses(family) => write!(f, "addresses{}", family.digit()),
            MapId::Networks(family) => write!(f, "networks{}", family.digit()),
            MapId::Pods => f.write_str("pods"),
            MapId::Decisions => f.write_str("decisions"),
            MapId::Ports => f.write_str("ports"),
            MapId::Kinds => f.write_str("kinds"),
            MapId::Tiers => f.write_str("tiers"),
            MapId::Flows(family) => write!(f, "flows{}", family.digit()),
            MapId::Denied => f.write_str("denied"),
        }
    }
}

fn address_bytes(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 16,
    }
}

/// The effect of a tier on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TierAction {
    /// It is dropped.
    Deny = 0,
    /// It is allowed.
    Allow = 1,
    /// The next tier decides.
    Pass = 2,
}

impl TierAction {
    /// The action with a number. A number without a meaning denies.
    pub fn from_number(number: u32) -> Self {
        match number {
            1 => TierAction::Allow,
            2 => TierAction::Pass,
            _ => TierAction::Deny,
        }
    }
}

impl fmt::Display for TierAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TierAction::Deny => "deny",
            TierAction::Allow => "allow",
            TierAction::Pass => "pass",
        })
    }
}

/// The decision of a tier about a kind of peers, in 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decision {
    /// The action for ports that the list does not have, and for protocols without ports.
    pub rest: TierAction,
    /// The list of ports with other actions; 0 if there is none.
    pub list: u32,
}

/// The most lists of ports that decisions can refer to.
pub const MAX_LISTS: u32 = (1 << 22) - 1;

impl Decision {
    /// One action for every packet.
    pub const fn always(action: TierAction) -> Self {
        Decision { rest: action, list: 0 }
    }

    /// The decision as a number.
    pub fn to_number(self) -> u32 {
        self.rest as u32 | self.list << 2
    }

    /// The decision with a number.
    pub fn from_number(number: u32) -> Self {
        Decision { rest: TierAction::from_number(number & 3), list: number >> 2 }
    }
}

/// The most kinds, tiers and entries of pods.
pub const MAX_KINDS: u32 = (1 << 24) - 1;
/// The most tiers.
pub const MAX_TIERS: u32 = (1 << 16) - 1;

/// The key of the decision of a tier about a kind.
pub fn decision_key(tier: u32, kind: u32) -> u64 {
    u64::from(tier) << 24 | u64::from(kind)
}

/// The value of a decision. It contains the key, because a reader can meet the memory of a deleted
/// element that the kernel has used again.
pub fn decision_value(tier: u32, kind: u32, decision: Decision) -> u64 {
    decision_key(tier, kind) << 24 | u64::from(decision.to_number())
}

/// The kind or the pod of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// The address is not of this node's pods, and is of this kind.
    Kind(u32),
    /// The address belongs to the pod entry with this number.
    Pod(u32),
}

/// Marks an address of a pod of this node.
pub(crate) const LOCAL: u32 = 1 << 31;

impl Identity {
    /// The number in the map.
    pub fn to_number(self) -> u32 {
        match self {
            Identity::Kind(kind) => kind,
            Identity::Pod(number) => LOCAL | number,
        }
    }

    /// The number of the pod entry, if the address belongs to one.
    pub fn pod(&self) -> Option<u32> {
        match self {
            Identity::Kind(_) => None,
            Identity::Pod(number) => Some(*number),
        }
    }

    /// The identity with a number.
    pub fn from_number(number: u32) -> Self {
        if number & LOCAL == 0 { Identity::Kind(number) } else { Identity::Pod(number & !LOCAL) }
    }
}

/// The bytes of an address.
pub fn address_key(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The value of an address. Half of it is a check of the address, because a reader can meet the
/// memory of a deleted element that the kernel has used again.
pub fn address_value(address: IpAddr, identity: Identity) -> u64 {
    let words = address_key(address);
    let words =
        words.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let check = words.fold(0, |check, word| check ^ word);
    u64::from(check) << 32 | u64::from(identity.to_number())
}

/// The bytes of a network.
pub fn network_key(net: IpNet) -> Vec<u8> {
    [&u32::from(net.prefix_len()).to_ne_bytes()[..], &address_key(net.network())].concat()
}

/// The end of a connection.
pub type End = (IpAddr, u16);

/// The key and the value of a connection that the first end began, as the program writes them. The
/// program evaluates it again unless it is of the current epoch.
pub fn flow_element(
    client: End,
    server: End,
    protocol: u8,
    epoch: u32,
    time: u64,
) -> (Vec<u8>, Vec<u8>) {
    let raw = |address: IpAddr| -> Vec<u64> {
        let key = address_key(address);
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .enumerate()
                .fold(0_u64, |sum, (at, byte)| sum | u64::from(*byte) << (8 * at))
        };
        // The program compares numbers in the order of the machine.
        let convert = |number: u64, bytes: usize| {
            if cfg!(target_endian = "big") {
                number.swap_bytes() >> (64 - 8 * bytes)
            } else {
                number
            }
        };
        key.chunks(key.len().min(8)).map(|part| convert(number(part), part.len())).collect()
    };
    let raw_port = |port: u16| u16::from_ne_bytes(port.to_be_bytes());
    let rank = |(address, port): End| (raw(address), raw_port(port));
    let began = u64::from(rank(client) > rank(server));
    let (first, second) = if began == 0 { (client, server) } else { (server, client) };
    let key = [
        &address_key(first.0)[..],
        &address_key(second.0),
        &first.1.to_be_bytes(),
        &second.1.to_be_bytes(),
        &u32::from(protocol).to_ne_bytes(),
    ]
    .concat();
    let words =
        key.chunks_exact(8).filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
    let sum = words.fold(0, |sum, word| sum ^ word);
    let check = (sum ^ sum >> 32) & u64::from(u32::MAX >> 1);
    let word = (check | began << 31) << 32 | u64::from(epoch);
    (key, [word.to_ne_bytes(), time.to_ne_bytes()].concat())
}

/// Ports of a list: a protocol, and all ports that share the first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortPrefix {
    /// The list.
    pub list: u32,
    /// The protocol.
    pub protocol: Protocol,
    /// The lowest port.
    pub first: u16,
    /// The number of common bits, at most 16.
    pub bits: u8,
}

impl PortPrefix {
    /// The key in the map.
    pub fn key(&self) -> Vec<u8> {
        let length = 48 + u32::from(self.bits);
        let protocol = u16::from(self.protocol.number());
        [
            &length.to_ne_bytes()[..],
            &self.list.to_ne_bytes(),
            &protocol.to_ne_bytes(),
            &self.first.to_be_bytes(),
        ]
        .concat()
    }
}

/// A tier as a pod refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TierUse {
    /// The number of the tier; 0 if the usual decision is the only one.
    pub tier: u32,
    /// The decision about kinds without a decision of their own.
    pub usual: Decision,
}

/// The rules of a pod for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectionEntry {
    /// The admin tier.
    pub admin: TierUse,
    /// The NetworkPolicies, or the baseline tier of a pod that none isolates.
    pub rest: TierUse,
    /// Whether NetworkPolicies isolate the pod.
    pub is_isolated: bool,
}

/// A pod of the node, in the map of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodEntry {
    /// The kind of its address.
    pub kind: u32,
    /// The epoch since which the pod has its address. Older connections are not its own.
    pub since: u32,
    /// Connections to the pod.
    pub ingress: DirectionEntry,
    /// Connections from the pod.
    pub egress: DirectionEntry,
}

impl PodEntry {
    pub(crate) const BYTES: u32 = 48;
    pub(crate) const SINCE: i16 = 4;
    pub(crate) const FLAGS: i16 = 8;
    pub(crate) const INGRESS: i16 = 16;
    pub(crate) const EGRESS: i16 = 32;
    pub(crate) const INGRESS_ISOLATED: i32 = 1;
    pub(crate) const EGRESS_ISOLATED: i32 = 2;

    /// The value in the map.
    pub fn to_bytes(&self) -> Vec<u8> {
        let flag = |flag: i32, is_set: bool| if is_set { flag as u32 } else { 0 };
        let flags = flag(Self::INGRESS_ISOLATED, self.ingress.is_isolated)
            | flag(Self::EGRESS_ISOLATED, self.egress.is_isolated);
        let tiers = [self.ingress.admin, self.ingress.rest, self.egress.admin, self.egress.rest];
        let words = [self.kind, self.since, flags, 0].into_iter();
        let words =
            words.chain(tiers.into_iter().flat_map(|one| [one.tier, one.usual.to_number()]));
        words.flat_map(u32::to_ne_bytes).collect()
    }

    /// The entry with these bytes; `None` if they are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word =
            |at: usize| Some(u32::from_ne_bytes(bytes.get(4 * at..4 * at + 4)?.try_into().ok()?));
        let tier = |at: usize| {
            Some(TierUse { tier: word(at)?, usual: Decision::from_number(word(at + 1)?) })
        };
        let flags = word(2)?;
        let side = |at: usize, flag: i32| {
            let is_isolated = flags & flag as u32 != 0;
            Some(DirectionEntry { admin: tier(at)?, rest: tier(at + 2)?, is_isolated })
        };
        Some(PodEntry {
            kind: word(0)?,
            since: word(1)?,
            ingress: side(4, Self::INGRESS_ISOLATED)?,
            egress: side(8, Self::EGRESS_ISOLATED)?,
        })
    }
}

/// The only value of the map of settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Connections that passed in an earlier epoch are evaluated again.
    pub epoch: u32,
    /// Whether denied packets pass.
    pub is_audit: bool,
    /// Whether connections go on although the rules now deny them.
    pub keeps_established: bool,
    /// Whether some pod is isolated for ingress, for IPv4 and IPv6.
    pub has_isolated: [bool; 2],
    /// The digest of the programs.
    pub programs: [u8; 16],
}

impl Config {
    pub(crate) const BYTES: u32 = 24;
    pub(crate) const FLAGS: i16 = 4;
    pub(crate) const AUDIT: i32 = 1;
    pub(crate) const KEEP: i32 = 8;

    /// The flag of a family with isolated pods.
    pub(crate) fn isolated(family: IpFamily) -> i32 {
        match family {
            IpFamily::V4 => 2,
            IpFamily::V6 => 4,
        }
    }

    /// The value in the map.
    pub fn to_bytes(&self) -> Vec<u8> {
        let flag = |flag: i32, is_set: bool| if is_set { flag as u32 } else { 0 };
        let [four, six] = self.has_isolated;
        let flags = flag(Self::AUDIT, self.is_audit)
            | flag(Self::KEEP, self.keeps_established)
            | flag(Self::isolated(IpFamily::V4), four)
            | flag(Self::isolated(IpFamily::V6), six);
        [&self.epoch.to_ne_bytes()[..], &flags.to_ne_bytes(), &self.programs].concat()
    }

    /// The settings with these bytes; `None` if they are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let flags = word(4)?;
        let has = |flag: i32| flags & flag as u32 != 0;
        Some(Config {
            epoch: word(0)?,
            is_audit: has(Self::AUDIT),
            keeps_established: has(Self::KEEP),
            has_isolated: IpFamily::BOTH.map(|family| has(Self::isolated(family))),
            programs: bytes.get(8..24)?.try_into().ok()?,
        })
    }
}
