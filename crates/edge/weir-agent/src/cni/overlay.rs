//! The addresses of local pods that the CNI plugin reported, laid over the source's pods.
//!
//! A Pod object gets its addresses only after all CNI plugins have run. Until then the plugin's
//! addresses are used: the engine gets a pod with the source's labels and the plugin's addresses.
//!
//! *Invariant*: the engine's view of a pod depends only on the source's last state of it and on the
//! last attachment.
//!
//! The datapath keeps a record of each attachment, so that a restarted agent knows them.
//!
//! *Invariant*: an attachment of one pod never applies to another pod of the same name.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use weir_cni_protocol::Attachment;
use weir_model::{Change, Claim, Key, Name, Object, Pod, PodId};

use super::{pod_of, record};

/// The local pods, and the attachments that plugins reported.
#[derive(Debug)]
pub(crate) struct Overlay {
    node: Name,
    /// The local pods as the source has them.
    source: BTreeMap<PodId, Pod>,
    attached: BTreeMap<PodId, Attached>,
    /// How many attachments were reported.
    count: u32,
    /// Whether an attachment changed since the last call of `take_changed`.
    is_changed: bool,
}

/// The last attachment of a pod.
#[derive(Debug)]
struct Attached {
    attachment: Attachment,
    number: u32,
    /// Whether an earlier agent received it, and the source has not confirmed its pod.
    is_restored: bool,
    /// The pod as read directly, while the source does not have it.
    read: Option<Pod>,
    /// The addresses that the pod had before.
    older: BTreeSet<IpAddr>,
}

impl Overlay {
    /// The overlay of a node without pods.
    pub(crate) fn new(node: Name) -> Self {
        Overlay {
            node,
            source: BTreeMap::new(),
            attached: BTreeMap::new(),
            count: 0,
            is_changed: false,
        }
    }

    /// Turns a change of the source into a change for the engine.
    pub(crate) fn overlay(&mut self, change: Change) -> Change {
        match change {
            Change::Put(Object::Pod(pod)) => {
                self.drop_outdated(&pod.id, Some(&pod));
                let id = pod.id.clone();
                let remote = if pod.node.as_ref() == Some(&self.node) {
                    self.source.insert(id.clone(), pod);
                    None
                } else {
                    self.source.remove(&id);
                    Some(pod)
                };
                match self.pod(&id).or(remote) {
                    Some(pod) => Change::Put(Object::Pod(pod)),
                    None => Change::Remove(Key::Pod(id)),
                }
            }
            Change::Remove(Key::Pod(id)) => {
                self.drop_outdated(&id, None);
                self.source.remove(&id);
                self.change(id)
            }
            other => other,
        }
    }

    /// A plugin attached a pod.
    pub(crate) fn add(&mut self, attachment: Attachment) -> Option<Change> {
        self.count = self.count.saturating_add(1);
        let (id, number) = (pod_of(&attachment), self.count);
        // The name of a link that is gone can be used again.
        for other in self.attached.values_mut() {
            other.attachment.links.retain(|link| !attachment.links.contains(link));
        }
        self.edit(id, |overlay, id| {
            let mut attached = Attached::new(attachment, number);
            if let Some(before) = overlay.attached.remove(id) {
                attached.replace(before);
            }
            if let Some(pod) = overlay.source.get(id).filter(|pod| attached.is_of(pod)) {
                attached.older.extend(&pod.addresses);
            }
            overlay.attached.insert(id.clone(), attached);
        })
    }

    /// Adds the attachment of a record that an earlier agent left, unless the pod has a later one.
    pub(crate) fn restore(&mut self, number: u32, line: &str) -> Option<Change> {
        let attachment = record::decode(line)?;
        self.count = self.count.max(number);
        self.edit(pod_of(&attachment), |overlay, id| {
            let attached = Attached { is_restored: true, ..Attached::new(attachment, number) };
            overlay.attached.entry(id.clone()).or_insert(attached);
        })
    }

    /// Removes the restored attachments whose pods a complete source does not have.
    pub(crate) fn drop_absent(&mut self) -> Vec<Change> {
        let has_pod = |id: &PodId, attached: &Attached| {
            self.source.get(id).is_some_and(|pod| attached.is_of(pod))
        };
        let absent = self.attached.iter().filter(|(id, one)| one.is_restored && !has_pod(id, one));
        let absent: Vec<PodId> = absent.map(|(id, _)| id.clone()).collect();
        self.attached.values_mut().for_each(|attached| attached.is_restored = false);
        self.remove_all(absent)
    }

    /// The records of all attachments, by number.
    pub(crate) fn records(&self) -> BTreeMap<u32, String> {
        let all = self.attached.values();
        all.map(|attached| (attached.number, record::encode(&attached.attachment))).collect()
    }

    /// The links to attached pods, each with the pod and its addresses.
    pub(crate) fn links(&self) -> impl Iterator<Item = (&str, &PodId, &[IpAddr])> {
        self.attached.iter().flat_map(|(id, attached)| {
            let Attachment { links, addresses, .. } = &attached.attachment;
            links.iter().map(move |link| (&**link, id, &addresses[..]))
        })
    }

    /// Forgets the links that the node no longer has.
    pub(crate) fn retain_links(&mut self, exists: impl Fn(&str) -> bool) {
        for attached in self.attached.values_mut() {
            let links = &mut attached.attachment.links;
            let before = links.len();
            links.retain(|link| exists(link));
            self.is_changed |= links.len() != before;
        }
    }

    /// Whether an attachment changed since the previous call, or may have.
    pub(crate) fn take_changed(&mut self) -> bool {
        mem::take(&mut self.is_changed)
    }

