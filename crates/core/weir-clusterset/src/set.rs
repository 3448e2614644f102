mod judge;
mod outcome;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
pub use outcome::Summary;
use weir_model::{Labels, Name, Policy, PolicyId};

use crate::{
    Interest, Member, Merging, RemoteId, RemotePod, ShardKey,
    directory::{Directory, InterestId},
    names::Names,
    rules,
    tracked::Tracked,
};

/// Who we are, and how to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Our own cluster. Nothing that is told in its name is taken for remote.
    pub cluster: Name,
    /// The networks of our own pods. An address in them is never a remote pod's.
    pub networks: Vec<IpNet>,
    /// The networks that we accept of each other cluster, whatever it says; if there are none, those that it says.
    pub accepted: BTreeMap<Name, Vec<IpNet>>,
    /// How many pods of a cluster are taken, at most.
    pub pods: usize,
    /// How many namespaces of a cluster are taken, at most.
    pub namespaces: usize,
    /// How many peers a NetworkPolicy may have.
    pub shard: usize,
    /// Whether addresses next to each other are written as one network.
    pub merging: Merging,
}

/// The policies of this cluster and the pods of all others, and what follows.
#[derive(Clone, Debug)]
pub struct ClusterSet {
    options: Options,
    /// Clusters that are alive.
    members: BTreeMap<Name, Member>,
    /// Everything that was told, by cluster, namespace and name.
    told: BTreeMap<Name, BTreeMap<(Name, Name), Arc<RemotePod>>>,
    refused: BTreeMap<Name, BTreeMap<RemoteId, Vec<IpAddr>>>,
    /// Clusters that told more pods than are taken.
    crowded: BTreeSet<Name>,
    /// How many namespaces of each cluster were taken.
    spaces: BTreeMap<Name, usize>,
    /// Clusters that told more namespaces than are taken.
    sprawling: BTreeSet<Name>,
    names: Names,
    directory: Directory,
    claims: BTreeMap<IpAddr, Vec<RemoteId>>,
    policies: BTreeMap<PolicyId, Tracked>,
    users: BTreeMap<InterestId, BTreeSet<PolicyId>>,
    touched: BTreeMap<PolicyId, BTreeSet<ShardKey>>,
}

impl ClusterSet {
    /// A set of which nothing is known.
    pub fn new(options: Options) -> Self {
        ClusterSet {
            options,
            members: BTreeMap::new(),
            told: BTreeMap::new(),
            refused: BTreeMap::new(),
            crowded: BTreeSet::new(),
            spaces: BTreeMap::new(),
            sprawling: BTreeSet::new(),
            names: Names::default(),
            directory: Directory::default(),
            claims: BTreeMap::new(),
            policies: BTreeMap::new(),
            users: BTreeMap::new(),
            touched: BTreeMap::new(),
        }
    }

    /// A cluster is alive; `None` if it is not, or not any more. What it told stays, and counts again when it is back.
    pub fn member(&mut self, cluster: &Name, member: Option<Member>) {
        let accepted = &self.options.accepted;
        let member = match accepted.is_empty() {
            true => member,
            false => member.zip(accepted.get(cluster)).map(|(said, here)| said.within(here)),
        };
        if *cluster == self.options.cluster || self.members.get(cluster) == member.as_ref() {
            return;
        }
        let after = member.clone();
        let before = match member {
            Some(member) => self.members.insert(cluster.clone(), member),
            None => self.members.remove(cluster),
        };
        let pods: Vec<Arc<RemotePod>> =
            self.told.get(cluster).into_iter().flat_map(|pods| pods.values().cloned()).collect();
        for pod in pods {
            self.admit(&pod);
        }
        // What others tell may be in its networks, or no longer.
        let networks = [before, after].into_iter().flatten().flat_map(|member| member.networks);
        let mut asked = BTreeMap::new();
        for network in networks {
            let claimed = self.claims.range(network.network()..=network.broadcast());
            asked.extend(claimed.map(|(address, _)| (*address, BTreeSet::new())));
        }
        self.weigh(asked);
    }

