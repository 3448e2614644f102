//! Pods, by name, node, namespace and address.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use smallvec::SmallVec;
use weir_model::{Labels, Name, Pod, PodId};

use super::{agents::AgentSet, index::PodFacts};

/// A pod, and who has it.
#[derive(Debug)]
pub(crate) struct PodRecord {
    pub(crate) pod: Pod,
    /// The frame that transfers it to other nodes than its own.
    pub(crate) frame: Arc<[u8]>,
    /// The agents that have it.
    pub(crate) audience: AgentSet,
    /// The selections of peers that select it.
    pub(crate) selections: Vec<u32>,
    /// The policies that select it, while an agent of its node is attached.
    pub(crate) subjects: Vec<u32>,
    /// Whether its frame changed in this transaction.
    pub(crate) is_changed: bool,
    /// Whether it is gone. It is removed at the end of the transaction.
    pub(crate) is_gone: bool,
}

/// All pods.
#[derive(Debug, Default)]
pub(crate) struct PodTable {
    records: Vec<Option<PodRecord>>,
    free: Vec<u32>,
    by_id: HashMap<PodId, u32>,
    pub(crate) by_node: BTreeMap<Name, BTreeSet<u32>>,
    by_namespace: BTreeMap<Name, BTreeSet<u32>>,
    by_address: HashMap<IpAddr, SmallVec<[u32; 1]>>,
}

impl PodTable {
    pub(crate) fn find(&self, id: &PodId) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    pub(crate) fn get(&self, index: u32) -> Option<&PodRecord> {
        self.records.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut PodRecord> {
        self.records.get_mut(index as usize)?.as_mut()
    }

    /// Adds or replaces a pod. Its audience stays.
    pub(crate) fn put(&mut self, pod: Pod, frame: Arc<[u8]>) -> u32 {
        let index = match self.find(&pod.id) {
            Some(index) => {
                self.unlink(index);
                index
            }
            None => {
                let index = self.free.pop().unwrap_or_else(|| {
                    self.records.push(None);
                    u32::try_from(self.records.len() - 1).unwrap_or(u32::MAX)
                });
                self.by_id.insert(pod.id.clone(), index);
                index
            }
        };
        if let Some(node) = &pod.node {
            self.by_node.entry(node.clone()).or_default().insert(index);
        }
        self.by_namespace.entry(pod.id.namespace.clone()).or_default().insert(index);
        for address in pod.own_addresses() {
            let claimants = self.by_address.entry(*address).or_default();
            if !claimants.contains(&index) {
                claimants.push(index);
            }
        }
        let place = &mut self.records[index as usize];
        match place {
            Some(record) => {
                (record.pod, record.frame) = (pod, frame);
                (record.is_changed, record.is_gone) = (true, false);
            }
            None => {
                *place = Some(PodRecord {
                    pod,
                    frame,
                    audience: AgentSet::default(),
                    selections: Vec::new(),
                    subjects: Vec::new(),
                    is_changed: true,
                    is_gone: false,
                });
            }
        }
        index
    }

    /// Removes a pod from all indexes. Its record stays until `free`.
    pub(crate) fn retire(&mut self, index: u32) {
        self.unlink(index);
        if let Some(record) = self.get_mut(index) {
            record.is_gone = true;
        }
    }

    pub(crate) fn free(&mut self, index: u32) {
        let record = self.records.get_mut(index as usize).and_then(Option::take);
        if let Some(record) = record {
            self.by_id.remove(&record.pod.id);
            self.free.push(index);
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(Some(record)) = self.records.get(index as usize) else { return };
        if let Some(node) = &record.pod.node {
            remove_from(&mut self.by_node, node, index);
        }
        remove_from(&mut self.by_namespace, &record.pod.id.namespace, index);
        for address in record.pod.own_addresses() {
            if let Some(claimants) = self.by_address.get_mut(address) {
                claimants.retain(|other| *other != index);
                if claimants.is_empty() {
                    self.by_address.remove(address);
                }
            }
        }
    }

    /// The pods that claim an address of a pod, itself included while it exists.
    pub(crate) fn claimants(&self, pod: &Pod) -> SmallVec<[u32; 2]> {
        let lists = pod.own_addresses().iter().filter_map(|address| self.by_address.get(address));
        lists.flatten().copied().collect()
    }

    pub(crate) fn of_node(&self, node: &str) -> Vec<u32> {
        self.by_node.get(node).into_iter().flatten().copied().collect()
    }

    pub(crate) fn of_namespace<'a>(
        &'a self,
        namespace: &str,
    ) -> impl Iterator<Item = u32> + use<'a> {
        self.by_namespace.get(namespace).into_iter().flatten().copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &PodRecord)> {
        (0..).zip(&self.records).filter_map(|(index, record)| Some((index, record.as_ref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

fn remove_from(map: &mut BTreeMap<Name, BTreeSet<u32>>, key: &Name, index: u32) {
    if let Some(members) = map.get_mut(key) {
        members.remove(&index);
        if members.is_empty() {
            map.remove(key);
        }
    }
}

/// What selections see of a pod.
pub(crate) fn facts<'a>(pod: &'a Pod, of_namespace: Option<&'a Labels>) -> PodFacts<'a> {
    PodFacts {
        namespace: &pod.id.namespace,
        of_namespace,
        labels: &pod.labels,
        ports: pod.ports.iter().map(|port| &port.name).collect(),
    }
}
