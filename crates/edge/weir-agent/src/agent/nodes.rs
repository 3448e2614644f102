use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Change, Key, Name, Object};

use crate::MachineAddresses;

/// The most nodes that a message lists.
const MAX_LISTED: usize = 5;

/// The nodes that the source mentions, until the agent's own node is among them.
///
/// With a misspelt node name the agent would find no local pods and remove all rules.
#[derive(Debug)]
pub(super) struct KnownNodes {
    own: Name,
    is_own_known: bool,
    /// The node of each pod, and each Node object.
    mentioned: BTreeMap<Key, Name>,
    /// The addresses of the agent's own Node object.
    declared: BTreeSet<IpAddr>,
    machine_addresses: Option<MachineAddresses>,
}

impl KnownNodes {
    pub(super) fn new(own: Name, machine_addresses: Option<MachineAddresses>) -> Self {
        KnownNodes {
            own,
            is_own_known: false,
            mentioned: BTreeMap::new(),
            declared: BTreeSet::new(),
            machine_addresses,
        }
    }

    /// Collects the nodes that the source's changes mention.
    pub(super) fn observe(&mut self, changes: &[Change]) {
        let own = changes.iter().rev().find_map(|change| match change {
            Change::Put(Object::Node(node)) if node.name == self.own => Some(node),
            _ => None,
        });
        if let Some(node) = own {
            self.declared = node.addresses.iter().copied().collect();
        }
        if self.is_own_known {
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
                Some(node) => self.mentioned.insert(key, node),
                None => self.mentioned.remove(&key),
            };
        }
        self.is_own_known = self.mentioned.values().any(|node| *node == self.own);
        if self.is_own_known {
            self.mentioned = BTreeMap::new();
        }
    }

    /// Why the source cannot be meant for this machine. None if it mentions the node, and the Node
    /// object has an address of the machine.
    pub(super) fn objection(&self) -> Option<String> {
        if self.is_own_known {
            return self.foreign_addresses();
        }
        let all: BTreeSet<&str> = self.mentioned.values().map(|name| &**name).collect();
        let mut listed: Vec<&str> = all.iter().take(MAX_LISTED).copied().collect();
        if all.len() > MAX_LISTED {
            listed.push("…");
        }
        let others = if listed.is_empty() {
            "the source mentions no node at all".into()
        } else {
            format!("the source mentions: {}", listed.join(", "))
        };
        Some(format!("no pod runs on node {0}, and there is no Node {0}; {others}", self.own))
    }

    /// Why the Node object belongs to another machine. The agent would remove the rules of this
    /// machine's pods.
    fn foreign_addresses(&self) -> Option<String> {
        let machine = (self.machine_addresses?)().ok()?;
        if self.declared.is_empty() || !self.declared.is_disjoint(&machine) {
            return None;
        }
        let declared: Vec<String> = self.declared.iter().map(IpAddr::to_string).collect();
        Some(format!(
            "Node {} has the addresses {}, and this machine has none of them",
            self.own,
            declared.join(", ")
        ))
    }
}
