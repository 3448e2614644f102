mod evaluate;
mod outcome;
mod unaccepted;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
pub use outcome::Summary;
use weir_model::{Labels, Name, NameTable, Policy, PolicyId};

use crate::{
    Interest, Merging, RemoteCluster, RemoteId, RemotePod, ShardKey,
    directory::{Directory, InterestId},
    rules,
    tracked::TrackedPolicy,
};

/// The settings of a `ClusterSet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSetOptions {
    /// The name of our own cluster. Objects in its name are not remote.
    pub cluster: Name,
    /// The networks of our own pods. A remote pod cannot have an address in them.
    pub networks: Vec<IpNet>,
    /// The only networks to trust, by cluster. If the map is empty, each cluster declares its own.
    pub accepted: BTreeMap<Name, Vec<IpNet>>,
    /// The maximum number of pods per cluster.
    pub max_pods: usize,
    /// The maximum number of namespaces per cluster.
    pub max_namespaces: usize,
    /// The maximum number of peers in a NetworkPolicy.
    pub shard_size: usize,
    /// Whether adjacent addresses are merged into networks.
    pub merging: Merging,
}

/// The policies of this cluster, the pods of all other clusters, and the NetworkPolicies that
/// result.
#[derive(Clone, Debug)]
pub struct ClusterSet {
    options: ClusterSetOptions,
    /// The clusters that are alive.
    members: BTreeMap<Name, RemoteCluster>,
    /// All received pods, by cluster, namespace and name.
    received: BTreeMap<Name, BTreeMap<(Name, Name), Arc<RemotePod>>>,
    rejected: BTreeMap<Name, BTreeMap<RemoteId, Vec<IpAddr>>>,
    /// The clusters that published more pods than the limit.
    over_pod_limit: BTreeSet<Name>,
    /// The number of accepted namespaces, by cluster.
    namespace_counts: BTreeMap<Name, usize>,
    /// The clusters that published more namespaces than the limit.
    over_namespace_limit: BTreeSet<Name>,
    names: NameTable,
    directory: Directory,
    claims: BTreeMap<IpAddr, Vec<RemoteId>>,
    policies: BTreeMap<PolicyId, TrackedPolicy>,
    users: BTreeMap<InterestId, BTreeSet<PolicyId>>,
    changed: BTreeMap<PolicyId, BTreeSet<ShardKey>>,
}

impl ClusterSet {
    /// A set without clusters and policies.
    pub fn new(options: ClusterSetOptions) -> Self {
        ClusterSet {
            options,
            members: BTreeMap::new(),
            received: BTreeMap::new(),
            rejected: BTreeMap::new(),
            over_pod_limit: BTreeSet::new(),
            namespace_counts: BTreeMap::new(),
            over_namespace_limit: BTreeSet::new(),
            names: NameTable::default(),
            directory: Directory::default(),
            claims: BTreeMap::new(),
            policies: BTreeMap::new(),
            users: BTreeMap::new(),
            changed: BTreeMap::new(),
        }
    }

    /// Adds a cluster that is alive, or removes it (`None`). Its pods are kept, and apply again
    /// when it returns.
    pub fn set_member(&mut self, cluster: &Name, member: Option<RemoteCluster>) {
        let accepted = &self.options.accepted;
        let member = if accepted.is_empty() {
            member
        } else {
            member.zip(accepted.get(cluster)).map(|(declared, accepted)| declared.within(accepted))
        };
        if *cluster == self.options.cluster || self.members.get(cluster) == member.as_ref() {
            return;
        }
        let after = member.clone();
        let before = match member {
            Some(member) => self.members.insert(cluster.clone(), member),
            None => self.members.remove(cluster),
        };
        let pods: Vec<Arc<RemotePod>> = self
            .received
            .get(cluster)
            .into_iter()
            .flat_map(|pods| pods.values().cloned())
            .collect();
        for pod in pods {
            self.admit(&pod);
        }
        // Addresses of other clusters may have entered or left its networks.
        let networks = [before, after].into_iter().flatten().flat_map(|member| member.networks);
        let mut addresses = BTreeMap::new();
        for network in networks {
            let claimed = self.claims.range(network.network()..=network.broadcast());
            addresses.extend(claimed.map(|(address, _)| (*address, BTreeSet::new())));
        }
        self.reevaluate(addresses);
    }

    /// The clusters that are alive.
    pub fn members(&self) -> &BTreeMap<Name, RemoteCluster> {
        &self.members
    }

