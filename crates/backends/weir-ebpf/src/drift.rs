//! Finds elements of maps that another program changed.
//!
//! The kernel does not report changes of maps. So the agent compares some elements in each check: it
//! looks for those that the maps should have, and reads those that they have.

use std::{collections::BTreeMap, io};

use crate::{
    Tables, Write,
    layout::MapId,
    sys::{Map, Position},
};

/// The elements that one check looks up, and those that it reads at least. A check takes about 2 ms
/// with more elements, and covers everything with fewer.
const ELEMENTS_PER_CHECK: usize = 4096;

/// How far the elements were compared.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// How many of the expected elements were looked up.
    looked_up: usize,
    /// The map to read next, by its place among those with rules, and how far it was read.
    map: usize,
    position: Position,
}

/// The maps whose elements are all in the tables. The others are arrays, which have all elements.
fn compared() -> impl Iterator<Item = MapId> {
    let is_array = |map: &MapId| matches!(map, MapId::Config | MapId::Pods);
    MapId::ALL.into_iter().filter(move |map| map.is_table() && !is_array(map))
}

impl Comparison {
    /// Whether the settings, the pods of this node and the next other elements are those of the tables.
    pub(crate) fn next_are_equal(
        &mut self,
        maps: &BTreeMap<MapId, Map>,
        tables: &Tables,
    ) -> io::Result<bool> {
        let pods = tables.addresses.iter().filter_map(|(address, identity)| {
            let number = identity.pod()?;
            let entry = *tables.pods.get(&number)?;
            Some([Write::Address(*address, Some(*identity)), Write::Pod(number, entry)])
        });
        for write in pods.flatten().chain([Write::Config(tables.config)]) {
            if !has_element(maps, &write)? {
                return Ok(false);
            }
        }
        Ok(self.next_exist(maps, tables)? && self.next_are_expected(maps, tables)?)
    }

    /// Whether the maps have the next expected elements.
    fn next_exist(&mut self, maps: &BTreeMap<MapId, Map>, tables: &Tables) -> io::Result<bool> {
        let mut count = 0;
        for write in tables.writes().skip(self.looked_up).take(ELEMENTS_PER_CHECK) {
            count += 1;
            if !has_element(maps, &write)? {
                return Ok(false);
            }
        }
        self.looked_up = if count < ELEMENTS_PER_CHECK { 0 } else { self.looked_up + count };
        Ok(true)
    }

    /// Whether the tables have the next elements of the maps.
    fn next_are_expected(
        &mut self,
        maps: &BTreeMap<MapId, Map>,
        tables: &Tables,
    ) -> io::Result<bool> {
        let ids: Vec<MapId> = compared().collect();
        let mut count = 0;
        // Each map is read once at most, so a check ends.
        for _ in &ids {
            let id = ids[self.map % ids.len()];
            let Some(map) = maps.get(&id) else { return Ok(false) };
            let elements = map.next_elements(&mut self.position)?;
            for (key, value) in elements.iter() {
                count += 1;
                if !Write::decode(id, key, value).is_some_and(|write| tables.contain(&write)) {
                    return Ok(false);
                }
            }
            if self.position == Position::End {
                self.map = (self.map + 1) % ids.len();
                self.position = Position::Start;
            }
            if count >= ELEMENTS_PER_CHECK {
                break;
            }
        }
        Ok(true)
    }
}

/// Whether the maps have the element of a write.
fn has_element(maps: &BTreeMap<MapId, Map>, write: &Write) -> io::Result<bool> {
    let (map, key, value) = write.encode();
    let found = maps.get(&map).map(|map| map.lookup(&key)).transpose()?.flatten();
    Ok(found == value)
}
