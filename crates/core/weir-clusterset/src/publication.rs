use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{Claim, Labels, Name, Namespace, Pod, PodId, Selector};

use crate::{
    Interest, RemoteId, RemotePod,
    directory::{Directory, InterestId, KnownPod, Shift},
    interest::holds,
    is_reserved,
};

/// The pods of this cluster, and which of them are published to other clusters.
///
/// A pod is published if it owns an address, an interest of another cluster selects it, and the
/// owner of this cluster allows it for the namespace. A namespace is published if one of its pods
/// is. If several pods claim an address, it is published for the one with the strongest claim, or
/// for none if several claims are equally strong.
#[derive(Clone, Debug)]
pub struct Publication {
    cluster: Name,
    /// Selects the namespaces whose pods may be published.
    publishable: Selector,
    /// The namespaces that `publishable` selects.
    allowed: BTreeSet<Name>,
    directory: Directory,
    /// The pods that claim addresses: its claim, and the pod with all addresses that it claims.
    claimants: BTreeMap<PodId, (Claim, RemotePod)>,
    /// The pods that claim an address, the strongest claim last.
    claims: BTreeMap<IpAddr, BTreeSet<(Claim, PodId)>>,
    /// The interests of each other cluster.
    interests: BTreeMap<Name, BTreeSet<Interest>>,
    users: BTreeMap<Interest, (InterestId, usize)>,
    /// The number of published pods, by namespace.
    published: BTreeMap<Name, usize>,
    changed_pods: BTreeSet<PodId>,
    changed_namespaces: BTreeSet<Name>,
}

impl Publication {
    /// The publication of a cluster without any objects. Only pods in namespaces that `publishable`
    /// selects are published. While the labels of a namespace are unknown, only the empty selector
    /// selects it.
    pub fn new(cluster: Name, publishable: Selector) -> Self {
        Publication {
            cluster,
            publishable,
            allowed: BTreeSet::new(),
            directory: Directory::default(),
            claimants: BTreeMap::new(),
            claims: BTreeMap::new(),
            interests: BTreeMap::new(),
            users: BTreeMap::new(),
            published: BTreeMap::new(),
            changed_pods: BTreeSet::new(),
            changed_namespaces: BTreeSet::new(),
        }
    }

    /// Adds or replaces a pod of this cluster.
    pub fn put_pod(&mut self, pod: &Pod) {
        let mut touched = self.release_claims(&pod.id);
        // A pod without an address of its own is not published: it has not started, has ended, or
        // uses the host network.
        let addresses = pod.own_addresses().to_vec();
        if !addresses.is_empty() {
            for address in &addresses {
                let claims = self.claims.entry(*address).or_default();
                touched.extend(claims.last().map(|(_, id)| id.clone()));
                claims.insert((pod.claim, pod.id.clone()));
            }
            let (id, labels, ports) =
                (self.remote(&pod.id), without_reserved(&pod.labels), pod.ports.clone());
            let claimant = (pod.claim, RemotePod { id, labels, addresses, ports });
            self.claimants.insert(pod.id.clone(), claimant);
        }
        touched.insert(pod.id.clone());
        self.update_addresses(touched);
    }

    /// Removes a pod of this cluster.
    pub fn remove_pod(&mut self, id: &PodId) {
        let mut touched = self.release_claims(id);
        touched.insert(id.clone());
        self.update_addresses(touched);
    }

    /// Adds or replaces a namespace of this cluster.
    pub fn put_namespace(&mut self, namespace: &Namespace) {
        let (name, labels) = (&namespace.name, Some(without_reserved(&namespace.labels)));
        if holds(&self.publishable, &namespace.labels) {
            self.update_labels(name, labels);
            self.allow(name);
        } else {
            self.disallow(name);
            self.update_labels(name, labels);
        }
    }

    /// Removes a namespace of this cluster.
    pub fn remove_namespace(&mut self, name: &Name) {
        self.disallow(name);
        self.update_labels(name, None);
    }

    /// Replaces the interests of another cluster.
    pub fn set_interests(&mut self, cluster: &Name, interests: BTreeSet<Interest>) {
        let before = if interests.is_empty() {
            self.interests.remove(cluster)
        } else {
            self.interests.insert(cluster.clone(), interests.clone())
        };
        let before = before.unwrap_or_default();
        for new in interests.difference(&before) {
            match self.users.get_mut(new) {
                Some((_, count)) => *count += 1,
                None => {
                    let (id, shifts) = self.directory.add_interest(new.clone());
                    self.users.insert(new.clone(), (id, 1));
                    self.record_shifts(shifts);
                }
            }
        }
        for old in before.difference(&interests) {
            let Some((id, count)) = self.users.get_mut(old) else { continue };
            *count -= 1;
            if *count == 0 {
                let id = *id;
                self.users.remove(old);
                let shifts = self.directory.remove_interest(id);
                self.record_shifts(shifts);
            }
        }
    }

    /// Drains the pods and namespaces whose published form changed.
    pub fn take_changed(&mut self) -> (BTreeSet<PodId>, BTreeSet<Name>) {
        (std::mem::take(&mut self.changed_pods), std::mem::take(&mut self.changed_namespaces))
    }

