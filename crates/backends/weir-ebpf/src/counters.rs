//! The counters of the programs.

use std::{collections::BTreeMap, io};

use crate::{
    layout::{CAUSES, CUT_CONNECTIONS, MapId},
    sys::Map,
};

type Maps = BTreeMap<MapId, Map>;

/// The number of denied packets by cause.
pub(crate) fn denied_packets(maps: &Maps) -> io::Result<Vec<u64>> {
    (0..CAUSES).map(|cause| counter(maps, cause)).collect()
}

/// The number of connections that changes cut.
pub(crate) fn cut_connections(maps: &Maps) -> io::Result<u64> {
    counter(maps, CUT_CONNECTIONS)
}

/// The sum of a counter of all processors.
fn counter(maps: &Maps, number: u32) -> io::Result<u64> {
    let Some(map) = maps.get(&MapId::Denied) else { return Ok(0) };
    let value = map.lookup(&number.to_ne_bytes())?.unwrap_or_default();
    let counts = value.chunks_exact(8);
    Ok(counts.filter_map(|count| Some(u64::from_ne_bytes(count.try_into().ok()?))).sum())
}
