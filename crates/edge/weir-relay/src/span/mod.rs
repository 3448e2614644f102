//! The span of each node: the objects that rules of its pods can name.
//!
//! ```text
//!  pods of the node ─► policies that select them ─► pods that their rules select ─► their namespaces
//!                      (subjects)                   (selections)
//! ```
//!
//! An agent attaches for a node. Each pod knows its audience, the agents that have it. A change marks
//! the pods whose audience it can change; the end of the transaction computes these audiences again,
//! and the difference is what the agents receive.
//!
//! *Invariants*
//!
//! * An agent that has only the span of its node compiles the same rules as one with the whole
//!   cluster. A law tests this.
//! * The cost of a change depends on what it touches: the pods of a selection or a namespace, and the
//!   agents that have or get the object.

mod agents;
mod commit;
mod index;
#[cfg(test)]
mod law;
mod pods;
mod policies;
mod selections;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

pub(crate) use agents::MAX_AGENTS;
use index::{PodSelection, SelectionIndex};
use pods::{PodTable, facts};
use policies::PolicyRecord;
use selections::SelectionRecord;
use weir_kube::put_frame;
use weir_model::{Key, Labels, Name, Object, Pod, PodId, Policy, PolicyId, Requirement, Selector};

/// An encoded frame. All agents that receive it share it.
pub(crate) type FrameBytes = Arc<[u8]>;

/// The frames for each agent, by its slot.
pub(crate) type Outbox = BTreeMap<usize, Vec<FrameBytes>>;

/// Why an agent cannot attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no such node.
    UnknownNode,
    /// There are too many agents.
    Full,
}

/// An agent that is attached.
#[derive(Debug)]
struct Attached {
    node: Name,
    /// The pods that it has, by namespace.
    namespaces: BTreeMap<Name, u32>,
    /// How many policies that it has select nodes.
    node_selectors: u32,
}

#[derive(Debug, Default)]
struct NamespaceRecord {
    labels: Labels,
    frame: FrameBytes,
}

/// The cluster, and the spans of the nodes whose agents are attached.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    attached: Vec<Option<Attached>>,
    slots: HashMap<Name, usize>,
    nodes: BTreeMap<Name, FrameBytes>,
    namespaces: BTreeMap<Name, NamespaceRecord>,
    pods: PodTable,
    policies: Vec<Option<PolicyRecord>>,
    policy_ids: HashMap<PolicyId, u32>,
    subjects: SelectionIndex,
    selections: Vec<Option<SelectionRecord>>,
    selection_ids: HashMap<PodSelection, u32>,
    peers: SelectionIndex,
    touched: commit::Touched,
    #[cfg(test)]
    log: Vec<(usize, Key, bool)>,
}

/// The resolvers of the cluster: agents read their answers if a policy names domains.
fn resolvers() -> PodSelection {
    let label = Requirement::equals("k8s-app", "kube-dns");
    PodSelection::In("kube-system".into(), [label].into_iter().collect::<Selector>())
}

/// Adds a record in the first free place.
fn insert<T>(records: &mut Vec<Option<T>>, record: T) -> u32 {
    let free = records.iter().position(Option::is_none);
    let at = free.unwrap_or_else(|| {
        records.push(None);
        records.len() - 1
    });
    records[at] = Some(record);
    u32::try_from(at).unwrap_or(u32::MAX)
}

impl Spans {
    /// Adds or replaces an object. Policies come with their JSON.
    pub(crate) fn put(&mut self, object: Object, json: &[u8]) {
        let frame = put_frame(&object, json, false).map(FrameBytes::from);
        let Some(frame) = frame else { return };
        match object {
            Object::Pod(pod) => self.put_pod(pod, frame),
            Object::Namespace(namespace) => {
                let record = NamespaceRecord { labels: namespace.labels, frame };
                self.replace_namespace(namespace.name, Some(record));
            }
            Object::Node(node) => {
                if self.nodes.get(&node.name) != Some(&frame) {
                    self.nodes.insert(node.name.clone(), frame);
                    self.touched.nodes.insert(node.name);
                }
            }
            Object::Policy(policy) => {
                self.replace_policy(&policy.id.clone(), Some((&policy, frame)))
            }
            Object::Service(_) | Object::EndpointSlice(_) | Object::Domain(..) => (),
        }
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, key: &Key) {
        match key {
            Key::Pod(id) => self.remove_pod(id),
            Key::Namespace(name) => self.replace_namespace(name.clone(), None),
            Key::Node(name) => {
                if self.nodes.remove(name).is_some() {
                    self.touched.nodes.insert(name.clone());
                }
            }
            Key::Policy(id) => self.replace_policy(id, None),
            Key::Service(_) | Key::EndpointSlice(_) | Key::Domain(_) => (),
        }
    }

