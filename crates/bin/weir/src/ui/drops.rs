//! Dropped packets, as agents report them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::live::LiveState;
use crate::{drops::Dropped, observe::NodeEvent};

/// The most drops that are kept: the latest ones.
const MAX_DROPS: usize = 5000;
/// The most drops in one answer.
const MAX_ANSWER: usize = 2000;

/// The latest drops.
#[derive(Clone, Default)]
pub(super) struct DropLog(Arc<Mutex<DropStore>>);

/// Identifies a drop, in the order of time. An agent that is followed again reports its drops again.
type DropId = (String, Option<String>, u64);

#[derive(Default)]
struct DropStore {
    drops: BTreeMap<DropId, (u64, Dropped)>,
    /// The number of the last change.
    last: u64,
    /// The drops that had no room.
    left_out: u64,
    nodes: LiveState,
}

impl DropLog {
    /// Adds drops.
    pub(super) fn add(&self, drops: impl IntoIterator<Item = Dropped>) {
        let mut store = self.lock();
        drops.into_iter().for_each(|drop| store.add(drop));
    }

    /// Takes over an event of a node.
    pub(super) fn report(&self, event: NodeEvent) {
        self.lock().nodes.apply(event);
    }

    /// Sets or clears the reason why nothing can be followed.
    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        self.lock().nodes.set_trouble(trouble);
    }

    /// The drops that arrived after a number.
    pub(super) fn changes(&self, after: u64) -> Value {
        let store = self.lock();
        let mut changed: Vec<&(u64, Dropped)> =
            store.drops.values().filter(|(number, _)| *number > after).collect();
        changed.sort_by_key(|(number, _)| *number);
        let more = changed.len() > MAX_ANSWER;
        changed.truncate(MAX_ANSWER);
        let last = changed.last().map_or(store.last, |(number, _)| *number);
        json!({
            "available": true,
            "drops": changed.into_iter().map(|(_, drop)| drop).collect::<Vec<_>>(),
            "last": last,
            "more": more,
            "leftOut": store.left_out,
            "max": MAX_DROPS,
            "problems": store.nodes.problems(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, DropStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DropStore {
    fn add(&mut self, drop: Dropped) {
        let id = (drop.time.clone(), drop.node.clone(), drop.number);
        if self.drops.contains_key(&id) {
            return;
        }
        self.last += 1;
        self.drops.insert(id, (self.last, drop));
        if self.drops.len() > MAX_DROPS {
            self.drops.pop_first();
            self.left_out += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(node: &str, number: u64) -> Dropped {
        serde_json::from_value(json!({
            "node": node, "number": number, "time": format!("2026-01-02T03:04:05.{number:06}Z"),
            "direction": "ingress", "from": "10.0.0.1", "to": "10.0.0.2", "toPort": 80,
            "protocol": "TCP", "policies": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_repeated_drop_counts_once() {
        let log = DropLog::default();
        log.add([dropped("n1", 1), dropped("n2", 1), dropped("n1", 1)]);
        let answer = log.changes(0);
        assert_eq!(
            (answer["last"].as_u64(), answer["drops"].as_array().unwrap().len()),
            (Some(2), 2)
        );
        log.add([dropped("n1", 2), dropped("n2", 1)]);
        let answer = log.changes(2);
        assert_eq!(answer["drops"].as_array().unwrap().len(), 1, "{answer}");
        assert_eq!(answer["drops"][0]["number"], 2);
    }

    #[test]
    fn the_oldest_drops_make_room() {
        let log = DropLog::default();
        log.add((0..MAX_DROPS as u64 + 10).map(|number| dropped("n1", number)));
        let store = log.lock();
        assert_eq!((store.drops.len(), store.left_out), (MAX_DROPS, 10));
        assert_eq!(store.drops.values().next().unwrap().1.number, 10);
    }

    #[test]
    fn a_long_list_comes_in_parts() {
        let log = DropLog::default();
        log.add((0..MAX_ANSWER as u64 + 1).map(|number| dropped("n1", number)));
        let first = log.changes(0);
        assert_eq!(first["more"], true);
        let second = log.changes(first["last"].as_u64().unwrap());
        assert_eq!(
            (second["drops"].as_array().unwrap().len(), &second["more"]),
            (1, &json!(false))
        );
    }
}
