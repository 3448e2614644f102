//! Whether the source is about this node at all.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Change, Key, Name, Object};

/// How many nodes are named.
const NAMED: usize = 5;

/// The nodes that the source names, until this one is among them.
///
/// A name that is misspelt would make rules for nobody, and so remove all.
#[derive(Debug)]
pub(super) struct Nodes {
    own: Name,
    is_known: bool,
    named: BTreeMap<Key, Name>,
}

impl Nodes {
    pub(super) fn new(own: Name) -> Self {
        Nodes { own, is_known: false, named: BTreeMap::new() }
    }

    /// Takes note of what the source says.
    pub(super) fn hear(&mut self, changes: &[Change]) {
        if self.is_known {
            return;
        }
        for change in changes {
            let (key, node) = match change {
                Change::Put(Object::Pod(pod)) => (Key::Pod(pod.id.clone()), pod.node.clone()),
                Change::Put(Object::Node(node)) => {
                    (Key::Node(node.name.clone()), Some(node.name.clone()))
                }
                Change::Remove(key) => (key.clone(), None),
                Change::Put(_) => continue,
            };
            match node {
                Some(node) => drop(self.named.insert(key, node)),
                None => drop(self.named.remove(&key)),
            }
        }
        self.is_known = self.named.values().any(|node| *node == self.own);
        if self.is_known {
            self.named = BTreeMap::new();
        }
    }

    /// Why the source cannot be meant for this node, if so.
    pub(super) fn objection(&self) -> Option<String> {
        if self.is_known {
            return None;
        }
        let all: BTreeSet<&str> = self.named.values().map(|name| &**name).collect();
        let mut shown: Vec<&str> = all.iter().take(NAMED).copied().collect();
        if all.len() > NAMED {
            shown.push("…");
        }
        let there_are = match shown.is_empty() {
            true => "no node is named at all".into(),
            false => format!("there are: {}", shown.join(", ")),
        };
        Some(format!(
            "no pod is on a node called {0}, and no Node object is called {0}; {there_are}",
            self.own
        ))
    }
}
