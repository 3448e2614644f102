//! The end of a transaction: who gets what.

use std::collections::{BTreeMap, BTreeSet};

use weir_kube::{put_frame, remove_frame};
use weir_model::{Key, Name, Object, PolicyId};

use super::{FrameBytes, Outbox, Spans, agents::AgentSet};

/// What a transaction has touched so far.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// The pods whose audience or content may have changed.
    pub(super) pods: BTreeSet<u32>,
    pub(super) nodes: BTreeSet<Name>,
    pub(super) namespaces: BTreeSet<Name>,
    /// The policies whose subjects or content may have changed, with the frame that each agent has.
    policies: BTreeMap<(usize, PolicyId), Option<FrameBytes>>,
    /// Whether each agent had policies that select nodes.
    pub(super) node_selectors: BTreeMap<usize, bool>,
}

impl Spans {
    /// Marks a pod, and those that claim one of its addresses: rules treat them differently.
    pub(super) fn mark(&mut self, index: u32) {
        let Some(record) = self.pods.get(index) else { return };
        let claimants = self.pods.claimants(&record.pod);
        self.touched.pods.insert(index);
        self.touched.pods.extend(claimants);
    }

    pub(super) fn touch_policy(&mut self, slot: usize, index: u32) {
        let Some(Some(policy)) = self.policies.get(index as usize) else { return };
        let place = self.touched.policies.entry((slot, policy.id.clone()));
        place.or_insert_with(|| policy.subjects.contains_key(&slot).then(|| policy.frame.clone()));
    }

    /// Ends a transaction and returns what each agent receives.
    pub(crate) fn commit(&mut self) -> Outbox {
        let touched = std::mem::take(&mut self.touched);
        let mut out = Outbox::new();
        let mut counts = BTreeMap::new();
        for index in touched.pods {
            self.commit_pod(index, &mut counts, &mut out);
        }
        for ((slot, id), before) in touched.policies {
            let index = self.policy_ids.get(&id);
            let policy = index.and_then(|index| self.policy(*index));
            let now = policy.filter(|policy| policy.subjects.contains_key(&slot));
            let now = now.map(|policy| policy.frame.clone());
            if now != before {
                self.emit(&mut out, slot, Key::Policy(id), now);
            }
        }
        for ((slot, name), before) in &counts {
            let now = self.count(*slot, name);
            if (*before > 0) != (now > 0) {
                let frame = self.namespaces.get(name).map(|record| record.frame.clone());
                // A namespace that is only mentioned has no labels.
                if frame.is_some() || touched.namespaces.contains(name) {
                    let frame = frame.filter(|_| now > 0);
                    self.emit(&mut out, *slot, Key::Namespace(name.clone()), frame);
                }
            }
        }
        let slots: Vec<usize> = (0..self.attached.len()).collect();
        for name in touched.namespaces {
            let frame = self.namespaces.get(&name).map(|record| record.frame.clone());
            for slot in &slots {
                let now = self.count(*slot, &name);
                let before = counts.get(&(*slot, name.clone())).copied().unwrap_or(now);
                if now > 0 && before > 0 {
                    self.emit(&mut out, *slot, Key::Namespace(name.clone()), frame.clone());
                }
            }
        }
        for name in &touched.nodes {
            let frame = self.nodes.get(name).cloned();
            for slot in &slots {
                let attached = self.attached[*slot].as_ref();
                let needs = attached.is_some_and(|it| it.node == *name || it.node_selectors > 0);
                if needs {
                    self.emit(&mut out, *slot, Key::Node(name.clone()), frame.clone());
                }
            }
        }
        for (slot, before) in touched.node_selectors {
            self.commit_nodes(slot, before, &touched.nodes, &mut out);
        }
        out
    }

    /// Sends all nodes to an agent that needs them now, or removes them from one that did.
    fn commit_nodes(
        &mut self,
        slot: usize,
        before: bool,
        touched: &BTreeSet<Name>,
        out: &mut Outbox,
    ) {
        let Some(Some(attached)) = self.attached.get(slot) else { return };
        let now = attached.node_selectors > 0;
        if now == before {
            return;
        }
        let own = attached.node.clone();
        // An agent that needs nodes now has those that changed already.
        let gone = touched.iter().filter(|name| !now && !self.nodes.contains_key(*name));
        let known = self.nodes.keys().filter(|name| !now || !touched.contains(*name));
        let others: Vec<Name> = known.chain(gone).filter(|name| **name != own).cloned().collect();
        for name in others {
            let frame = self.nodes.get(&name).cloned().filter(|_| now);
            self.emit(out, slot, Key::Node(name), frame);
        }
    }

