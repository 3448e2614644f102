//! The objects of other clusters on the broker.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weir_clusterset::{ClusterSet, Liveness, NetworkLimits, RemoteId, RemotePod};
use weir_kube::{Item, ObjectEvent};
use weir_model::Name;

use crate::{
    clusterset::{
        BrokerContact, BrokerView, ClusterSetSettings, RemoteClusters,
        wire::{self, ClusterMember, MAX_INTERESTS, RemoteNamespace},
    },
    sync::{Followed, ListState},
};

/// At most this many invalid objects are named in warnings.
const MAX_INVALID_SHOWN: usize = 3;

/// The observed objects of the broker, apart from the pods and namespaces in the `ClusterSet`.
#[derive(Default)]
pub(super) struct BrokerObjects {
    network_limits: NetworkLimits,
    pub(super) pods_sync: ListState,
    pub(super) namespaces_sync: ListState,
    pub(super) members_sync: ListState,
    pub(super) view: BrokerView,
    /// The time of the last contact with the broker, if it is unreachable.
    pub(super) lost_since: Option<String>,
    /// The pods of RemotePods whose names do not contain the id.
    strays: BTreeMap<String, RemoteId>,
    /// The cluster and the namespace of each RemoteNamespace.
    namespaces: BTreeMap<String, (Name, Name)>,
    members: BTreeMap<String, ClusterMember>,
    /// Why RemotePods are invalid.
    invalid_pods: BTreeMap<String, String>,
    /// Why ClusterSetMembers are invalid.
    invalid_members: BTreeMap<String, String>,
}

impl BrokerObjects {
    pub(super) fn new(network_limits: NetworkLimits) -> Self {
        BrokerObjects { network_limits, ..BrokerObjects::default() }
    }

    /// Whether the broker is listed, and the id of this cluster is its own.
    pub(super) fn is_synced(&self) -> bool {
        self.pods_sync.is_in_sync()
            && self.namespaces_sync.is_in_sync()
            && self.members_sync.is_in_sync()
            && self.clusters().is_some()
    }

    /// The other clusters with a lease, if they are known.
    pub(super) fn clusters(&self) -> Option<&RemoteClusters> {
        match &self.view {
            BrokerView::Clusters(clusters) => Some(clusters),
            BrokerView::Unknown | BrokerView::Disowned(_) => None,
        }
    }

    pub(super) fn has_member(&self, cluster: &str) -> bool {
        self.members.contains_key(cluster)
    }

    /// Applies a new view of the clusters. Returns whether it differs from the last one.
    pub(super) fn apply_contact(&mut self, set: &mut ClusterSet, contact: BrokerContact) -> bool {
        let BrokerContact { view, lost_since } = contact;
        let is_new = self.view != view || self.lost_since != lost_since;
        (self.view, self.lost_since) = (view, lost_since);
        let clusters = self.clusters().into_iter().flat_map(BTreeMap::keys);
        let clusters: BTreeSet<Name> = set.members().keys().chain(clusters).cloned().collect();
        clusters.iter().for_each(|cluster| self.admit(set, cluster));
        is_new
    }

    pub(super) fn apply_pods(
        &mut self,
        set: &mut ClusterSet,
        event: ObjectEvent<Result<RemotePod, String>>,
    ) {
        self.pods_sync.observe(&event);
        match event {
            ObjectEvent::Listed { items, .. } => {
                let listed = items.iter().filter_map(|item| item.as_ref().ok());
                let listed: BTreeSet<&RemoteId> = listed.map(|pod| &pod.id).collect();
                let gone = set.pods().filter(|id| !listed.contains(id));
                let gone: Vec<RemoteId> = gone.cloned().collect();
                gone.iter().for_each(|id| set.remove_pod(id));
                self.strays.clear();
                self.invalid_pods.clear();
                set.reset_over_pod_limit();
                items.into_iter().for_each(|item| self.put_pod(set, item));
            }
            ObjectEvent::Put(item) => self.put_pod(set, item),
            ObjectEvent::Removed(revision) => self.remove_pod(set, &revision.id.name),
            ObjectEvent::Available | ObjectEvent::Unavailable(_) => (),
        }
    }