    /// The clusters that are alive.
    pub fn members(&self) -> &BTreeMap<Name, Member> {
        &self.members
    }

    /// A remote pod is as given. One that is new is not taken if its cluster has told too many.
    pub fn put_pod(&mut self, pod: RemotePod) {
        let key = (pod.id.namespace.clone(), pod.id.name.clone());
        let told = self.told.entry(pod.id.cluster.clone()).or_default();
        match told.get(&key) {
            Some(known) if **known == pod => return,
            None if told.len() >= self.options.pods => {
                self.crowded.insert(pod.id.cluster);
                return;
            }
            _ => (),
        }
        let pod = Arc::new(self.names.share(pod));
        told.insert((pod.id.namespace.clone(), pod.id.name.clone()), pod.clone());
        self.admit(&pod);
    }

    /// A remote pod is gone.
    pub fn remove_pod(&mut self, id: &RemoteId) {
        if let Some(told) = self.told.get_mut(&id.cluster) {
            told.remove(&(id.namespace.clone(), id.name.clone()));
            if told.is_empty() {
                self.told.remove(&id.cluster);
            }
        }
        self.forgive(id);
        let shift = self.directory.remove_pod(id);
        self.settle(vec![shift]);
    }

    /// The pods that were told and taken.
    pub fn pods(&self) -> impl Iterator<Item = &RemoteId> {
        self.told.values().flat_map(|pods| pods.values().map(|pod| &pod.id))
    }

    /// Whether a pod was told and taken.
    pub fn knows(&self, id: &RemoteId) -> bool {
        let told = self.told.get(&id.cluster);
        told.is_some_and(|told| told.contains_key(&(id.namespace.clone(), id.name.clone())))
    }

    /// The clusters that told more pods than are taken, since this was last forgotten.
    pub fn crowded(&self) -> &BTreeSet<Name> {
        &self.crowded
    }

    /// Forgets which clusters told too many pods: all pods will be told again.
    pub fn forget_crowded(&mut self) {
        self.crowded.clear();
    }

    /// A remote namespace has these labels; `None` if it is gone. One that is new is not taken if its cluster has told too many: nothing is known of
    /// it, and no selector holds for it but that of all.
    pub fn namespace(&mut self, cluster: &Name, namespace: &Name, labels: Option<Labels>) {
        let count = self.spaces.get(cluster).copied().unwrap_or_default();
        let count = match (self.knows_namespace(cluster, namespace), &labels) {
            (false, Some(_)) if count >= self.options.namespaces => {
                self.sprawling.insert(cluster.clone());
                return;
            }
            (false, Some(_)) => count + 1,
            (true, None) => count.saturating_sub(1),
            (true, Some(_)) | (false, None) => count,
        };
        match count {
            0 => drop(self.spaces.remove(cluster)),
            count => drop(self.spaces.insert(cluster.clone(), count)),
        }
        let shifts = self.directory.label(cluster, namespace, labels);
        self.settle(shifts);
    }

    /// Whether a namespace was told and taken.
    pub fn knows_namespace(&self, cluster: &Name, namespace: &Name) -> bool {
        self.directory.labels(cluster, namespace).is_some()
    }

    /// The clusters that told more namespaces than are taken, since this was last forgotten.
    pub fn sprawling(&self) -> &BTreeSet<Name> {
        &self.sprawling
    }

    /// Forgets which clusters told too many namespaces: all namespaces will be told again.
    pub fn forget_sprawling(&mut self) {
        self.sprawling.clear();
    }