    fn commit_pod(
        &mut self,
        index: u32,
        counts: &mut BTreeMap<(usize, Name), u32>,
        out: &mut Outbox,
    ) {
        let Some(record) = self.pods.get(index) else { return };
        let (is_gone, is_changed, before) = (record.is_gone, record.is_changed, record.audience);
        let mut now = AgentSet::default();
        if !is_gone {
            now = self.own_audience(index);
            for other in self.pods.claimants(&record.pod) {
                if other != index {
                    now.add(&self.own_audience(other));
                }
            }
        }
        let (added, removed) = (now.without(&before), before.without(&now));
        let receivers = if is_changed { now } else { added };
        if !receivers.is_empty() || !removed.is_empty() {
            let (id, node) = (record.pod.id.clone(), record.pod.node.clone());
            let (key, frame) = (Key::Pod(id.clone()), record.frame.clone());
            let own_slot = node.and_then(|node| self.slots.get(&node).copied());
            for slot in receivers.iter() {
                let frame = match own_slot == Some(slot) {
                    true => self.own_frame(index).unwrap_or_else(|| frame.clone()),
                    false => frame.clone(),
                };
                self.emit(out, slot, key.clone(), Some(frame));
            }
            let gone = remove_frame(&key).map(FrameBytes::from);
            for slot in removed.iter() {
                self.emit_removal(out, slot, &key, gone.clone());
            }
            for (slots, is_added) in [(added, true), (removed, false)] {
                for slot in slots.iter() {
                    self.count_pod(slot, &id.namespace, is_added, counts);
                }
            }
        }
        if is_gone {
            self.pods.free(index);
        } else if let Some(record) = self.pods.get_mut(index) {
            (record.audience, record.is_changed) = (now, false);
        }
    }

    /// The agents that need a pod for itself: that of its node, and those whose rules select it.
    fn own_audience(&self, index: u32) -> AgentSet {
        let mut audience = AgentSet::default();
        let Some(record) = self.pods.get(index) else { return audience };
        let slot = record.pod.node.as_ref().and_then(|node| self.slots.get(node));
        slot.into_iter().for_each(|slot| audience.insert(*slot));
        for id in &record.selections {
            if let Some(selection) = self.selection(*id) {
                audience.add(&selection.agents);
            }
        }
        audience
    }

    /// The frame of a pod for its own node.
    fn own_frame(&self, index: u32) -> Option<FrameBytes> {
        let pod = self.pods.get(index)?.pod.clone();
        put_frame(&Object::Pod(pod), &[], true).map(FrameBytes::from)
    }

    fn count(&self, slot: usize, namespace: &Name) -> u32 {
        let attached = self.attached.get(slot).and_then(Option::as_ref);
        attached.and_then(|it| it.namespaces.get(namespace)).copied().unwrap_or_default()
    }

    /// Counts a pod of an agent. `counts` keeps the numbers before the transaction.
    fn count_pod(
        &mut self,
        slot: usize,
        namespace: &Name,
        is_added: bool,
        counts: &mut BTreeMap<(usize, Name), u32>,
    ) {
        let Some(Some(attached)) = self.attached.get_mut(slot) else { return };
        let count = attached.namespaces.entry(namespace.clone()).or_default();
        if *count <= 1 {
            counts.entry((slot, namespace.clone())).or_insert(*count);
        }
        *count = if is_added { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            attached.namespaces.remove(namespace);
        }
    }

    fn emit(&mut self, out: &mut Outbox, slot: usize, key: Key, frame: Option<FrameBytes>) {
        if frame.is_none() {
            let gone = remove_frame(&key).map(FrameBytes::from);
            return self.emit_removal(out, slot, &key, gone);
        }
        #[cfg(test)]
        self.log.push((slot, key, true));
        out.entry(slot).or_default().extend(frame);
    }

    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "tests log each removal"))]
    fn emit_removal(
        &mut self,
        out: &mut Outbox,
        slot: usize,
        key: &Key,
        frame: Option<FrameBytes>,
    ) {
        #[cfg(test)]
        self.log.push((slot, key.clone(), false));
        #[cfg(not(test))]
        let _ = key;
        out.entry(slot).or_default().extend(frame);
    }
}
