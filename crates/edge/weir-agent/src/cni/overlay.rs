//! What plugins say about the addresses of this node's pods, laid over what the source says.
//!
//! A pod's object gets its addresses only after the plugins are done with it. Until then, and for as long as there is doubt, the
//! plugin's word counts: the engine hears of a pod that has the labels of the source and the addresses of the plugin.
//!
//! *Invariant*: what the engine hears about a pod depends on what the source says about it and on what was told last.
//!
//! *Invariant*: what a plugin says about one pod is never applied to another that had the same name.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Change, Key, Name, Object, Pod, PodId};

use super::Attachment;

/// Whoever was told to have an address is younger than everyone who merely claims it, and the last one told is the youngest.
const TOLD: u64 = 1 << 63;

/// The pods of this node and what was told about them.
#[derive(Debug)]
pub(crate) struct Overlay {
    node: Name,
    /// The pods of this node as the source has them.
    source: BTreeMap<PodId, Pod>,
    told: BTreeMap<PodId, Told>,
    /// How often something was told.
    count: u64,
}

/// What was told about a pod.
#[derive(Debug)]
struct Told {
    attachment: Attachment,
    number: u64,
    /// The pod as it was read elsewhere, while the source does not have it.
    read: Option<Pod>,
    /// Addresses that the pod had before these.
    older: BTreeSet<IpAddr>,
}

impl Overlay {
    /// The overlay of a node about which nothing is known.
    pub(crate) fn new(node: Name) -> Self {
        Overlay { node, source: BTreeMap::new(), told: BTreeMap::new(), count: 0 }
    }

    /// A change that the source tells, as the engine is to hear it.
    pub(crate) fn lay(&mut self, change: Change) -> Change {
        match change {
            Change::Put(Object::Pod(pod)) => {
                self.replaced(&pod.id, Some(&pod));
                let id = pod.id.clone();
                let elsewhere = match pod.node.as_ref() == Some(&self.node) {
                    true => {
                        self.source.insert(id.clone(), pod);
                        None
                    }
                    false => {
                        self.source.remove(&id);
                        Some(pod)
                    }
                };
                match self.pod(&id).or(elsewhere) {
                    Some(pod) => Change::Put(Object::Pod(pod)),
                    None => Change::Remove(Key::Pod(id)),
                }
            }
            Change::Remove(Key::Pod(id)) => {
                self.replaced(&id, None);
                self.source.remove(&id);
                self.change(id)
            }
            other => other,
        }
    }

    /// A pod was told to have addresses.
    pub(crate) fn tell(&mut self, attachment: Attachment) -> Option<Change> {
        self.count += 1;
        let (id, number) = (attachment.pod(), self.count);
        self.altered(id, |overlay, id| {
            let mut told = Told { attachment, number, read: None, older: BTreeSet::new() };
            if let Some(before) = overlay.told.remove(id) {
                told.follow(before);
            }
            if let Some(pod) = overlay.source.get(id).filter(|pod| told.is_about(pod)) {
                told.older.extend(&pod.addresses);
            }
            overlay.told.insert(id.clone(), told);
        })
    }

    /// A pod was read elsewhere.
    pub(crate) fn read(&mut self, pod: Pod) -> Option<Change> {
        let is_here = pod.node.as_ref() == Some(&self.node);
        self.altered(pod.id.clone(), |overlay, id| {
            if let Some(told) = overlay.told.get_mut(id)
                && told.is_about(&pod)
                && is_here
            {
                told.read = Some(pod);
            }
        })
    }

    /// An attachment is gone. A later one of the same pod stays.
    pub(crate) fn forget(&mut self, container: &str, interface: &str) -> Option<Change> {
        let is_it = |told: &Told| {
            told.attachment.container == container && told.attachment.interface == interface
        };
        let id = self.told.iter().find(|(_, told)| is_it(told))?.0.clone();
        self.altered(id, |overlay, id| drop(overlay.told.remove(id)))
    }