    fn put_pod(&mut self, set: &mut ClusterSet, item: Item<Result<RemotePod, String>>) {
        let name = item.revision.id.name;
        match item.value {
            Ok(pod) => {
                self.invalid_pods.remove(&name);
                // The object may have described another pod before.
                if let Some(before) = self.pod_of(set, &name).filter(|before| *before != pod.id) {
                    set.remove_pod(&before);
                }
                if wire::remote_name(&pod.id) == name {
                    self.strays.remove(&name);
                } else {
                    self.strays.insert(name, pod.id.clone());
                }
                set.put_pod(pod);
            }
            Err(error) => {
                self.remove_pod(set, &name);
                self.invalid_pods.insert(name, error);
            }
        }
    }

    fn remove_pod(&mut self, set: &mut ClusterSet, name: &str) {
        self.invalid_pods.remove(name);
        if let Some(id) = self.pod_of(set, name) {
            self.strays.remove(name);
            set.remove_pod(&id);
        }
    }

    /// The pod that a RemotePod described so far.
    fn pod_of(&self, set: &ClusterSet, name: &str) -> Option<RemoteId> {
        match self.strays.get(name) {
            Some(id) => Some(id.clone()),
            None => wire::remote_id(name).filter(|id| set.knows(id)),
        }
    }

    pub(super) fn apply_namespaces(
        &mut self,
        set: &mut ClusterSet,
        event: ObjectEvent<Result<RemoteNamespace, String>>,
    ) {
        self.namespaces_sync.observe(&event);
        match event {
            ObjectEvent::Listed { items, .. } => {
                let listed: BTreeSet<&str> = items.iter().map(|item| &*item.id().name).collect();
                let gone: Vec<String> = self
                    .namespaces
                    .keys()
                    .filter(|name| !listed.contains(name.as_str()))
                    .cloned()
                    .collect();
                gone.iter().for_each(|name| self.remove_namespace(set, name));
                set.reset_over_namespace_limit();
                items.into_iter().for_each(|item| self.put_namespace(set, item));
            }
            ObjectEvent::Put(item) => self.put_namespace(set, item),
            ObjectEvent::Removed(revision) => self.remove_namespace(set, &revision.id.name),
            ObjectEvent::Available | ObjectEvent::Unavailable(_) => (),
        }
    }

    fn put_namespace(&mut self, set: &mut ClusterSet, item: Item<Result<RemoteNamespace, String>>) {
        let name = item.revision.id.name;
        let Ok(RemoteNamespace { cluster, name: namespace, labels }) = item.value else {
            return self.remove_namespace(set, &name);
        };
        // The object may have described another namespace before.
        let now = (cluster.clone(), namespace.clone());
        if self.namespaces.get(&name).is_some_and(|before| *before != now) {
            self.remove_namespace(set, &name);
        }
        set.set_namespace(&cluster, &namespace, Some(labels));
        if set.knows_namespace(&cluster, &namespace) {
            self.namespaces.insert(name, now);
        }
    }

    fn remove_namespace(&mut self, set: &mut ClusterSet, name: &str) {
        if let Some((cluster, namespace)) = self.namespaces.remove(name) {
            set.set_namespace(&cluster, &namespace, None);
        }
    }

    pub(super) fn apply_members(
        &mut self,
        set: &mut ClusterSet,
        event: ObjectEvent<Result<ClusterMember, String>>,
    ) {
        self.members_sync.observe(&event);
        let mut touched: BTreeSet<String> = BTreeSet::new();
        match event {
            ObjectEvent::Listed { items, .. } => {
                touched.extend(std::mem::take(&mut self.members).into_keys());
                self.invalid_members.clear();
                touched.extend(items.iter().map(|item| item.id().name.clone()));
                items.into_iter().for_each(|item| self.put_member(item));
            }
            ObjectEvent::Put(item) => {
                touched.insert(item.id().name.clone());
                self.put_member(item);
            }
            ObjectEvent::Removed(revision) => {
                let name = revision.id.name;
                self.members.remove(&name);
                self.invalid_members.remove(&name);
                touched.insert(name);
            }
            ObjectEvent::Available | ObjectEvent::Unavailable(_) => (),
        }
        for cluster in touched {
            self.admit(set, &cluster.as_str().into());
        }
    }

