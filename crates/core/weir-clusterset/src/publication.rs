use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{Labels, Name, Namespace, Pod, PodId};

use crate::{
    Interest, RemoteId, RemotePod,
    directory::{Directory, InterestId, Shift},
    is_reserved,
};

/// The pods of this cluster, and which of them other clusters need to know.
///
/// A pod is told if it has an address of its own and some other cluster has an interest that selects it; a namespace, if a pod in it is.
/// An address is told for the youngest pod that claims it only: the others had it before.
#[derive(Clone, Debug)]
pub struct Publication {
    cluster: Name,
    directory: Directory,
    /// The pods that claim an address: when they were made, and with all addresses that they claim.
    claimants: BTreeMap<PodId, (u64, RemotePod)>,
    /// Who claims an address, the youngest last.
    claims: BTreeMap<IpAddr, BTreeSet<(u64, PodId)>>,
    /// Who has which interests.
    interests: BTreeMap<Name, BTreeSet<Interest>>,
    users: BTreeMap<Interest, (InterestId, usize)>,
    /// How many pods are told, by namespace.
    told: BTreeMap<Name, usize>,
    pods: BTreeSet<PodId>,
    namespaces: BTreeSet<Name>,
}

impl Publication {
    /// Of a cluster, about which nothing is known.
    pub fn new(cluster: Name) -> Self {
        Publication {
            cluster,
            directory: Directory::default(),
            claimants: BTreeMap::new(),
            claims: BTreeMap::new(),
            interests: BTreeMap::new(),
            users: BTreeMap::new(),
            told: BTreeMap::new(),
            pods: BTreeSet::new(),
            namespaces: BTreeSet::new(),
        }
    }

    /// A pod of this cluster is as given.
    pub fn put_pod(&mut self, pod: &Pod) {
        let mut touched = self.unclaim(&pod.id);
        // Without an address of its own there is nothing to tell: not started, finished, or on its node's network.
        let addresses = pod.own_addresses().to_vec();
        if !addresses.is_empty() {
            for address in &addresses {
                let claims = self.claims.entry(*address).or_default();
                touched.extend(claims.last().map(|(_, id)| id.clone()));
                claims.insert((pod.born, pod.id.clone()));
            }
            let (id, labels, ports) =
                (self.remote(&pod.id), travelling(&pod.labels), pod.ports.clone());
            let claimant = (pod.born, RemotePod { id, labels, addresses, ports });
            self.claimants.insert(pod.id.clone(), claimant);
        }
        touched.insert(pod.id.clone());
        self.settle(touched);
    }

    /// A pod of this cluster is gone.
    pub fn remove_pod(&mut self, id: &PodId) {
        let mut touched = self.unclaim(id);
        touched.insert(id.clone());
        self.settle(touched);
    }

    /// A namespace of this cluster is as given.
    pub fn put_namespace(&mut self, namespace: &Namespace) {
        self.label(&namespace.name, Some(travelling(&namespace.labels)));
    }

    /// A namespace of this cluster is gone.
    pub fn remove_namespace(&mut self, name: &Name) {
        self.label(name, None);
    }

    /// Another cluster has these interests, and no others.
    pub fn interests(&mut self, cluster: &Name, interests: BTreeSet<Interest>) {
        let before = match interests.is_empty() {
            true => self.interests.remove(cluster),
            false => self.interests.insert(cluster.clone(), interests.clone()),
        };
        let before = before.unwrap_or_default();
        for new in interests.difference(&before) {
            match self.users.get_mut(new) {
                Some((_, count)) => *count += 1,
                None => {
                    let (id, shifts) = self.directory.add(new.clone());
                    self.users.insert(new.clone(), (id, 1));
                    self.note(shifts);
                }
            }
        }
        for old in before.difference(&interests) {
            let Some((id, count)) = self.users.get_mut(old) else { continue };
            *count -= 1;
            if *count == 0 {
                let id = *id;
                self.users.remove(old);
                let shifts = self.directory.drop_interest(id);
                self.note(shifts);
            }
        }
    }