    /// A policy of this cluster is as given. Another uid makes it another policy.
    pub fn put_policy(&mut self, policy: Policy, uid: &str) {
        let id = policy.id.clone();
        let is_known = |known: &Tracked| known.policy.spec == policy.spec && *known.uid == *uid;
        if self.policies.get(&id).is_some_and(is_known) {
            return;
        }
        let wanted: BTreeSet<Interest> = rules::interests(&policy).collect();
        let mine: BTreeSet<InterestId> = wanted
            .into_iter()
            .map(|interest| match self.directory.id(&interest) {
                Some(known) => known,
                // Nobody but this policy asks for it, so nothing else follows.
                None => self.directory.add(interest).0,
            })
            .collect();
        // From here on it is asked about them; what it was before is forgotten, and what nobody asks for any more goes.
        self.remove_policy_but(&id, &mine);
        for interest in &mine {
            self.users.entry(*interest).or_default().insert(id.clone());
        }
        let limit = self.options.shard;
        let rules = rules::remote_rules(&policy, |interest| self.directory.id(interest));
        let tracked = Tracked::new(policy, uid.into(), rules, limit);
        self.policies.insert(id.clone(), tracked);
        self.touched.entry(id.clone()).or_default();
        let members = mine.iter().flat_map(|interest| self.directory.members(*interest));
        let addresses: BTreeSet<IpAddr> =
            members.flat_map(|known| known.pod.addresses.iter().copied()).collect();
        for address in addresses {
            self.judge(&id, address);
        }
    }

    /// A policy is gone.
    pub fn remove_policy(&mut self, id: &PolicyId) {
        self.remove_policy_but(id, &BTreeSet::new());
    }

    /// The policies that there are, with their uids.
    pub fn policies(&self) -> impl Iterator<Item = (&Policy, &Name)> {
        self.policies.values().map(|tracked| (&tracked.policy, &tracked.uid))
    }

    /// A policy and its uid.
    pub fn policy(&self, id: &PolicyId) -> Option<(&Policy, &Name)> {
        self.policies.get(id).map(|tracked| (&tracked.policy, &tracked.uid))
    }

    /// What all policies ask for, sorted.
    pub fn interests(&self) -> impl Iterator<Item = &Interest> {
        self.directory.interests()
    }

    /// The policies that are not as they were when this was last asked, and those of their shards that are not.
    pub fn touched(&mut self) -> BTreeMap<PolicyId, BTreeSet<ShardKey>> {
        std::mem::take(&mut self.touched)
    }

    /// The addresses that clusters told and that are not where they said their pods are, or where ours are.
    pub fn refused(&self) -> impl Iterator<Item = (&Name, &BTreeMap<RemoteId, Vec<IpAddr>>)> {
        self.refused.iter()
    }

    /// The pods that claim an address, as far as their clusters may.
    pub fn claimants(&self, address: IpAddr) -> &[RemoteId] {
        self.claims.get(&address).map_or(&[], Vec::as_slice)
    }

    /// Takes from a pod what its cluster may say about it.
    fn admit(&mut self, pod: &Arc<RemotePod>) {
        self.forgive(&pod.id);
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
                let admitted = match bad.is_empty() {
                    true => pod.clone(),
                    false => {
                        let addresses = pod.addresses.iter().filter(good).copied().collect();
                        Arc::new(RemotePod { addresses, ..(**pod).clone() })
                    }
                };
                if !bad.is_empty() {
                    let refused = self.refused.entry(cluster.clone()).or_default();
                    refused.insert(pod.id.clone(), bad);
                }
                self.directory.put_pod(admitted)
            }
        };
        self.settle(vec![shift]);
    }

    /// Forgets that addresses of a pod were refused.
    fn forgive(&mut self, id: &RemoteId) {
        let Some(refused) = self.refused.get_mut(&id.cluster) else { return };
        refused.remove(id);
        if refused.is_empty() {
            self.refused.remove(&id.cluster);
        }
    }

    /// Forgets a policy, and the interests that nobody has any more, apart from these.
    fn remove_policy_but(&mut self, id: &PolicyId, kept: &BTreeSet<InterestId>) {
        let Some(tracked) = self.policies.remove(id) else { return };
        self.touched.entry(id.clone()).or_default().extend(tracked.shards());
        let had = tracked.rules.iter().flat_map(|rule| rule.peers.iter().map(|(_, id)| *id));
        for interest in had.collect::<BTreeSet<InterestId>>() {
            let Some(users) = self.users.get_mut(&interest) else { continue };
            users.remove(id);
            if users.is_empty() {
                self.users.remove(&interest);
                if !kept.contains(&interest) {
                    self.directory.drop_interest(interest);
                }
            }
        }
    }
}
