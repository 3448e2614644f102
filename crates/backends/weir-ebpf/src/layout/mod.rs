//! The maps that programs and agent share, and the bytes of their keys and values.
//!
//! Numbers are in the order of the machine, because programs load them as numbers. Addresses and
//! ports are in network order, as in packets.

mod address;
mod flow;
mod lane;
mod report;
mod rules;

use std::fmt;

use weir_model::IpFamily;

pub(crate) use address::{FORMER, LOCAL};
pub use address::{Identity, Kind, address_key, address_value, network_key};
pub use flow::{FlowEntry, flow_element};
pub use lane::{LaneSettings, lane_value};
pub use report::Report;
pub use rules::{
    Config, Decision, DirectionEntry, MAX_KINDS, MAX_LISTS, MAX_TIERS, PodEntry, PortPrefix,
    TierAction, TierUse, decision_key, decision_value,
};

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
    /// The number of denied packets by cause, and the number of cut connections.
    Denied,
    /// The reports about denied packets that were not read yet.
    Reports,
    /// The number of reports about packets from an address.
    Sources(IpFamily),
    /// The number of new sources of a link.
    Links,
    /// The link to each pod in the fast lane.
    Lane(IpFamily),
    /// The settings of the fast lane.
    LaneSettings,
}

/// The number of denied packets is kept for each of these causes: ingress, egress and replies.
pub const CAUSES: u32 = 3;

/// After them comes the number of connections that changes cut.
pub const CUT_CONNECTIONS: u32 = CAUSES;

/// The kind of a map, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the kernel")]
pub enum MapType {
    Hash = 1,
    Array = 2,
    PercpuArray = 6,
    LruHash = 9,
    LpmTrie = 11,
    RingBuffer = 27,
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
    /// All maps of the rules.
    pub const ALL: [MapId; 17] = [
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
        MapId::Reports,
        MapId::Sources(IpFamily::V4),
        MapId::Sources(IpFamily::V6),
        MapId::Links,
    ];

    /// The maps that exist only with the fast lane. They outlive a replacement of the rules.
    pub const LANE: [MapId; 3] =
        [MapId::Lane(IpFamily::V4), MapId::Lane(IpFamily::V6), MapId::LaneSettings];

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
            MapId::Denied => (MapType::PercpuArray, 4, 8, CAUSES + 1),
            MapId::Reports => (MapType::RingBuffer, 0, 0, Report::BUFFER_BYTES),
            MapId::Sources(family) => {
                (MapType::LruHash, address_bytes(family), 8, Report::MAX_SOURCES)
            }
            MapId::Links => (MapType::LruHash, 4, 8, Report::MAX_LINKS),
            MapId::Lane(family) => (MapType::Hash, address_bytes(family), 8, MAX_PODS),
            MapId::LaneSettings => (MapType::Array, 4, LaneSettings::BYTES, 1),
        };
        Declaration { map_type, key_size, value_size, max_entries }
    }

    /// Whether the planner determines its content.
    pub(crate) fn is_table(self) -> bool {
        !matches!(
            self,
            MapId::Flows(_)
                | MapId::Denied
                | MapId::Reports
                | MapId::Sources(_)
                | MapId::Links
                | MapId::Lane(_)
                | MapId::LaneSettings
        )
    }

    /// Whether the map outlives a replacement of the rules.
    pub fn is_shared(self) -> bool {
        matches!(self, MapId::Flows(_) | MapId::Reports)
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
            MapId::Reports => f.write_str("reports"),
            MapId::Sources(family) => write!(f, "sources{}", family.digit()),
            MapId::Links => f.write_str("links"),
            MapId::Lane(family) => write!(f, "lane{}", family.digit()),
            MapId::LaneSettings => f.write_str("lane_settings"),
        }
    }
}

fn address_bytes(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 16,
    }
}
