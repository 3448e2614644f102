use std::{hash::BuildHasher, sync::Arc};

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use smallvec::SmallVec;
use weir_model::{Direction, Location, NamedPort, PolicyId, Section, SectionList, Spec, Tier};

use crate::{
    Budget,
    anchors::AnchorIndex,
    budget::Quota,
    cluster::Cluster,
    compile,
    namespaces::ScopeId,
    pods::PodIndex,
    selectors::SelectorId,
    sets::{SetIndex, Sets},
    slab::Slab,
};

/// A policy, as an index.
pub(crate) type PolicyIndex = u32;
/// A distinct subject, as an index.
pub(crate) type GroupIndex = u32;

/// The policies, grouped by subject. Only policies that select an endpoint of this node are
/// compiled.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    pub(crate) table: Slab<PolicyEntry>,
    pub(crate) quota: Quota,
    by_id: HashTable<PolicyIndex>,
    hasher: DefaultHashBuilder,
    /// The distinct specs with their reference counts.
    specs: HashMap<Arc<Spec>, u32>,
    groups: Slab<PolicyGroup>,
    group_ids: HashMap<(ScopeId, SelectorId), GroupIndex>,
    by_anchor: AnchorIndex<ScopeId>,
    /// Groups that may have lost their last policy or endpoint.
    idle: Vec<GroupIndex>,
    /// Sets of policies that changed or no longer apply. They are released after the new rules have
    /// acquired theirs.
    pub(crate) retired: Vec<SetIndex>,
}

#[derive(Debug)]
pub(crate) struct PolicyEntry {
    pub(crate) id: PolicyId,
    pub(crate) location: Option<Location>,
    pub(crate) spec: Arc<Spec>,
    /// Whether it is staged; possible only in the layer of staged rules.
    staged: bool,
    group: GroupIndex,
    ingress: Option<Box<CompiledDirection>>,
    egress: Option<Box<CompiledDirection>>,
}

/// One compiled direction of a policy.
#[derive(Debug)]
pub(crate) struct CompiledDirection {
    pub(crate) sets: Vec<SetIndex>,
    /// The entries of its rules, without sets.
    pub(crate) entries: usize,
    /// `None` if it depends on the endpoint's named ports.
    pub(crate) section: Option<Arc<Section>>,
}

impl PolicyEntry {
    pub(crate) fn compiled(&self, direction: Direction) -> Option<&CompiledDirection> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    pub(crate) fn compiled_mut(
        &mut self,
        direction: Direction,
    ) -> &mut Option<Box<CompiledDirection>> {
        match direction {
            Direction::Ingress => &mut self.ingress,
            Direction::Egress => &mut self.egress,
        }
    }

    /// Whether its ingress rules depend on the named ports of the endpoint.
    fn depends_on_ports(&self) -> bool {
        let ingress = self.spec.rules(Direction::Ingress).unwrap_or_default();
        compile::depends_on_ports(ingress, Direction::Ingress)
    }

    /// Whether its endpoints must be assigned to their classes again when it comes or goes.
    fn divides_classes(&self) -> bool {
        self.staged || self.depends_on_ports()
    }
}

/// All policies with the same subject.
#[derive(Debug)]
struct PolicyGroup {
    scope: ScopeId,
    selector: SelectorId,
    /// In order of evaluation.
    policies: SmallVec<[PolicyIndex; 2]>,
    /// How many of them depend on the named ports of the endpoint.
    depends_on_ports: u32,
    /// How many of them are staged.
    staged: u32,
    /// The classes of endpoints that it selects.
    classes: SmallVec<[u32; 2]>,
    /// The sections of its NetworkPolicies by direction, if they are known and the same for all
    /// endpoints. The classes of the group share them.
    isolating: [Option<GroupSections>; 2],
}

/// The sections of the NetworkPolicies of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupSections {
    pub(crate) sections: SectionList,
    /// The entries of their rules, without sets.
    pub(crate) entries: usize,
}

/// The effect of a policy change on endpoints.
#[derive(Debug)]
pub(crate) enum Touched {
    /// The pods of this group may have entered or left it.
    Subject(GroupIndex),
    /// The rules of the classes that this group selects changed.
    Rules(GroupIndex),
}

