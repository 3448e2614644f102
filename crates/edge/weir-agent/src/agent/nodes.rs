use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Change, Key, Name, Object};

use crate::MachineAddresses;

/// The most nodes that a message lists.
const MAX_LISTED: usize = 5;

/// The nodes that the source mentions: the agent's own node, and the others until it is known.
///
/// With a misspelt node name, or with another cluster, the agent would find no local pods and remove
/// all rules.
#[derive(Debug)]
pub(super) struct KnownNodes {
    own: Name,
    /// The pods of the agent's own node, and its Node object.
    own_objects: BTreeSet<Key>,
    /// Whether the source has ever mentioned the own node.
    was_own_known: bool,
    /// The node of each pod, and each Node object, until the own node is known.
    mentioned: BTreeMap<Key, Name>,
    /// The addresses of each Node object.
    declared: BTreeMap<Name, BTreeSet<IpAddr>>,
    machine_addresses: Option<MachineAddresses>,
}

impl KnownNodes {
    pub(super) fn new(own: Name, machine_addresses: Option<MachineAddresses>) -> Self {
        KnownNodes {
            own,
            own_objects: BTreeSet::new(),
            was_own_known: false,
            mentioned: BTreeMap::new(),
            declared: BTreeMap::new(),
            machine_addresses,
        }
    }

    /// The number of Node objects.
    pub(super) fn count(&self) -> usize {
        self.declared.len()
    }

    /// Collects the nodes that the source's changes mention.
    pub(super) fn observe(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(Object::Node(node)) => {
                    let addresses = node.addresses.iter().copied().collect();
                    self.declared.insert(node.name.clone(), addresses);
                }
                Change::Remove(Key::Node(name)) => _ = self.declared.remove(name),
                _ => (),
            }
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
                Some(node) if node == self.own => _ = self.own_objects.insert(key),
                Some(node) if !self.was_own_known => _ = self.mentioned.insert(key, node),
                _ => {
                    self.own_objects.remove(&key);
                    self.mentioned.remove(&key);
                }
            }
        }
        if !self.own_objects.is_empty() {
            self.was_own_known = true;
            self.mentioned = BTreeMap::new();
        }
    }

    /// Whether the source mentions the agent's own node.
    pub(super) fn is_own_known(&self) -> bool {
        !self.own_objects.is_empty()
    }

    /// Why the source cannot be meant for this machine. None if it mentions the node, and the machine
    /// is not another node.
    pub(super) fn objection(&self) -> Option<String> {
        if self.is_own_known() {
            return self.foreign_addresses();
        }
        if self.was_own_known {
            return Some(format!(
                "no pod runs on node {0} any more, and there is no Node {0} any more",
                self.own
            ));
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

    /// Why this machine is another node. The agent would remove the rules of its pods.
    fn foreign_addresses(&self) -> Option<String> {
        let machine = (self.machine_addresses?)().ok()?;
        let shared = |name: &Name| self.declared.get(name)?.intersection(&machine).next();
        if shared(&self.own).is_some() {
            return None;
        }
        let (other, address) = self.declared.keys().find_map(|name| Some((name, shared(name)?)))?;
        Some(format!(
            "this machine has the address {address} of Node {other}, and none of Node {}",
            self.own
        ))
    }
}