    /// Of a network, only the attachments of these containers are left.
    pub(crate) fn keep(&mut self, network: &str, containers: &BTreeSet<String>) -> Vec<Change> {
        let is_gone = |told: &Told| {
            let Attachment { network: its, container, .. } = &told.attachment;
            its == network && !containers.contains(container)
        };
        let gone = self.told.iter().filter(|(_, told)| is_gone(told));
        let gone: Vec<PodId> = gone.map(|(id, _)| id.clone()).collect();
        gone.into_iter()
            .filter_map(|id| self.altered(id, |overlay, id| drop(overlay.told.remove(id))))
            .collect()
    }

    /// Why a pod cannot have rules yet; `None` if it is known.
    pub(crate) fn obstacle(&self, attachment: &Attachment) -> Option<&'static str> {
        let id = attachment.pod();
        let read = self.told.get(&id).and_then(|told| told.read.as_ref());
        let source = self.source.get(&id);
        let pod = source.filter(|pod| is_same(&attachment.uid, &pod.uid)).or(read);
        match (pod, source) {
            (Some(pod), _) if pod.host_network => {
                Some("the source says that it has its node's network")
            }
            (Some(pod), _) if pod.finished => Some("the source says that it ran to its end"),
            (Some(_), _) => None,
            (None, Some(_)) => Some("the source still has an older pod of this name"),
            (None, None) => Some("the source does not have it on this node"),
        }
    }

    /// The pod as the engine is to know it.
    fn pod(&self, id: &PodId) -> Option<Pod> {
        let source = self.source.get(id);
        let Some(told) = self.told.get(id) else { return source.cloned() };
        match source.filter(|pod| told.is_about(pod)).or(told.read.as_ref()) {
            Some(pod) if !pod.host_network && !pod.finished => Some(Pod {
                addresses: told.attachment.addresses.clone(),
                born: TOLD + told.number,
                ..pod.clone()
            }),
            _ => source.cloned(),
        }
    }

    fn change(&self, id: PodId) -> Change {
        match self.pod(&id) {
            Some(pod) => Change::Put(Object::Pod(pod)),
            None => Change::Remove(Key::Pod(id)),
        }
    }

    /// Alters something about a pod. What follows from that?
    fn altered(&mut self, id: PodId, alter: impl FnOnce(&mut Self, &PodId)) -> Option<Change> {
        let before = self.pod(&id);
        alter(self, &id);
        (self.pod(&id) != before).then(|| self.change(id))
    }

    /// The source has something else to say about a pod. What was told ends with the pod it was told about, and when the source
    /// has news of its addresses.
    fn replaced(&mut self, id: &PodId, now: Option<&Pod>) {
        let Some(told) = self.told.get(id) else { return };
        let is_its =
            |pod: &Pod| pod.uid.is_some() && pod.uid.as_deref() == told.attachment.uid.as_deref();
        let is_gone = self.source.get(id).is_some_and(is_its) && !now.is_some_and(is_its);
        let is_outdated = now.is_some_and(|pod| told.is_about(pod) && told.is_older(pod));
        if is_gone || is_outdated {
            self.told.remove(id);
        }
    }
}

impl Told {
    fn is_about(&self, pod: &Pod) -> bool {
        is_same(&self.attachment.uid, &pod.uid)
    }

    /// Whether a pod of the source has an address that it did not have when this was told.
    fn is_older(&self, pod: &Pod) -> bool {
        let is_known = |a: &IpAddr| self.attachment.addresses.contains(a) || self.older.contains(a);
        !pod.addresses.iter().all(is_known)
    }

    /// Comes after what was told before. A sandbox may have several interfaces, and then the first one speaks for all.
    fn follow(&mut self, before: Told) {
        let same = before.attachment.container == self.attachment.container;
        if same && before.attachment.interface != self.attachment.interface {
            let more = std::mem::replace(&mut self.attachment, before.attachment).addresses;
            let known = &mut self.attachment.addresses;
            more.into_iter().for_each(|a| {
                if !known.contains(&a) {
                    known.push(a);
                }
            });
        } else {
            self.older.extend(before.attachment.addresses);
        }
        self.older.extend(before.older);
        self.read = before.read.filter(|pod| self.is_about(pod));
    }
}

/// Whether nothing speaks against two being one.
fn is_same(one: &Option<String>, other: &Option<Name>) -> bool {
    one.as_deref().zip(other.as_deref()).is_none_or(|(one, other)| one == other)
}

#[cfg(test)]
mod tests;
