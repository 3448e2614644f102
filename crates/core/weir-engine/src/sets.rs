use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use smallvec::SmallVec;
use weir_model::{Member, Name, PortOwners, Scope, Selector, SetDelta, SetId, SetKey};

use crate::{
    anchors::AnchorIndex,
    budget::{Allowance, ENTRIES_PER_SET, Lockdown, NAMESPACES_PER_ENTRY},
    cluster::Cluster,
    namespaces::ScopeId,
    nodes::NodeId,
    selectors::SelectorId,
    slab::Slab,
};

/// A set in use.
pub(crate) type SetIndex = u32;

/// The sets that contain an address, and the member it is there. Sorted and without duplicates
/// before a comparison.
pub(crate) type Memberships = Vec<(SetIndex, Member)>;

/// The sets that rules in force use, and their changes.
///
/// Members are not stored, because they follow from the cluster. To find a change, the engine
/// compares the memberships of an address before and after it.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    table: Slab<SetEntry>,
    ids: HashMap<SetId, SetIndex>,
    pub(crate) selections: Slab<Selection>,
    selection_ids: HashMap<(ScopeId, SelectorId), u32>,
    pub(crate) by_anchor: AnchorIndex<ScopeId>,
    pub(crate) by_scope: HashMap<ScopeId, Vec<u32>>,
    pub(crate) port_sets: BTreeSet<SetIndex>,
    pub(crate) node_sets: HashMap<NodeId, SetIndex>,
    pub(crate) nodes_sets: BTreeMap<SetIndex, SelectorId>,
    pub(crate) domain_sets: BTreeSet<SetIndex>,
    /// The changes since the last `take_changes`.
    pub(crate) changes: BTreeMap<SetIndex, SetDelta>,
    pub(crate) gone: Vec<(SetId, SetDelta)>,
    /// The entries that all sets have without members.
    fixed: usize,
    /// The number of members of all sets.
    members: usize,
}

#[derive(Debug)]
struct SetEntry {
    id: SetId,
    uses: u32,
    source: MemberSource,
    /// The entries that it has without members.
    fixed: usize,
    /// The number of members.
    members: usize,
}

/// The source of the members of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemberSource {
    /// The pods of a selection.
    Selection(u32),
    /// The named ports of all pods.
    Ports,
    Nodes(SelectorId),
    Node(NodeId),
    Domain,
}

/// A selection of pods and the sets derived from it: their addresses, or their ports of some name.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) scope: ScopeId,
    pub(crate) selector: SelectorId,
    pub(crate) sets: SmallVec<[SetIndex; 2]>,
}

impl Sets {
    /// Interns the set with this definition and adds a reference to it.
    pub(crate) fn acquire(&mut self, key: SetKey, cluster: &mut Cluster) -> SetIndex {
        let index = self.acquire_within(key, &mut Allowance::unlimited(), cluster);
        index.expect("an unlimited allowance is never exceeded")
    }

    /// Interns the set with this definition and adds a reference to it, if an allowance is large
    /// enough, and reduces the allowance.
    pub(crate) fn acquire_within(
        &mut self,
        key: SetKey,
        allowance: &mut Allowance,
        cluster: &mut Cluster,
    ) -> Result<SetIndex, Lockdown> {
        let id = SetId::new(key);
        if let Some(&index) = self.ids.get(&id) {
            allowance.take_entries(self.entries_of(index))?;
            self.table[index].uses += 1;
            return Ok(index);
        }
        let namespaces =
            namespaces_of(&id).map_or(0, |selector| cluster.namespaces_to_compare(selector));
        allowance.take_comparisons(namespaces)?;
        let fixed = ENTRIES_PER_SET + namespaces / NAMESPACES_PER_ENTRY;
        allowance.take_entries(fixed)?;
        let source = MemberSource::Domain;
        let entry = SetEntry { id: id.clone(), uses: 1, source, fixed, members: 0 };
        let index = self.table.insert(entry);
        self.fixed += fixed;
        self.ids.insert(id.clone(), index);
        let source = self.attach(index, &id, cluster);
        self.table[index].source = source;
        let members = self.contents(index, allowance, cluster);
        let (members, error) =
            members.map_or_else(|why| (BTreeSet::new(), Some(why)), |all| (all, None));
        self.resize(index, members.len());
        self.changes.insert(index, SetDelta::Put(members));
        match error {
            None => Ok(index),
            Some(why) => {
                self.release(index, cluster);
                Err(why)
            }
        }
    }

    /// The entries of a set in the budget.
    pub(crate) fn entries_of(&self, index: SetIndex) -> usize {
        self.table[index].fixed + self.table[index].members
    }

    /// The entries of all sets in the budget.
    pub(crate) fn entries(&self) -> usize {
        self.fixed + self.members
    }

    /// Records the number of members of a set.
    fn resize(&mut self, index: SetIndex, members: usize) {
        let known = std::mem::replace(&mut self.table[index].members, members);
        self.members = self.members - known + members;
    }

    /// Records that a set has one member more.
    pub(crate) fn count_added(&mut self, index: SetIndex) {
        self.resize(index, self.table[index].members + 1);
    }

    /// Records that a set has one member less.
    pub(crate) fn count_removed(&mut self, index: SetIndex) {
        self.resize(index, self.table[index].members - 1);
    }