impl Policies {
    pub(crate) fn new(budget: Budget) -> Self {
        Policies { quota: Quota::new(budget), ..Policies::default() }
    }

    /// No policies, with the same limits.
    pub(crate) fn emptied(&self) -> Self {
        Policies { quota: self.quota.unused(), ..Policies::default() }
    }

    pub(crate) fn find(&self, id: &PolicyId) -> Option<PolicyIndex> {
        self.by_id.find(self.hasher.hash_one(id), |index| self.table[*index].id == *id).copied()
    }

    /// Adds or replaces a policy and returns its effect.
    pub(crate) fn put(
        &mut self,
        policy: &weir_model::Policy,
        cluster: &mut Cluster,
    ) -> SmallVec<[Touched; 2]> {
        let mut touched = SmallVec::new();
        if let Some(index) = self.find(&policy.id) {
            let known = &self.table[index];
            let is_same = known.spec == policy.spec && known.location == policy.location;
            if is_same && known.staged == policy.staged {
                return touched;
            }
            touched.extend(self.remove_at(index, cluster));
        }
        let spec = self.acquire_spec(&policy.spec);
        let (group, touch) = self.join(&policy.id, &spec, cluster);
        let hash = self.hasher.hash_one(&policy.id);
        let policy = PolicyEntry {
            id: policy.id.clone(),
            location: policy.location.clone(),
            spec,
            staged: policy.staged,
            group,
            ingress: None,
            egress: None,
        };
        let index = self.table.insert(policy);
        self.quota.register(index, &self.table[index].id);
        let (table, hasher) = (&self.table, &self.hasher);
        self.by_id.insert_unique(hash, index, |index| hasher.hash_one(&table[*index].id));
        let order = |index: PolicyIndex| (self.table[index].spec.tier, &self.table[index].id);
        let at = self.groups[group].policies.partition_point(|other| order(*other) < order(index));
        self.groups[group].policies.insert(at, index);
        self.forget_sections(group);
        let added = &self.table[index];
        self.groups[group].depends_on_ports += u32::from(added.depends_on_ports());
        self.groups[group].staged += u32::from(added.staged);
        touched.push(if added.divides_classes() { Touched::Subject(group) } else { touch });
        touched
    }

    /// Removes a policy and returns its effect.
    pub(crate) fn remove(&mut self, id: &PolicyId, cluster: &mut Cluster) -> Option<Touched> {
        let index = self.find(id)?;
        self.remove_at(index, cluster)
    }

    fn remove_at(&mut self, index: PolicyIndex, cluster: &mut Cluster) -> Option<Touched> {
        let hash = self.hasher.hash_one(&self.table[index].id);
        if let Ok(entry) = self.by_id.find_entry(hash, |other| *other == index) {
            entry.remove();
        }
        Direction::BOTH.into_iter().for_each(|direction| self.retire(index, direction));
        self.quota.forget(index);
        let gone = self.table.remove(index);
        self.forget_sections(gone.group);
        self.release_spec(&gone.spec);
        let group = &mut self.groups[gone.group];
        group.policies.retain(|other| *other != index);
        group.depends_on_ports -= u32::from(gone.depends_on_ports());
        group.staged -= u32::from(gone.staged);
        if !group.policies.is_empty() {
            return Some(if gone.divides_classes() {
                Touched::Subject(gone.group)
            } else {
                Touched::Rules(gone.group)
            });
        }
        self.by_anchor.remove(group.scope, cluster.selectors.anchors(group.selector), gone.group);
        self.idle.push(gone.group);
        Some(Touched::Subject(gone.group))
    }

    /// Interns a spec and adds a reference to it.
    fn acquire_spec(&mut self, spec: &Arc<Spec>) -> Arc<Spec> {
        if let Some((known, uses)) = self.specs.get_key_value_mut(spec) {
            *uses += 1;
            return known.clone();
        }
        self.specs.insert(spec.clone(), 1);
        spec.clone()
    }