    /// Adds or replaces a remote pod. A new pod is dropped if its cluster is at the limit.
    pub fn put_pod(&mut self, pod: RemotePod) {
        let key = (pod.id.namespace.clone(), pod.id.name.clone());
        let received = self.received.entry(pod.id.cluster.clone()).or_default();
        match received.get(&key) {
            Some(known) if **known == pod => return,
            None if received.len() >= self.options.max_pods => {
                self.over_pod_limit.insert(pod.id.cluster);
                return;
            }
            _ => (),
        }
        let pod = Arc::new(pod.with_shared_names(&mut self.names));
        let replaced =
            received.insert((pod.id.namespace.clone(), pod.id.name.clone()), pod.clone());
        if let Some(replaced) = replaced {
            self.mark_unaccepted(&replaced);
        }
        self.admit(&pod);
    }

    /// Removes a remote pod.
    pub fn remove_pod(&mut self, id: &RemoteId) {
        let mut removed = None;
        if let Some(received) = self.received.get_mut(&id.cluster) {
            removed = received.remove(&(id.namespace.clone(), id.name.clone()));
            if received.is_empty() {
                self.received.remove(&id.cluster);
            }
        }
        if let Some(pod) = removed {
            self.mark_unaccepted(&pod);
        }
        self.clear_rejected(id);
        let shift = self.directory.remove_pod(id);
        self.apply_shifts(vec![shift]);
    }

    /// The ids of the received pods.
    pub fn pods(&self) -> impl Iterator<Item = &RemoteId> {
        self.received.values().flat_map(|pods| pods.values().map(|pod| &pod.id))
    }

    /// The pods of clusters that are alive and trusted, with the addresses for which their cluster
    /// is trusted, by cluster, namespace and name. A pod has at least one such address.
    pub fn accepted_pods(&self) -> impl Iterator<Item = &RemotePod> {
        let accepted = self.pods().filter_map(|id| self.directory.pod(id));
        accepted.map(|known| &*known.pod).filter(|pod| !pod.addresses.is_empty())
    }

    /// Whether a pod was received.
    pub fn knows(&self, id: &RemoteId) -> bool {
        let received = self.received.get(&id.cluster);
        received
            .is_some_and(|received| received.contains_key(&(id.namespace.clone(), id.name.clone())))
    }

    /// The clusters that exceeded the pod limit since the last reset.
    pub fn over_pod_limit(&self) -> &BTreeSet<Name> {
        &self.over_pod_limit
    }

    /// Resets the clusters over the pod limit, before all pods are received again.
    pub fn reset_over_pod_limit(&mut self) {
        self.over_pod_limit.clear();
    }

    /// Sets the labels of a remote namespace, or removes it (`None`). A new namespace is dropped if
    /// its cluster is at the limit; then only an empty namespace selector matches it.
    pub fn set_namespace(&mut self, cluster: &Name, namespace: &Name, labels: Option<Labels>) {
        let count = self.namespace_counts.get(cluster).copied().unwrap_or_default();
        let count = match (self.knows_namespace(cluster, namespace), &labels) {
            (false, Some(_)) if count >= self.options.max_namespaces => {
                self.over_namespace_limit.insert(cluster.clone());
                return;
            }
            (false, Some(_)) => count + 1,
            (true, None) => count.saturating_sub(1),
            (true, Some(_)) | (false, None) => count,
        };
        if count == 0 {
            self.namespace_counts.remove(cluster);
        } else {
            self.namespace_counts.insert(cluster.clone(), count);
        }
        self.mark_unaccepted_in(cluster, namespace);
        let shifts = self.directory.set_labels(cluster, namespace, labels);
        self.apply_shifts(shifts);
        self.mark_unaccepted_in(cluster, namespace);
    }

    /// Whether a namespace was accepted.
    pub fn knows_namespace(&self, cluster: &Name, namespace: &Name) -> bool {
        self.directory.labels(cluster, namespace).is_some()
    }

    /// The clusters that exceeded the namespace limit since the last reset.
    pub fn over_namespace_limit(&self) -> &BTreeSet<Name> {
        &self.over_namespace_limit
    }

    /// Resets the clusters over the namespace limit, before all namespaces are received again.
    pub fn reset_over_namespace_limit(&mut self) {
        self.over_namespace_limit.clear();
    }