    /// A pod was read directly.
    pub(crate) fn add_read_pod(&mut self, pod: Pod) -> Option<Change> {
        let is_local = pod.node.as_ref() == Some(&self.node);
        self.edit(pod.id.clone(), |overlay, id| {
            if let Some(attached) = overlay.attached.get_mut(id)
                && attached.is_of(&pod)
                && is_local
            {
                attached.read = Some(pod);
            }
        })
    }

    /// A plugin detached an interface. A later attachment of the same pod remains.
    pub(crate) fn remove(&mut self, container: &str, interface: &str) -> Option<Change> {
        let is_it = |attached: &Attached| {
            attached.attachment.container == container && attached.attachment.interface == interface
        };
        let id = self.attached.iter().find(|(_, attached)| is_it(attached))?.0.clone();
        self.edit(id, |overlay, id| _ = overlay.attached.remove(id))
    }

    /// Removes all attachments of a network but those of these containers.
    pub(crate) fn retain(&mut self, network: &str, containers: &BTreeSet<String>) -> Vec<Change> {
        let is_gone = |attached: &Attached| {
            let Attachment { network: its, container, .. } = &attached.attachment;
            its == network && !containers.contains(container)
        };
        let gone = self.attached.iter().filter(|(_, attached)| is_gone(attached));
        let gone: Vec<PodId> = gone.map(|(id, _)| id.clone()).collect();
        self.remove_all(gone)
    }

    fn remove_all(&mut self, pods: Vec<PodId>) -> Vec<Change> {
        pods.into_iter()
            .filter_map(|id| self.edit(id, |overlay, id| _ = overlay.attached.remove(id)))
            .collect()
    }

    /// Why a pod cannot have rules yet; none if it can.
    pub(crate) fn obstacle(&self, attachment: &Attachment) -> Option<&'static str> {
        let id = pod_of(attachment);
        let read = self.attached.get(&id).and_then(|attached| attached.read.as_ref());
        let source = self.source.get(&id);
        let pod = source.filter(|pod| may_be_same(&attachment.uid, &pod.uid)).or(read);
        match (pod, source) {
            (Some(pod), _) if pod.host_network => {
                Some("according to the source it uses its node's network")
            }
            (Some(pod), _) if pod.finished => Some("according to the source it has finished"),
            (Some(_), _) => None,
            (None, Some(_)) => Some("the source still has an older pod of this name"),
            (None, None) => Some("the source does not have it on this node"),
        }
    }

    /// The pod as the engine must know it.
    fn pod(&self, id: &PodId) -> Option<Pod> {
        let source = self.source.get(id);
        let Some(attached) = self.attached.get(id) else { return source.cloned() };
        match source.filter(|pod| attached.is_of(pod)).or(attached.read.as_ref()) {
            Some(pod) if !pod.host_network && !pod.finished => Some(Pod {
                addresses: attached.attachment.addresses.clone(),
                claim: Claim::Attached(attached.number.into()),
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

    /// Edits the state of a pod. Returns the change for the engine, if its view of the pod changed.
    fn edit(&mut self, id: PodId, edit: impl FnOnce(&mut Self, &PodId)) -> Option<Change> {
        self.is_changed = true;
        let before = self.pod(&id);
        edit(self, &id);
        (self.pod(&id) != before).then(|| self.change(id))
    }

    /// Drops a pod's attachment before the source's state of the pod is replaced by `now`, if the
    /// attached pod is gone or has new addresses.
    fn drop_outdated(&mut self, id: &PodId, now: Option<&Pod>) {
        let Some(attached) = self.attached.get(id) else { return };
        let is_its = |pod: &Pod| {
            pod.uid.is_some() && pod.uid.as_deref() == attached.attachment.uid.as_deref()
        };
        let is_gone = self.source.get(id).is_some_and(is_its) && !now.is_some_and(is_its);
        let is_outdated = now.is_some_and(|pod| attached.is_of(pod) && attached.is_older(pod));
        if is_gone || is_outdated {
            self.attached.remove(id);
            self.is_changed = true;
        }
    }
}

impl Attached {
    fn new(attachment: Attachment, number: u32) -> Self {
        let older = BTreeSet::new();
        Attached { attachment, number, is_restored: false, read: None, older }
    }

    fn is_of(&self, pod: &Pod) -> bool {
        may_be_same(&self.attachment.uid, &pod.uid)
    }

    /// Whether the source's pod has an address that it did not have at the time of the attachment.
    fn is_older(&self, pod: &Pod) -> bool {
        let is_known = |a: &IpAddr| self.attachment.addresses.contains(a) || self.older.contains(a);
        !pod.addresses.iter().all(is_known)
    }

    /// Replaces an earlier attachment. Interfaces of one sandbox become one attachment, identified
    /// by the first.
    fn replace(&mut self, before: Attached) {
        let same = before.attachment.container == self.attachment.container;
        if same && before.attachment.interface != self.attachment.interface {
            let more = mem::replace(&mut self.attachment, before.attachment);
            add_new(&mut self.attachment.addresses, more.addresses);
            add_new(&mut self.attachment.links, more.links);
        } else {
            self.older.extend(before.attachment.addresses);
        }
        self.older.extend(before.older);
        self.read = before.read.filter(|pod| self.is_of(pod));
    }
}

fn add_new<T: PartialEq>(known: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !known.contains(&one) {
            known.push(one);
        }
    }
}

/// Whether two uids can be the same. An unknown uid can be any.
fn may_be_same(one: &Option<String>, other: &Option<Name>) -> bool {
    one.as_deref().zip(other.as_deref()).is_none_or(|(one, other)| one == other)
}

#[cfg(test)]
mod tests;