    /// The pods, and the namespaces, of which something else is to be told than when this was last asked.
    pub fn touched(&mut self) -> (BTreeSet<PodId>, BTreeSet<Name>) {
        (std::mem::take(&mut self.pods), std::mem::take(&mut self.namespaces))
    }

    /// What is told about a pod.
    pub fn pod(&self, id: &PodId) -> Option<&RemotePod> {
        let known = self.directory.pod(&self.remote(id))?;
        (!known.interests.is_empty()).then_some(&known.pod)
    }

    /// What is told about a namespace.
    pub fn namespace(&self, name: &Name) -> Option<&Labels> {
        self.told.get(name)?;
        self.directory.labels(&self.cluster, name)
    }

    /// The namespaces that are told.
    pub fn namespaces(&self) -> impl Iterator<Item = &Name> {
        self.told.keys()
    }

    /// The pods of a namespace that are told.
    pub fn pods_of(&self, namespace: &Name) -> impl Iterator<Item = &RemotePod> {
        let pods = self.directory.pods_of(&self.cluster, namespace);
        pods.filter(|known| !known.interests.is_empty()).map(|known| &*known.pod)
    }

    /// Forgets the claims of a pod; returns who has its addresses now.
    fn unclaim(&mut self, id: &PodId) -> BTreeSet<PodId> {
        let Some((born, pod)) = self.claimants.remove(id) else { return BTreeSet::new() };
        let mut heirs = BTreeSet::new();
        for address in &pod.addresses {
            let Some(claims) = self.claims.get_mut(address) else { continue };
            claims.remove(&(born, id.clone()));
            heirs.extend(claims.last().map(|(_, id)| id.clone()));
            if claims.is_empty() {
                self.claims.remove(address);
            }
        }
        heirs
    }

    /// Works out which addresses pods have.
    fn settle(&mut self, pods: BTreeSet<PodId>) {
        for id in pods {
            let pod = self.claimants.get(&id).map(|(_, pod)| pod);
            let has = |address: &&IpAddr| {
                let claims = self.claims.get(*address);
                claims.and_then(BTreeSet::last).is_some_and(|(_, owner)| *owner == id)
            };
            let addresses: Vec<IpAddr> =
                pod.iter().flat_map(|pod| pod.addresses.iter().filter(has)).copied().collect();
            let shift = match pod.filter(|_| !addresses.is_empty()) {
                Some(pod) => {
                    self.directory.put_pod(Arc::new(RemotePod { addresses, ..pod.clone() }))
                }
                None => self.directory.remove_pod(&self.remote(&id)),
            };
            self.note(vec![shift]);
        }
    }

    fn label(&mut self, name: &Name, labels: Option<Labels>) {
        if self.directory.labels(&self.cluster, name) != labels.as_ref() {
            self.namespaces.insert(name.clone());
        }
        let shifts = self.directory.label(&self.cluster.clone(), name, labels);
        self.note(shifts);
    }

    fn note(&mut self, shifts: Vec<Shift>) {
        for Shift { before, after } in shifts {
            let told = |known: Option<crate::directory::Known>| {
                known.filter(|known| !known.interests.is_empty()).map(|known| known.pod)
            };
            let (before, after) = (told(before), told(after));
            if before == after {
                continue;
            }
            let Some(id) = before.as_ref().or(after.as_ref()).map(|pod| pod.id.clone()) else {
                continue;
            };
            self.pods.insert(PodId { namespace: id.namespace.clone(), name: id.name });
            let count = self.told.entry(id.namespace.clone()).or_default();
            *count += usize::from(after.is_some());
            *count -= usize::from(before.is_some());
            let is_none = *count == 0;
            if is_none {
                self.told.remove(&id.namespace);
            }
            if before.is_some() != after.is_some() {
                self.namespaces.insert(id.namespace);
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

/// The labels that are told: all but those that belong to the exchange itself, which a pod could forge.
fn travelling(labels: &Labels) -> Labels {
    labels.iter().filter(|(key, _)| !is_reserved(key)).cloned().collect()
}
