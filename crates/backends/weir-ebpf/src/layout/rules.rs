use std::fmt;

use weir_model::{IpFamily, Protocol};

use super::Kind;

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
    /// The lowest number of a decision with a list of ports. Below it, a number is that of the action.
    pub(crate) const FIRST_LIST: i32 = 1 << 2;

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
    pub kind: Kind,
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
        let words = [self.kind.to_number(), self.since, flags, 0].into_iter();
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
            kind: Kind::from_number(word(0)?),
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