    /// Adds or replaces a policy of this cluster. A policy with another uid is a new policy.
    pub fn put_policy(&mut self, policy: Policy, uid: &str) {
        let id = policy.id.clone();
        let is_known =
            |known: &TrackedPolicy| known.policy.spec == policy.spec && *known.uid == *uid;
        if self.policies.get(&id).is_some_and(is_known) {
            return;
        }
        let interests: BTreeSet<Interest> = rules::interests(&policy).collect();
        let needed: BTreeSet<InterestId> = interests
            .into_iter()
            .map(|interest| match self.directory.id(&interest) {
                Some(known) => known,
                // No other policy has this interest, so its changes affect no other policy.
                None => self.directory.add_interest(interest).0,
            })
            .collect();
        // Replace the old version, and drop interests that no policy uses.
        self.remove_policy_keeping(&id, &needed);
        for interest in &needed {
            self.users.entry(*interest).or_default().insert(id.clone());
        }
        let limit = self.options.shard_size;
        let rules = rules::remote_rules(&policy, |interest| self.directory.id(interest));
        let tracked = TrackedPolicy::new(policy, uid.into(), rules, limit);
        self.policies.insert(id.clone(), tracked);
        self.changed.entry(id.clone()).or_default();
        let members = needed.iter().flat_map(|interest| self.directory.members(*interest));
        let addresses: BTreeSet<IpAddr> =
            members.flat_map(|known| known.pod.addresses.iter().copied()).collect();
        for address in addresses {
            self.evaluate(&id, address);
        }
    }

    /// Removes a policy.
    pub fn remove_policy(&mut self, id: &PolicyId) {
        self.remove_policy_keeping(id, &BTreeSet::new());
    }

    /// All policies with their uids.
    pub fn policies(&self) -> impl Iterator<Item = (&Policy, &Name)> {
        self.policies.values().map(|tracked| (&tracked.policy, &tracked.uid))
    }

    /// A policy with its uid.
    pub fn policy(&self, id: &PolicyId) -> Option<(&Policy, &Name)> {
        self.policies.get(id).map(|tracked| (&tracked.policy, &tracked.uid))
    }

    /// The interests of all policies, sorted.
    pub fn interests(&self) -> impl Iterator<Item = &Interest> {
        self.directory.interests()
    }

    /// Drains the policies that changed, with the shards that changed.
    pub fn take_changed(&mut self) -> BTreeMap<PolicyId, BTreeSet<ShardKey>> {
        std::mem::take(&mut self.changed)
    }

    /// The addresses outside of their cluster's networks or inside of ours, by cluster and pod.
    pub fn rejected(&self) -> impl Iterator<Item = (&Name, &BTreeMap<RemoteId, Vec<IpAddr>>)> {
        self.rejected.iter()
    }

    /// The pods that claim an address and whose cluster is trusted for it.
    pub fn claimants(&self, address: IpAddr) -> &[RemoteId] {
        self.claims.get(&address).map_or(&[], Vec::as_slice)
    }

    /// Stores the part of a pod for which its cluster is trusted.
    fn admit(&mut self, pod: &Arc<RemotePod>) {
        self.clear_rejected(&pod.id);
        let cluster = &pod.id.cluster;
        let member = self.members.get(cluster).filter(|_| *cluster != self.options.cluster);
        let shift = match member {
            None => self.directory.remove_pod(&pod.id),
            Some(member) => {
                let ours = |address: &IpAddr| {
                    self.options.networks.iter().any(|network| network.contains(address))
                };
                let good = |address: &&IpAddr| member.holds(**address) && !ours(address);
                let bad: Vec<IpAddr> =
                    pod.addresses.iter().filter(|address| !good(address)).copied().collect();
                if bad.is_empty() {
                    self.directory.put_pod(pod.clone())
                } else {
                    let addresses = pod.addresses.iter().filter(good).copied().collect();
                    let rejected = self.rejected.entry(cluster.clone()).or_default();
                    rejected.insert(pod.id.clone(), bad);
                    self.directory.put_pod(Arc::new(RemotePod { addresses, ..(**pod).clone() }))
                }
            }
        };
        self.apply_shifts(vec![shift]);
        self.mark_unaccepted(pod);
    }

    /// Clears the rejected addresses of a pod.
    fn clear_rejected(&mut self, id: &RemoteId) {
        let Some(rejected) = self.rejected.get_mut(&id.cluster) else { return };
        rejected.remove(id);
        if rejected.is_empty() {
            self.rejected.remove(&id.cluster);
        }
    }

    /// Removes a policy, and the interests that no policy uses any more unless they are in `kept`.
    fn remove_policy_keeping(&mut self, id: &PolicyId, kept: &BTreeSet<InterestId>) {
        let Some(tracked) = self.policies.remove(id) else { return };
        self.changed.entry(id.clone()).or_default().extend(tracked.shards());
        let had = tracked.rules.iter().flat_map(|rule| rule.peers.iter().map(|(_, id)| *id));
        for interest in had.collect::<BTreeSet<InterestId>>() {
            let Some(users) = self.users.get_mut(&interest) else { continue };
            users.remove(id);
            if users.is_empty() {
                self.users.remove(&interest);
                if !kept.contains(&interest) {
                    self.directory.remove_interest(interest);
                }
            }
        }
    }
}