    fn put_member(&mut self, item: Item<Result<ClusterMember, String>>) {
        let name = item.revision.id.name;
        let checked = item.value.and_then(|member| {
            member.check(self.network_limits)?;
            Ok(member)
        });
        match checked {
            Ok(member) => {
                self.invalid_members.remove(&name);
                self.members.insert(name, member);
            }
            Err(error) => {
                self.members.remove(&name);
                self.invalid_members.insert(name, error);
            }
        }
    }

    /// Admits a cluster to the set if it declares its networks, its lease is valid, and both have
    /// the same holder.
    fn admit(&self, set: &mut ClusterSet, cluster: &Name) {
        let Some(clusters) = self.clusters() else { return };
        let member = self.members.get(&**cluster).filter(|member| {
            clusters
                .get(cluster)
                .is_some_and(|(uid, life)| *uid == member.uid && *life != Liveness::Expired)
        });
        set.set_member(cluster, member.map(|member| member.member.clone()));
    }

    /// Warnings about the mistakes of other clusters.
    pub(super) fn warnings(&self, set: &ClusterSet, settings: &ClusterSetSettings) -> Vec<String> {
        let ClusterSetSettings { accepted, pods, namespaces, .. } = settings;
        let invalid = |kind, names: &BTreeMap<String, String>| -> Vec<String> {
            let lines = names.iter().take(MAX_INVALID_SHOWN);
            lines.map(|(name, error)| format!("ignored {kind} {name}: {error}")).collect()
        };
        let mut warnings = invalid("ClusterSetMember", &self.invalid_members);
        warnings.extend(invalid("RemotePod", &self.invalid_pods));
        warnings.truncate(MAX_INVALID_SHOWN);
        if accepted.is_empty() {
            warnings.push(
                "without --member-cidr, each cluster of the set is trusted about its own networks"
                    .into(),
            );
        }
        for (name, member) in &self.members {
            if member.ignored_interests > 0 {
                warnings.push(format!(
                    "ignored {} interests of ClusterSetMember {name}: there are more than \
                     {MAX_INTERESTS}, or they are too large; the pods that only they select are \
                     not published",
                    member.ignored_interests
                ));
            }
        }
        for (name, member) in &self.members {
            let cluster = &member.cluster;
            if accepted.is_empty() || *cluster == settings.cluster {
                continue;
            }
            let Some(trusted) = accepted.get(cluster) else {
                warnings.push(format!("ignored ClusterSetMember {name}: it has no --member-cidr"));
                continue;
            };
            let is_trusted = |one: &&IpNet| trusted.iter().any(|other| other.contains(*one));
            if let Some(network) = member.member.networks.iter().find(|one| !is_trusted(one)) {
                warnings.push(format!(
                    "ClusterSetMember {name} declares the pod network {network}; only addresses \
                     inside its --member-cidr are allowed"
                ));
            }
        }
        for (cluster, (_, life)) in self.clusters().into_iter().flatten() {
            if *life == Liveness::Expired {
                warnings.push(format!(
                    "cluster {cluster} has not renewed its lease for {} s; its pods are not allowed \
                     until it does",
                    settings.expiry.as_secs()
                ));
            }
        }
        for (cluster, pods) in set.rejected() {
            let Some((id, addresses)) = pods.first_key_value() else { continue };
            let address = addresses.first().map(ToString::to_string).unwrap_or_default();
            warnings.push(format!(
                "cluster {cluster} publishes {} pods with addresses outside of its networks or \
                 inside of ours, for example {}/{} at {address}; they are rejected",
                pods.len(),
                id.namespace,
                id.name
            ));
        }
        let over_pod_limit = set.over_pod_limit().iter().map(|cluster| {
            format!(
                "cluster {cluster} publishes more than {pods} pods; the rest is not allowed \
                until this controller restarts with a higher --member-pods"
            )
        });
        warnings.extend(over_pod_limit);
        let over_namespace_limit = set.over_namespace_limit().iter().map(|cluster| {
            format!(
                "cluster {cluster} publishes more than {namespaces} namespaces; policies \
                that select namespaces by label do not allow pods of the rest until this \
                controller restarts with a higher --member-namespaces"
            )
        });
        warnings.extend(over_namespace_limit);
        warnings
    }
}
