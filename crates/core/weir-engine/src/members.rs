//! Who is in which set: the questions whose answers before and after a change make up a delta.

use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{Member, NamedPort, PortOwners, SetDelta, SetId, SetKey};

use crate::{
    cluster::Cluster,
    namespaces::{Moved, NamespaceId, ScopeId},
    nodes::NodeId,
    pods::PodIndex,
    sets::{Memberships, SetIndex, Sets, Source},
};

impl Sets {
    /// The sets that these addresses are in as addresses of pods.
    pub(crate) fn of_pods(&self, addresses: &[IpAddr], cluster: &Cluster) -> Memberships {
        let mut found = Memberships::new();
        if self.by_anchor.is_empty() && self.port_sets.is_empty() {
            return found;
        }
        for &address in addresses {
            let Some(pod) = cluster.owner(address) else { continue };
            let row = cluster.pods.postings.row(pod);
            for scope in cluster.namespaces.scopes(cluster.pods.get(pod).namespace) {
                self.by_anchor.candidates(scope, row, &cluster.labels, |selection| {
                    let selection = &self.selections[selection];
                    if cluster.selectors.matches(selection.selector, row, &cluster.labels) {
                        selection.sets.iter().for_each(|set| {
                            self.as_member(*set, pod, address, cluster, &mut found)
                        });
                    }
                });
            }
            self.port_sets
                .iter()
                .for_each(|set| self.as_member(*set, pod, address, cluster, &mut found));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// What an address of a pod is in a set that is made of pods.
    fn as_member(
        &self,
        set: SetIndex,
        pod: PodIndex,
        address: IpAddr,
        cluster: &Cluster,
        found: &mut Memberships,
    ) {
        let SetKey::Ports { owners, name, protocol } = &**self.id(set) else {
            return found.push((set, address.into()));
        };
        if matches!(owners, PortOwners::Block(block) if !block.contains(address)) {
            return;
        }
        let fits = |port: &&NamedPort| {
            port.name == *name && protocol.is_none_or(|only| port.protocol == only)
        };
        let ports = cluster.pods.get(pod).ports.iter().flat_map(|ports| ports.iter()).filter(fits);
        found.extend(
            ports.map(|port| (set, Member { address, port: Some((port.protocol, port.port)) })),
        );
    }

    /// The sets that these addresses are in as addresses of nodes. Of sets about one node, only those of `nodes` are asked.
    pub(crate) fn of_nodes(
        &self,
        nodes: &[NodeId],
        addresses: &[IpAddr],
        cluster: &Cluster,
    ) -> Memberships {
        let mut found = Memberships::new();
        for &address in addresses {
            for node in nodes {
                if let Some(set) = self.node_sets.get(node)
                    && cluster.nodes.addresses(*node).any(|other| other == address)
                {
                    found.push((*set, address.into()));
                }
            }
            let holding = self.nodes_sets.iter().filter(|(_, selector)| {
                cluster.nodes.any_has(**selector, address, &cluster.labels, &cluster.selectors)
            });
            found.extend(holding.map(|(set, _)| (*set, Member::from(address))));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The sets that these addresses are in because of domain names.
    pub(crate) fn of_domains(&self, addresses: &[IpAddr], cluster: &Cluster) -> Memberships {
        let mut found = Memberships::new();
        for &set in &self.domain_sets {
            let SetKey::Domain(pattern) = &**self.id(set) else { continue };
            let inside =
                addresses.iter().filter(|address| cluster.domains.any_has(pattern, **address));
            found.extend(inside.map(|address| (set, Member::from(*address))));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Records the difference between what addresses were in and what they are in now.
    pub(crate) fn record(&mut self, before: Memberships, now: Memberships) {
        let went: Vec<_> =
            before.iter().filter(|it| now.binary_search(it).is_err()).copied().collect();
        let came: Vec<_> =
            now.iter().filter(|it| before.binary_search(it).is_err()).copied().collect();
        went.into_iter().for_each(|(set, member)| self.leave(set, member));
        came.into_iter().for_each(|(set, member)| self.enter(set, member));
    }

    /// Records that a namespace left some scopes and entered others, and its pods with it.
    pub(crate) fn record_move(&mut self, namespace: NamespaceId, moved: &Moved, cluster: &Cluster) {
        for scope in &moved.left {
            for (set, member) in self.of_namespace(namespace, *scope, cluster) {
                self.leave(set, member);
            }
        }
        for scope in &moved.entered {
            for (set, member) in self.of_namespace(namespace, *scope, cluster) {
                self.enter(set, member);
            }
        }
    }

    /// What the pods of a namespace are in the sets of one scope.
    fn of_namespace(
        &self,
        namespace: NamespaceId,
        scope: ScopeId,
        cluster: &Cluster,
    ) -> Memberships {
        let mut found = Memberships::new();
        let pods = cluster.pods.postings.members(cluster.namespaces.pods_pair(namespace));
        for selection in self.by_scope.get(&scope).into_iter().flatten() {
            let selection = &self.selections[*selection];
            for &pod in pods.iter().filter(|pod| cluster.matches(**pod, selection.selector)) {
                for address in cluster.owned(pod) {
                    selection
                        .sets
                        .iter()
                        .for_each(|set| self.as_member(*set, pod, address, cluster, &mut found));
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn enter(&mut self, set: SetIndex, member: Member) {
        match self.change(set) {
            SetDelta::Put(members) => _ = members.insert(member),
            SetDelta::Change { added, removed } => {
                if !removed.remove(&member) {
                    added.insert(member);
                }
            }
            SetDelta::Gone => (),
        }
    }

    fn leave(&mut self, set: SetIndex, member: Member) {
        match self.change(set) {
            SetDelta::Put(members) => _ = members.remove(&member),
            SetDelta::Change { added, removed } => {
                if !added.remove(&member) {
                    removed.insert(member);
                }
            }
            SetDelta::Gone => (),
        }
    }

    fn change(&mut self, set: SetIndex) -> &mut SetDelta {
        self.changes.entry(set).or_insert_with(|| SetDelta::Change {
            added: BTreeSet::new(),
            removed: BTreeSet::new(),
        })
    }

    /// All that happened since this was last asked.
    pub(crate) fn take_changes(&mut self) -> impl Iterator<Item = (SetId, SetDelta)> {
        let gone = std::mem::take(&mut self.gone).into_iter().map(|id| (id, SetDelta::Gone));
        let changes =
            std::mem::take(&mut self.changes).into_iter().filter(|(_, change)| !is_nothing(change));
        let changes: Vec<_> = changes.map(|(set, change)| (self.id(set).clone(), change)).collect();
        // A set that went and came again in one turn is said last, as it is now.
        gone.chain(changes)
    }

    /// All members of a set, from the cluster.
    pub(crate) fn contents(&self, set: SetIndex, cluster: &Cluster) -> BTreeSet<Member> {
        let mut found = Memberships::new();
        match self.source(set) {
            Source::Selection(selection) => {
                let selection = &self.selections[selection];
                for pod in cluster.select(selection.scope, selection.selector) {
                    cluster
                        .owned(pod)
                        .for_each(|address| self.as_member(set, pod, address, cluster, &mut found));
                }
            }
            Source::Ports => {
                for (pod, _) in cluster.pods.iter() {
                    cluster
                        .owned(pod)
                        .for_each(|address| self.as_member(set, pod, address, cluster, &mut found));
                }
            }
            Source::Nodes(selector) => {
                return cluster
                    .nodes
                    .matching(selector, &cluster.labels, &cluster.selectors)
                    .map(Member::from)
                    .collect();
            }
            Source::Node(node) => return cluster.nodes.addresses(node).map(Member::from).collect(),
            Source::Domain => {
                let SetKey::Domain(pattern) = &**self.id(set) else { return BTreeSet::new() };
                return cluster.domains.matching(pattern).map(Member::from).collect();
            }
        }
        found.into_iter().map(|(_, member)| member).collect()
    }
}

fn is_nothing(change: &SetDelta) -> bool {
    matches!(change, SetDelta::Change { added, removed } if added.is_empty() && removed.is_empty())
}