    /// Releases a reference to a spec.
    fn release_spec(&mut self, spec: &Arc<Spec>) {
        if let Some(uses) = self.specs.get_mut(spec) {
            *uses -= 1;
            if *uses == 0 {
                self.specs.remove(spec);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The policies that select an endpoint.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = &PolicyId> {
        let used = self.groups.iter().filter(|(_, group)| !group.classes.is_empty());
        used.flat_map(|(_, group)| &group.policies).map(|policy| &self.table[*policy].id)
    }

    /// All policies.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PolicyEntry> {
        self.table.iter().map(|(_, policy)| policy)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
            && self.specs.is_empty()
            && self.groups.is_empty()
            && self.quota.is_empty()
    }

    fn join(&mut self, id: &PolicyId, spec: &Spec, cluster: &mut Cluster) -> (GroupIndex, Touched) {
        let Cluster { namespaces, labels, selectors, .. } = cluster;
        let scope = namespaces.acquire_scope(&id.namespace, &spec.subject.scope, labels, selectors);
        let selector = selectors.acquire(&spec.subject.pods, labels);
        if let Some(&group) = self.group_ids.get(&(scope, selector)) {
            namespaces.release_scope(scope, labels, selectors);
            selectors.release(selector, labels);
            if !self.groups[group].policies.is_empty() {
                return (group, Touched::Rules(group));
            }
            self.by_anchor.insert(scope, selectors.anchors(selector), group);
            return (group, Touched::Subject(group));
        }
        let group = self.groups.insert(PolicyGroup {
            scope,
            selector,
            policies: SmallVec::new(),
            depends_on_ports: 0,
            staged: 0,
            classes: SmallVec::new(),
            isolating: [None, None],
        });
        self.group_ids.insert((scope, selector), group);
        self.by_anchor.insert(scope, selectors.anchors(selector), group);
        (group, Touched::Subject(group))
    }

    /// The local pods that a group selects.
    pub(crate) fn subjects(&self, group: GroupIndex, cluster: &Cluster) -> Vec<PodIndex> {
        let PolicyGroup { scope, selector, .. } = self.groups[group];
        cluster.select_local(scope, selector)
    }

    /// The groups that select a pod, sorted.
    pub(crate) fn groups_of(&self, pod: PodIndex, cluster: &Cluster) -> Box<[GroupIndex]> {
        let mut found = Vec::new();
        let row = cluster.pods.row(pod);
        for scope in cluster.namespaces.scopes(cluster.pods.get(pod).namespace) {
            self.by_anchor.candidates(scope, row, &cluster.labels, |group| {
                if cluster.selectors.matches(self.groups[group].selector, row, &cluster.labels) {
                    found.push(group);
                }
            });
        }
        found.sort_unstable();
        found.into()
    }

    /// Whether any of these groups depends on the named ports of the endpoint.
    pub(crate) fn depend_on_ports(&self, groups: &[GroupIndex]) -> bool {
        groups.iter().any(|group| self.groups[*group].depends_on_ports > 0)
    }

    /// Whether any of these groups has a staged policy.
    pub(crate) fn have_staged(&self, groups: &[GroupIndex]) -> bool {
        groups.iter().any(|group| self.groups[*group].staged > 0)
    }

    pub(crate) fn classes_of(&self, group: GroupIndex) -> &[u32] {
        &self.groups[group].classes
    }

    /// Registers a class of endpoints with its groups.
    pub(crate) fn link(&mut self, groups: &[GroupIndex], class: u32) {
        groups.iter().for_each(|group| self.groups[*group].classes.push(class));
    }

    /// Removes a class of endpoints from its groups.
    pub(crate) fn unlink(&mut self, groups: &[GroupIndex], class: u32) {
        for group in groups {
            self.groups[*group].classes.retain(|other| *other != class);
            if self.groups[*group].classes.is_empty() {
                self.idle.push(*group);
            }
        }
    }

    /// The policies of several groups in the admin and baseline tiers, in order of evaluation.
    pub(crate) fn ordered(&self, groups: &[GroupIndex]) -> Vec<PolicyIndex> {
        let is_before = |policy: &PolicyIndex| self.tier(*policy) < Tier::Namespace;
        let mut all: Vec<PolicyIndex> = Vec::new();
        for group in groups {
            let policies = &self.groups[*group].policies;
            all.extend(&policies[..policies.partition_point(is_before)]);
        }
        all.extend(self.baseline_of(groups));
        // Those of the baseline tier are in no order, even if they are of one group.
        all.sort_by(|a, b| {
            (self.table[*a].spec.tier, &self.table[*a].id)
                .cmp(&(self.table[*b].spec.tier, &self.table[*b].id))
        });
        all
    }

    /// The sections of the NetworkPolicies of several groups for an endpoint with these named ports.
    pub(crate) fn isolating(
        &mut self,
        groups: &[GroupIndex],
        direction: Direction,
        ports: &[NamedPort],
        sets: &mut Sets,
        cluster: &mut Cluster,
    ) -> GroupSections {
        let mut longest = GroupSections::default();
        let mut others: Vec<SectionList> = Vec::new();
        let mut entries = 0;
        for group in groups {
            let next = self.isolating_of(*group, direction, ports, sets, cluster);
            entries += next.entries;
            if next.sections.len() > longest.sections.len() {
                others.push(std::mem::replace(&mut longest, next).sections);
            } else {
                others.push(next.sections);
            }
        }
        let mut others: Vec<Arc<Section>> = others.iter().flatten().cloned().collect();
        if others.is_empty() {
            return longest;
        }
        others.sort_by(|one, other| one.policy.cmp(&other.policy));
        GroupSections { sections: longest.sections.merged(&others), entries }
    }

    /// The sections of the NetworkPolicies of a group.
    fn isolating_of(
        &mut self,
        group: GroupIndex,
        direction: Direction,
        ports: &[NamedPort],
        sets: &mut Sets,
        cluster: &mut Cluster,
    ) -> GroupSections {
        if let Some(known) = &self.groups[group].isolating[direction as usize] {
            return known.clone();
        }
        let all = &self.groups[group].policies;
        let start = all.partition_point(|policy| self.tier(*policy) < Tier::Namespace);
        let end = all.partition_point(|policy| self.tier(*policy) <= Tier::Namespace);
        let policies: SmallVec<[PolicyIndex; 8]> = all[start..end].into();
        let mut entries = 0;
        let sections = policies.into_iter().filter_map(|policy| {
            let section = self.section(policy, direction, ports, sets, cluster)?;
            entries += self.rule_entries(policy, direction);
            Some(section)
        });
        let sections: SectionList = sections.collect();
        let made = GroupSections { sections, entries };
        if self.groups[group].depends_on_ports == 0 {
            self.groups[group].isolating[direction as usize] = Some(made.clone());
        }
        made
    }

    /// The sections of a group may change: they are compiled again when they are needed.
    pub(crate) fn forget_sections(&mut self, group: GroupIndex) {
        self.groups[group].isolating = [None, None];
    }

    /// The baseline policies of several groups. They come last in each group.
    pub(crate) fn baseline_of(&self, groups: &[GroupIndex]) -> impl Iterator<Item = PolicyIndex> {
        let is_baseline =
            |policy: &PolicyIndex| matches!(self.tier(*policy), Tier::Baseline { .. });
        let last = move |group: &GroupIndex| {
            self.groups[*group].policies.iter().rev().copied().take_while(is_baseline)
        };
        groups.iter().flat_map(last)
    }

    pub(crate) fn tier(&self, policy: PolicyIndex) -> Tier {
        self.table[policy].spec.tier
    }

    pub(crate) fn group_of(&self, policy: PolicyIndex) -> GroupIndex {
        self.table[policy].group
    }

    /// Releases everything that no endpoint needs any more.
    pub(crate) fn release_unused(&mut self, sets: &mut Sets, cluster: &mut Cluster) {
        for group in std::mem::take(&mut self.idle) {
            let Some(&PolicyGroup { scope, selector, ref policies, ref classes, .. }) =
                self.groups.get(group)
            else {
                continue;
            };
            let is_unused = classes.is_empty();
            let is_gone = is_unused && policies.is_empty();
            if is_unused {
                let policies = policies.clone();
                self.forget_sections(group);
                for policy in policies {
                    Direction::BOTH.into_iter().for_each(|way| self.retire(policy, way));
                    self.quota.release(policy);
                }
            }
            if is_gone {
                self.groups.remove(group);
                self.group_ids.remove(&(scope, selector));
                cluster.selectors.release(selector, &mut cluster.labels);
                cluster.namespaces.release_scope(
                    scope,
                    &mut cluster.labels,
                    &mut cluster.selectors,
                );
            }
        }
        // In reverse order, the sorted lists of scopes shrink at their ends.
        for set in std::mem::take(&mut self.retired).into_iter().rev() {
            sets.release(set, cluster);
        }
    }
}