    /// The number of pods, and of agents that are attached.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.pods.len(), self.slots.len())
    }

    /// The slot of the agent of a node.
    pub(crate) fn slot(&self, node: &str) -> Option<usize> {
        self.slots.get(node).copied()
    }

    /// Attaches the agent of a node, instead of an earlier one, and returns all objects of its span.
    /// No transaction may be open.
    pub(crate) fn attach(&mut self, node: &str) -> Result<(usize, Vec<FrameBytes>), Refusal> {
        let Some((name, own)) = self.nodes.get_key_value(node) else {
            return Err(Refusal::UnknownNode);
        };
        let (node, own) = (name.clone(), own.clone());
        if let Some(slot) = self.slots.get(&node) {
            self.detach(*slot);
        }
        if self.slots.len() >= MAX_AGENTS {
            return Err(Refusal::Full);
        }
        let (namespaces, node_selectors) = (BTreeMap::new(), 0);
        let attached = Attached { node: node.clone(), namespaces, node_selectors };
        let slot = insert(&mut self.attached, attached) as usize;
        self.slots.insert(node.clone(), slot);
        self.acquire(slot, &resolvers());
        for pod in self.pods.of_node(&node) {
            self.refresh(pod, None, Vec::new());
        }
        let mut frames = vec![own];
        #[cfg(test)]
        self.log.push((slot, Key::Node(node), true));
        frames.extend(self.commit().remove(&slot).unwrap_or_default());
        Ok((slot, frames))
    }

    /// Detaches an agent. No transaction may be open.
    pub(crate) fn detach(&mut self, slot: usize) {
        let Some(Some(attached)) = self.attached.get(slot) else { return };
        let node = attached.node.clone();
        for pod in self.pods.of_node(&node) {
            let record = self.pods.get_mut(pod);
            let subjects = record.map(|record| std::mem::take(&mut record.subjects));
            for policy in subjects.unwrap_or_default() {
                self.remove_subject(slot, policy);
            }
            self.mark(pod);
        }
        self.release(slot, &resolvers());
        self.slots.remove(&node);
        self.attached[slot] = None;
        self.commit().clear();
    }

    fn put_pod(&mut self, pod: Pod, frame: FrameBytes) {
        let mut before = (None, Vec::new());
        if let Some(index) = self.pods.find(&pod.id)
            && let Some(record) = self.pods.get_mut(index)
        {
            if !record.is_gone && record.frame == frame && record.pod.uid == pod.uid {
                return;
            }
            before = (record.pod.node.clone(), std::mem::take(&mut record.subjects));
            self.mark(index);
        }
        let index = self.pods.put(pod, frame);
        let slot = before.0.and_then(|node| self.slots.get(&node).copied());
        self.refresh(index, slot, before.1);
    }

    fn remove_pod(&mut self, id: &PodId) {
        let Some(index) = self.pods.find(id) else { return };
        self.mark(index);
        let Some(record) = self.pods.get_mut(index) else { return };
        record.selections = Vec::new();
        let (subjects, node) = (std::mem::take(&mut record.subjects), record.pod.node.clone());
        self.pods.retire(index);
        if let Some(slot) = node.and_then(|node| self.slots.get(&node).copied()) {
            subjects.into_iter().for_each(|policy| self.remove_subject(slot, policy));
        }
    }

    /// Computes again what selects a pod. The agent in `slot` had the policies in `subjects` for it.
    fn refresh(&mut self, index: u32, slot: Option<usize>, subjects: Vec<u32>) {
        let Some(record) = self.pods.get(index) else { return };
        let namespace = self.namespaces.get(&record.pod.id.namespace);
        let facts = facts(&record.pod, namespace.map(|namespace| &namespace.labels));
        let mut selections = Vec::new();
        if !record.pod.addresses.is_empty() {
            selections = self.peers.candidates(&facts);
            selections.retain(|id| {
                self.selection(*id).is_some_and(|selection| selection.selects(&record.pod, &facts))
            });
        }
        let own_slot = record.pod.node.as_ref().and_then(|node| self.slots.get(node)).copied();
        let mut policies = Vec::new();
        if own_slot.is_some() && !record.pod.finished && !record.pod.host_network {
            policies = self.subjects.candidates(&facts);
            policies.retain(|id| self.policy(*id).is_some_and(|it| it.subject.selects(&facts)));
        }
        if let Some(record) = self.pods.get_mut(index) {
            record.selections = selections;
            record.subjects.clone_from(&policies);
        }
        if let Some(slot) = own_slot {
            policies.into_iter().for_each(|policy| self.add_subject(slot, policy));
        }
        if let Some(slot) = slot {
            subjects.into_iter().for_each(|policy| self.remove_subject(slot, policy));
        }
        self.mark(index);
    }

    fn replace_namespace(&mut self, name: Name, record: Option<NamespaceRecord>) {
        let known = self.namespaces.get(&name);
        if known.map(|known| &known.frame) == record.as_ref().map(|record| &record.frame) {
            return;
        }
        match record {
            Some(record) => _ = self.namespaces.insert(name.clone(), record),
            None => _ = self.namespaces.remove(&name),
        }
        for pod in self.pods.of_namespace(&name).collect::<Vec<_>>() {
            let Some(record) = self.pods.get_mut(pod) else { continue };
            let subjects = std::mem::take(&mut record.subjects);
            let slot = record.pod.node.as_ref().and_then(|node| self.slots.get(node)).copied();
            self.refresh(pod, slot, subjects);
        }
        self.touched.namespaces.insert(name);
    }

    fn replace_policy(&mut self, id: &PolicyId, given: Option<(&Policy, FrameBytes)>) {
        if let Some(index) = self.policy_ids.get(id).copied() {
            let known = self.policy(index).map(|policy| policy.frame.clone());
            if known == given.as_ref().map(|(_, frame)| frame.clone()) {
                return;
            }
            self.forget_policy(index);
        }
        let Some((policy, frame)) = given else { return };
        let record = PolicyRecord::new(policy, frame);
        let subject = record.subject.clone();
        let index = insert(&mut self.policies, record);
        self.policy_ids.insert(id.clone(), index);
        self.subjects.insert(&subject, index);
        for pod in self.members(&subject) {
            let Some(record) = self.pods.get_mut(pod) else { continue };
            let slot = record.pod.node.as_ref().and_then(|node| self.slots.get(node)).copied();
            if record.pod.finished || record.pod.host_network {
                continue;
            }
            if let Some(slot) = slot {
                record.subjects.push(index);
                self.add_subject(slot, index);
            }
        }
    }

    fn forget_policy(&mut self, index: u32) {
        let Some(record) = self.policy(index) else { return };
        let (subject, id) = (record.subject.clone(), record.id.clone());
        for pod in self.members(&subject) {
            let Some(record) = self.pods.get_mut(pod) else { continue };
            let before = record.subjects.len();
            record.subjects.retain(|other| *other != index);
            let was_subject = record.subjects.len() < before;
            let slot = record.pod.node.as_ref().and_then(|node| self.slots.get(node)).copied();
            if let Some(slot) = slot.filter(|_| was_subject) {
                self.remove_subject(slot, index);
            }
        }
        self.subjects.remove(&subject, index);
        self.policy_ids.remove(&id);
        self.policies[index as usize] = None;
    }

    /// A policy selects one more pod of an agent's node.
    fn add_subject(&mut self, slot: usize, index: u32) {
        self.touch_policy(slot, index);
        let Some(Some(policy)) = self.policies.get_mut(index as usize) else { return };
        let count = policy.subjects.entry(slot).or_default();
        *count += 1;
        if *count > 1 {
            return;
        }
        let names = policy.names.clone();
        names.pods.iter().for_each(|selection| self.acquire(slot, selection));
        if names.nodes {
            self.count_node_selectors(slot, |count| count + 1);
        }
    }

    /// A policy selects one pod less of an agent's node.
    fn remove_subject(&mut self, slot: usize, index: u32) {
        self.touch_policy(slot, index);
        let Some(Some(policy)) = self.policies.get_mut(index as usize) else { return };
        let Some(count) = policy.subjects.get_mut(&slot) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        policy.subjects.remove(&slot);
        let names = policy.names.clone();
        names.pods.iter().for_each(|selection| self.release(slot, selection));
        if names.nodes {
            self.count_node_selectors(slot, |count| count.saturating_sub(1));
        }
    }

    fn count_node_selectors(&mut self, slot: usize, change: impl FnOnce(u32) -> u32) {
        if let Some(Some(attached)) = self.attached.get_mut(slot) {
            self.touched.node_selectors.entry(slot).or_insert(attached.node_selectors > 0);
            attached.node_selectors = change(attached.node_selectors);
        }
    }

    fn policy(&self, index: u32) -> Option<&PolicyRecord> {
        self.policies.get(index as usize)?.as_ref()
    }
}