    fn attach(&mut self, index: SetIndex, key: &SetKey, cluster: &mut Cluster) -> MemberSource {
        match key {
            SetKey::PodsIn(namespace, pods) => {
                self.select(index, namespace, &Scope::Own, pods, cluster)
            }
            SetKey::Pods { namespaces, pods } => {
                self.select(index, &"".into(), &Scope::Matching(namespaces.clone()), pods, cluster)
            }
            SetKey::Ports { owners: PortOwners::PodsIn(namespace, pods), .. } => {
                self.select(index, namespace, &Scope::Own, pods, cluster)
            }
            SetKey::Ports { owners: PortOwners::Pods { namespaces, pods }, .. } => {
                self.select(index, &"".into(), &Scope::Matching(namespaces.clone()), pods, cluster)
            }
            SetKey::Ports { owners: PortOwners::Everyone | PortOwners::Block(_), .. } => {
                self.port_sets.insert(index);
                MemberSource::Ports
            }
            SetKey::Nodes(selector) => {
                let selector = cluster.selectors.acquire(selector, &mut cluster.labels);
                self.nodes_sets.insert(index, selector);
                MemberSource::Nodes(selector)
            }
            SetKey::Node(name) => {
                let node = cluster.nodes.acquire(name);
                self.node_sets.insert(node, index);
                MemberSource::Node(node)
            }
            SetKey::Domain(_) => {
                self.domain_sets.insert(index);
                MemberSource::Domain
            }
            SetKey::HeldBy(_, key) => self.attach(index, key, cluster),
        }
    }

    fn select(
        &mut self,
        index: SetIndex,
        own: &Name,
        scope: &Scope,
        pods: &Selector,
        cluster: &mut Cluster,
    ) -> MemberSource {
        let Cluster { namespaces, labels, selectors, .. } = cluster;
        let scope = namespaces.acquire_scope(own, scope, labels, selectors);
        let selector = selectors.acquire(pods, labels);
        if let Some(&selection) = self.selection_ids.get(&(scope, selector)) {
            namespaces.release_scope(scope, labels, selectors);
            selectors.release(selector, labels);
            self.selections[selection].sets.push(index);
            return MemberSource::Selection(selection);
        }
        let selection = self.selections.insert(Selection {
            scope,
            selector,
            sets: SmallVec::from_slice(&[index]),
        });
        self.selection_ids.insert((scope, selector), selection);
        self.by_anchor.insert(scope, selectors.anchors(selector), selection);
        self.by_scope.entry(scope).or_default().push(selection);
        MemberSource::Selection(selection)
    }

    /// The id of a set in use.
    pub(crate) fn id(&self, index: SetIndex) -> &SetId {
        &self.table[index].id
    }

    pub(crate) fn source(&self, index: SetIndex) -> MemberSource {
        self.table[index].source
    }

    /// The id of the set with this definition.
    pub(crate) fn id_of(&self, key: SetKey) -> SetId {
        let id = SetId::new(key);
        self.ids.get(&id).map_or(id, |index| self.table[*index].id.clone())
    }

    /// Releases a reference to a set.
    pub(crate) fn release(&mut self, index: SetIndex, cluster: &mut Cluster) {
        self.table[index].uses -= 1;
        if self.table[index].uses > 0 {
            return;
        }
        self.resize(index, 0);
        let gone = self.table.remove(index);
        self.fixed -= gone.fixed;
        self.ids.remove(&gone.id);
        match gone.source {
            MemberSource::Selection(selection) => self.unselect(index, selection, cluster),
            MemberSource::Ports => {
                self.port_sets.remove(&index);
            }
            MemberSource::Nodes(selector) => {
                self.nodes_sets.remove(&index);
                cluster.selectors.release(selector, &mut cluster.labels);
            }
            MemberSource::Node(node) => {
                self.node_sets.remove(&node);
                cluster.nodes.release(node);
            }
            MemberSource::Domain => {
                self.domain_sets.remove(&index);
            }
        }
        // A set that is still unpublished needs no removal.
        match self.changes.remove(&index) {
            Some(SetDelta::Put(_)) => (),
            Some(SetDelta::Change { added, removed }) => {
                self.gone.push((gone.id, SetDelta::Gone { added, removed }));
            }
            Some(SetDelta::Gone { .. }) | None => self.gone.push((gone.id, SetDelta::gone())),
        }
    }

    fn unselect(&mut self, index: SetIndex, selection: u32, cluster: &mut Cluster) {
        self.selections[selection].sets.retain(|set| *set != index);
        if !self.selections[selection].sets.is_empty() {
            return;
        }
        let Selection { scope, selector, .. } = self.selections.remove(selection);
        self.selection_ids.remove(&(scope, selector));
        self.by_anchor.remove(scope, cluster.selectors.anchors(selector), selection);
        if let Some(list) = self.by_scope.get_mut(&scope) {
            list.retain(|other| *other != selection);
            if list.is_empty() {
                self.by_scope.remove(&scope);
            }
        }
        cluster.selectors.release(selector, &mut cluster.labels);
        cluster.namespaces.release_scope(scope, &mut cluster.labels, &mut cluster.selectors);
    }
}

/// The selector of the namespaces of a set, if it has one.
fn namespaces_of(key: &SetKey) -> Option<&Selector> {
    match key {
        SetKey::Pods { namespaces, .. } => Some(namespaces),
        SetKey::Ports { owners: PortOwners::Pods { namespaces, .. }, .. } => Some(namespaces),
        SetKey::HeldBy(_, key) => namespaces_of(key),
        _ => None,
    }
}
