//! The selections of peers that rules of attached nodes use.

use std::collections::BTreeMap;

use weir_model::{Labels, Name, Pod};

use super::{
    Spans,
    agents::AgentSet,
    index::{PodFacts, PodSelection},
    insert,
    pods::facts,
    resolvers,
};

/// A selection of peers, and the agents whose rules use it.
#[derive(Debug)]
pub(super) struct SelectionRecord {
    selection: PodSelection,
    is_of_resolvers: bool,
    uses: BTreeMap<usize, u32>,
    pub(super) agents: AgentSet,
}

impl SelectionRecord {
    /// Whether agents need a pod for this. Rules name no pod with the address of its node, but its DNS
    /// answers count.
    pub(super) fn selects(&self, pod: &Pod, facts: &PodFacts<'_>) -> bool {
        has_address(pod, self.is_of_resolvers) && self.selection.selects(facts)
    }
}

fn has_address(pod: &Pod, is_resolver: bool) -> bool {
    if is_resolver { !pod.addresses.is_empty() } else { !pod.own_addresses().is_empty() }
}

impl Spans {
    /// The rules of an agent's node use a selection once more.
    pub(super) fn acquire(&mut self, slot: usize, selection: &PodSelection) {
        let known = self.selection_ids.get(selection).copied();
        let id = known.unwrap_or_else(|| {
            let (uses, agents) = (BTreeMap::new(), AgentSet::default());
            let is_of_resolvers = *selection == resolvers();
            let record =
                SelectionRecord { selection: selection.clone(), is_of_resolvers, uses, agents };
            let id = insert(&mut self.selections, record);
            self.selection_ids.insert(selection.clone(), id);
            self.peers.insert(selection, id);
            id
        });
        let Some(Some(record)) = self.selections.get_mut(id as usize) else { return };
        let count = record.uses.entry(slot).or_default();
        *count += 1;
        if *count > 1 {
            return;
        }
        record.agents.insert(slot);
        let is_of_resolvers = record.is_of_resolvers;
        for pod in self.members(selection) {
            if let Some(record) = self.pods.get_mut(pod).filter(|_| known.is_none())
                && has_address(&record.pod, is_of_resolvers)
            {
                record.selections.push(id);
            }
            self.mark(pod);
        }
    }

    /// The rules of an agent's node use a selection once less.
    pub(super) fn release(&mut self, slot: usize, selection: &PodSelection) {
        let Some(id) = self.selection_ids.get(selection).copied() else { return };
        let Some(Some(record)) = self.selections.get_mut(id as usize) else { return };
        let Some(count) = record.uses.get_mut(&slot) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        record.uses.remove(&slot);
        record.agents.remove(slot);
        let is_unused = record.agents.is_empty();
        for pod in self.members(selection) {
            if let Some(record) = self.pods.get_mut(pod).filter(|_| is_unused) {
                record.selections.retain(|other| *other != id);
            }
            self.mark(pod);
        }
        if is_unused {
            self.peers.remove(selection, id);
            self.selection_ids.remove(selection);
            self.selections[id as usize] = None;
        }
    }

    /// The pods that a selection selects, whether or not they have addresses.
    pub(super) fn members(&self, selection: &PodSelection) -> Vec<u32> {
        let selects = |index: &u32, labels: Option<&Labels>| {
            let record = self.pods.get(*index);
            record.is_some_and(|record| selection.selects(&facts(&record.pod, labels)))
        };
        let of_namespace = |namespace: &Name, labels| {
            self.pods.of_namespace(namespace).filter(move |index| selects(index, labels))
        };
        match selection {
            PodSelection::In(namespace, _) => of_namespace(namespace, None).collect(),
            PodSelection::Across(namespaces, _) => {
                let matching = self.namespaces.iter();
                let matching = matching.filter(|(_, record)| namespaces.matches(&record.labels));
                matching
                    .flat_map(|(name, record)| of_namespace(name, Some(&record.labels)))
                    .collect()
            }
            PodSelection::WithPort(_) => {
                let all = self.pods.iter().filter(|(_, record)| !record.is_gone);
                all.map(|(index, _)| index).filter(|index| selects(index, None)).collect()
            }
        }
    }

    pub(super) fn selection(&self, id: u32) -> Option<&SelectionRecord> {
        self.selections.get(id as usize)?.as_ref()
    }
}
