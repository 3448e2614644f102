//! The state that an earlier agent left in the kernel.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    digest::Digest,
    layout::{Identity, PodEntry},
    tables::Tables,
};

/// The installed maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Their content; `None` if nothing of weir is installed.
    pub tables: Option<Tables>,
    /// Whether exactly one installation exists, with all its programs.
    pub is_intact: bool,
    /// The capacity of the maps.
    pub capacity: u32,
}

/// The numbers that a new planner takes over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seeds {
    pub(crate) kinds: BTreeMap<Digest, u32>,
    pub(crate) tiers: BTreeMap<Digest, u32>,
    /// The highest numbers of a tier and of a kind in the maps, also without a digest.
    pub(crate) highest_tier: u32,
    pub(crate) highest_kind: u32,
    /// The epoch since which an address belongs to its pod.
    pub(crate) since: BTreeMap<IpAddr, u32>,
    /// The same for addresses that no pod had.
    pub(crate) since_now: u32,
    pub(crate) pods: BTreeMap<PodEntry, u32>,
    /// The lists of ports by their content.
    pub(crate) lists: BTreeMap<Vec<([u8; 8], u32)>, u32>,
}

impl Seeds {
    pub(crate) fn from_tables(tables: &Tables) -> Self {
        let mut lists: BTreeMap<u32, Vec<([u8; 8], u32)>> = BTreeMap::new();
        for (prefix, action) in &tables.ports {
            lists.entry(prefix.list).or_default().push(list_element(prefix, *action));
        }
        let since = tables.addresses.iter().filter_map(|(address, identity)| match identity {
            Identity::Kind(_) => None,
            Identity::Pod(number) => Some((*address, tables.pods.get(number)?.since)),
        });
        Seeds {
            kinds: tables.kinds.iter().map(|(kind, digest)| (*digest, *kind)).collect(),
            tiers: tables.tiers.iter().map(|(tier, digest)| (*digest, *tier)).collect(),
            highest_tier: tables
                .decisions
                .keys()
                .map(|(tier, _)| *tier)
                .chain(tables.tiers.keys().copied())
                .max()
                .unwrap_or_default(),
            highest_kind: highest_kind(tables),
            since: since.collect(),
            since_now: tables.config.epoch.wrapping_add(1),
            pods: tables.pods.iter().map(|(number, entry)| (*entry, *number)).collect(),
            lists: lists.into_iter().map(|(list, content)| (content, list)).collect(),
        }
    }
}

/// The highest number of a kind that any map refers to. A kind of an address that names had before
/// has the next number, too.
fn highest_kind(tables: &Tables) -> u32 {
    let of_addresses = tables.addresses.values().filter_map(|identity| match identity {
        Identity::Kind(kind) => Some(*kind),
        Identity::Pod(_) => None,
    });
    let kinds = of_addresses.chain(tables.pods.values().map(|entry| entry.kind));
    let kinds = kinds.map(|kind| kind.number.saturating_add(1));
    let decided = tables.decisions.keys().map(|(_, kind)| *kind);
    let kinds = kinds.chain(decided).chain(tables.kinds.keys().copied());
    kinds.chain(tables.networks.values().copied()).max().unwrap_or_default()
}

/// An element of a list, without the number of the list.
pub(crate) fn list_element(
    prefix: &crate::layout::PortPrefix,
    action: crate::layout::TierAction,
) -> ([u8; 8], u32) {
    let [low, high] = prefix.first.to_be_bytes();
    ([prefix.protocol.number(), low, high, prefix.bits, 0, 0, 0, 0], action as u32)
}
