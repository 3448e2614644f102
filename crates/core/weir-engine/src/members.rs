//! Set membership. A delta is the difference between the memberships before and after a change.

use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{Holders, Member, PortOwners, SetDelta, SetId, SetKey};

use crate::{
    budget::{Allowance, Lockdown},
    cluster::Cluster,
    domains,
    namespaces::{Moved, NamespaceId, ScopeId},
    nodes::NodeId,
    pods::PodIndex,
    sets::{MemberSource, Memberships, Selection, SetIndex, Sets},
};

impl Sets {
    /// The memberships of these addresses as pod addresses.
    pub(crate) fn memberships_of_pods(
        &self,
        addresses: &[IpAddr],
        cluster: &Cluster,
    ) -> Memberships {
        let mut found = Memberships::new();
        if self.by_anchor.is_empty() && self.port_sets.is_empty() {
            return found;
        }
        for &address in addresses {
            let start = found.len();
            let mut holders = 0;
            for pod in cluster.pods.holders(address) {
                let mut own = Memberships::new();
                self.push_memberships(pod, address, cluster, &mut own);
                // Two names of a pod can stand for one port.
                own.sort_unstable();
                own.dedup();
                found.append(&mut own);
                holders += 1;
            }
            self.retain_held(&mut found, start, holders);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Adds the memberships of an address as an address of this pod.
    fn push_memberships(
        &self,
        pod: PodIndex,
        address: IpAddr,
        cluster: &Cluster,
        found: &mut Memberships,
    ) {
        let row = cluster.pods.row(pod);
        for scope in cluster.namespaces.scopes(cluster.pods.get(pod).namespace) {
            self.by_anchor.candidates(scope, row, &cluster.labels, |selection| {
                let selection = &self.selections[selection];
                if cluster.selectors.matches(selection.selector, row, &cluster.labels) {
                    selection
                        .sets
                        .iter()
                        .for_each(|set| self.push_members(*set, pod, address, cluster, found));
                }
            });
        }
        self.port_sets.iter().for_each(|set| self.push_members(*set, pod, address, cluster, found));
    }

    /// Of the memberships from `start` on, those of each holder of an address, keeps those that the
    /// address has.
    fn retain_held(&self, found: &mut Memberships, start: usize, holders: usize) {
        let mut all = found.split_off(start);
        all.sort_unstable();
        let groups = all.chunk_by(|one, two| one == two);
        let held = groups.filter(|same| self.is_held(same[0].0, same.len(), holders));
        found.extend(held.map(|same| same[0]));
    }

    /// Whether a set contains an address of which it selects this many holders.
    fn is_held(&self, set: SetIndex, selected: usize, holders: usize) -> bool {
        match self.rule_for_holders(set) {
            None => selected == holders,
            Some(Holders::Any) => true,
            Some(Holders::NotAll) => selected < holders,
        }
    }

    /// Whether a set contains addresses that only one pod holds.
    fn has_owned(&self, set: SetIndex) -> bool {
        self.rule_for_holders(set) != Some(Holders::NotAll)
    }

    /// How a set treats contested addresses, if not as an intersection.
    fn rule_for_holders(&self, set: SetIndex) -> Option<Holders> {
        match **self.id(set) {
            SetKey::HeldBy(holders, _) => Some(holders),
            _ => None,
        }
    }

    /// Adds the members that an address of a pod contributes to a set of pods or of their ports.
    fn push_members(
        &self,
        set: SetIndex,
        pod: PodIndex,
        address: IpAddr,
        cluster: &Cluster,
        found: &mut Memberships,
    ) {
        let mut key = &**self.id(set);
        if let SetKey::HeldBy(_, inner) = key {
            key = inner;
        }
        let SetKey::Ports { owners, names } = key else {
            return found.push((set, address.into()));
        };
        if matches!(owners, PortOwners::Block(block) if !block.contains(address)) {
            return;
        }
        let ports = cluster.pods.ports(pod).iter().filter(|port| names.contains(port));
        found.extend(
            ports.map(|port| (set, Member { address, port: Some((port.protocol, port.port)) })),
        );
    }

    /// The memberships of these addresses as node addresses. Of the sets of a single node, only
    /// those of `nodes` are considered.
    pub(crate) fn memberships_of_nodes(
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

    /// The memberships of these addresses in the sets that a domain name can change.
    pub(crate) fn memberships_of_domains(
        &self,
        name: &str,
        addresses: &[IpAddr],
        cluster: &Cluster,
    ) -> Memberships {
        let mut found = Memberships::new();
        for &set in &self.domain_sets {
            let SetKey::Domain(pattern) = &**self.id(set) else { continue };
            if !domains::fits(pattern, name) {
                continue;
            }
            let inside =
                addresses.iter().filter(|address| cluster.domains.any_has(pattern, **address));
            found.extend(inside.map(|address| (set, Member::from(*address))));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Records the difference between two lists of memberships.
    pub(crate) fn record_difference(&mut self, before: Memberships, now: Memberships) {
        let went: Vec<_> =
            before.iter().filter(|it| now.binary_search(it).is_err()).copied().collect();
        let came: Vec<_> =
            now.iter().filter(|it| before.binary_search(it).is_err()).copied().collect();
        went.into_iter().for_each(|(set, member)| self.remove_member(set, member));
        came.into_iter().for_each(|(set, member)| self.add_member(set, member));
    }

    /// Records that a namespace and its pods left some scopes and entered others.
    pub(crate) fn record_move(&mut self, namespace: NamespaceId, moved: &Moved, cluster: &Cluster) {
        for scope in &moved.left {
            for (set, member) in self.memberships_in_scope(namespace, *scope, cluster) {
                self.remove_member(set, member);
            }
        }
        for scope in &moved.entered {
            for (set, member) in self.memberships_in_scope(namespace, *scope, cluster) {
                self.add_member(set, member);
            }
        }
    }

    /// The memberships of the pods of a namespace in the sets of one scope.
    fn memberships_in_scope(
        &self,
        namespace: NamespaceId,
        scope: ScopeId,
        cluster: &Cluster,
    ) -> Memberships {
        let mut found = Memberships::new();
        for selection in self.by_scope.get(&scope).into_iter().flatten() {
            let selection = &self.selections[*selection];
            for pod in cluster.select_in(namespace, selection.selector) {
                for address in cluster.owned(pod) {
                    let of_owned = selection.sets.iter().filter(|set| self.has_owned(**set));
                    of_owned.for_each(|set| {
                        self.push_members(*set, pod, address, cluster, &mut found);
                    });
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn add_member(&mut self, set: SetIndex, member: Member) {
        self.count_added(set);
        match self.change(set) {
            SetDelta::Put(members) => {
                members.insert(member);
            }
            SetDelta::Change { added, removed } => {
                if !removed.remove(&member) {
                    added.insert(member);
                }
            }
            SetDelta::Gone { .. } => (),
        }
    }

    fn remove_member(&mut self, set: SetIndex, member: Member) {
        self.count_removed(set);
        match self.change(set) {
            SetDelta::Put(members) => {
                members.remove(&member);
            }
            SetDelta::Change { added, removed } => {
                if !added.remove(&member) {
                    removed.insert(member);
                }
            }
            SetDelta::Gone { .. } => (),
        }
    }

    fn change(&mut self, set: SetIndex) -> &mut SetDelta {
        self.changes.entry(set).or_insert_with(|| SetDelta::Change {
            added: BTreeSet::new(),
            removed: BTreeSet::new(),
        })
    }

    /// Drains the changes.
    pub(crate) fn take_changes(&mut self) -> impl Iterator<Item = (SetId, SetDelta)> {
        let gone = std::mem::take(&mut self.gone).into_iter();
        let changes =
            std::mem::take(&mut self.changes).into_iter().filter(|(_, change)| !is_nothing(change));
        let changes: Vec<_> = changes.map(|(set, change)| (self.id(set).clone(), change)).collect();
        // A set that was removed and added again comes last, with its current members.
        gone.chain(changes)
    }

    /// Enumerates all members of a set, if an allowance is large enough, and reduces the allowance.
    pub(crate) fn contents(
        &self,
        set: SetIndex,
        allowance: &mut Allowance,
        cluster: &Cluster,
    ) -> Result<BTreeSet<Member>, Lockdown> {
        let pods = match self.source(set) {
            MemberSource::Selection(selection) => {
                let Selection { scope, selector, .. } = self.selections[selection];
                cluster.select(scope, selector, &mut allowance.comparisons)
            }
            MemberSource::Ports => cluster.all_pods(&mut allowance.comparisons),
            MemberSource::Nodes(selector) => {
                let Cluster { nodes, labels, selectors, .. } = cluster;
                return allowance.collect(nodes.matching(selector, labels, selectors));
            }
            MemberSource::Node(node) => return allowance.collect(cluster.nodes.addresses(node)),
            MemberSource::Domain => {
                let SetKey::Domain(pattern) = &**self.id(set) else { return Ok(BTreeSet::new()) };
                return allowance.collect(cluster.domains.matching(pattern));
            }
        };
        let pods = pods.ok_or(Lockdown::Comparisons)?;
        let (mut found, mut contested) = (BTreeSet::new(), Memberships::new());
        let mut of_pod = Memberships::new();
        for pod in pods {
            for address in cluster.pods.own_addresses(pod) {
                let mut holders = cluster.pods.holders(address);
                if !holders.clone().any(|holder| holder == pod) {
                    continue;
                }
                self.push_members(set, pod, address, cluster, &mut of_pod);
                if holders.nth(1).is_none() {
                    found.extend(of_pod.drain(..).map(|(_, member)| member));
                } else {
                    // Two names of a pod can stand for one port.
                    of_pod.sort_unstable();
                    of_pod.dedup();
                    contested.append(&mut of_pod);
                }
            }
            if found.len() + contested.len() > allowance.entries {
                return Err(Lockdown::Policy);
            }
        }
        if !self.has_owned(set) {
            found.clear();
        }
        contested.sort_unstable();
        for same in contested.chunk_by(|one, two| one == two) {
            let holders = cluster.pods.holders(same[0].1.address).count();
            if self.is_held(set, same.len(), holders) {
                found.insert(same[0].1);
            }
        }
        allowance.take_entries(found.len())?;
        Ok(found)
    }
}

fn is_nothing(change: &SetDelta) -> bool {
    matches!(change, SetDelta::Change { added, removed } if added.is_empty() && removed.is_empty())
}