    /// The published form of a pod; `None` if it is not published.
    pub fn pod(&self, id: &PodId) -> Option<&RemotePod> {
        let known = self.directory.pod(&self.remote(id))?;
        self.is_published(known).then_some(&known.pod)
    }

    /// The published labels of a namespace; `None` if it is not published.
    pub fn namespace(&self, name: &Name) -> Option<&Labels> {
        self.published.get(name)?;
        self.directory.labels(&self.cluster, name)
    }

    /// The published namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &Name> {
        self.published.keys()
    }

    /// The published pods of a namespace.
    pub fn pods_of(&self, namespace: &Name) -> impl Iterator<Item = &RemotePod> {
        let pods = self.directory.pods_of(&self.cluster, namespace);
        pods.filter(|known| self.is_published(known)).map(|known| &*known.pod)
    }

    fn is_published(&self, known: &KnownPod) -> bool {
        let namespace = &known.pod.id.namespace;
        !known.interests.is_empty()
            && (self.publishable.is_everything() || self.allowed.contains(namespace))
    }

    /// Publishes the pods of a namespace from now on.
    fn allow(&mut self, namespace: &Name) {
        if !self.publishable.is_everything() && self.allowed.insert(namespace.clone()) {
            let pods = self.published_pods(namespace);
            if !pods.is_empty() {
                self.published.insert(namespace.clone(), pods.len());
                self.changed_pods.extend(pods);
                self.changed_namespaces.insert(namespace.clone());
            }
        }
    }

    /// Publishes no pod of a namespace any more.
    fn disallow(&mut self, namespace: &Name) {
        let pods = self.published_pods(namespace);
        if self.allowed.remove(namespace) && !pods.is_empty() {
            self.published.remove(namespace);
            self.changed_pods.extend(pods);
            self.changed_namespaces.insert(namespace.clone());
        }
    }

    fn published_pods(&self, namespace: &Name) -> Vec<PodId> {
        let id =
            |pod: &RemotePod| PodId { namespace: namespace.clone(), name: pod.id.name.clone() };
        self.pods_of(namespace).map(id).collect()
    }

    /// Removes the claims of a pod and returns the new owners of its addresses.
    fn release_claims(&mut self, id: &PodId) -> BTreeSet<PodId> {
        let Some((claim, pod)) = self.claimants.remove(id) else { return BTreeSet::new() };
        let mut heirs = BTreeSet::new();
        for address in &pod.addresses {
            let Some(claims) = self.claims.get_mut(address) else { continue };
            claims.remove(&(claim, id.clone()));
            heirs.extend(claims.last().map(|(_, id)| id.clone()));
            if claims.is_empty() {
                self.claims.remove(address);
            }
        }
        heirs
    }

    /// Recomputes which addresses these pods own.
    fn update_addresses(&mut self, pods: BTreeSet<PodId>) {
        for id in pods {
            let pod = self.claimants.get(&id).map(|(_, pod)| pod);
            let has = |address: &&IpAddr| {
                let mut claims = self.claims.get(*address).into_iter().flatten().rev();
                let (strongest, next) = (claims.next(), claims.next());
                strongest.is_some_and(|(claim, owner)| {
                    *owner == id && next.is_none_or(|(weaker, _)| weaker < claim)
                })
            };
            let addresses: Vec<IpAddr> =
                pod.iter().flat_map(|pod| pod.addresses.iter().filter(has)).copied().collect();
            let shift = match pod.filter(|_| !addresses.is_empty()) {
                Some(pod) => {
                    self.directory.put_pod(Arc::new(RemotePod { addresses, ..pod.clone() }))
                }
                None => self.directory.remove_pod(&self.remote(&id)),
            };
            self.record_shifts(vec![shift]);
        }
    }

    fn update_labels(&mut self, name: &Name, labels: Option<Labels>) {
        if self.directory.labels(&self.cluster, name) != labels.as_ref() {
            self.changed_namespaces.insert(name.clone());
        }
        let shifts = self.directory.set_labels(&self.cluster.clone(), name, labels);
        self.record_shifts(shifts);
    }

    fn record_shifts(&mut self, shifts: Vec<Shift>) {
        for Shift { before, after } in shifts {
            let published = |known: Option<KnownPod>| {
                known.filter(|known| self.is_published(known)).map(|known| known.pod)
            };
            let (before, after) = (published(before), published(after));
            if before == after {
                continue;
            }
            let Some(id) = before.as_ref().or(after.as_ref()).map(|pod| pod.id.clone()) else {
                continue;
            };
            self.changed_pods.insert(PodId { namespace: id.namespace.clone(), name: id.name });
            let count = self.published.entry(id.namespace.clone()).or_default();
            *count += usize::from(after.is_some());
            *count -= usize::from(before.is_some());
            let is_none = *count == 0;
            if is_none {
                self.published.remove(&id.namespace);
            }
            if before.is_some() != after.is_some() {
                self.changed_namespaces.insert(id.namespace);
            }
        }
    }

    fn remote(&self, id: &PodId) -> RemoteId {
        RemoteId {
            namespace: id.namespace.clone(),
            cluster: self.cluster.clone(),
            name: id.name.clone(),
        }
    }
}

/// The labels to publish: all except the reserved ones, which a pod could forge.
fn without_reserved(labels: &Labels) -> Labels {
    labels.iter().filter(|(key, _)| !is_reserved(key)).cloned().collect()
}
