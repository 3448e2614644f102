//! Limits for what policies use on a node.
//!
//! The unit is an *entry*: about as much memory as one address in a set, in the process and in the
//! kernel together. A policy that exceeds a limit is *locked down*: it isolates its pods and allows
//! nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use hashbrown::HashSet;
use weir_model::{Direction, Member, Name, PolicyId, PolicyRule, Spec, Who};

use crate::{
    cluster::Cluster,
    policies::{GroupIndex, Policies, PolicyIndex},
    sets::{SetIndex, Sets},
};

/// The entries of a rule, an exception or a port range, in each distinct rule set.
const ENTRIES_PER_RULE: usize = 8;
/// The entries of a set without members. Adding a set to the kernel takes as long as adding many
/// members.
pub(crate) const ENTRIES_PER_SET: usize = 32;
/// The engine stores which namespaces a selector matches: this many take as much memory as an entry.
pub(crate) const NAMESPACES_PER_ENTRY: usize = 8;
/// How many pods the selectors of a policy may be compared with, for each entry of its budget.
const COMPARISONS_PER_ENTRY: usize = 64;

/// The most entries that policies may use on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// One policy.
    pub policy: usize,
    /// All policies of one namespace. It does not apply to policies without a namespace.
    pub namespace: usize,
    /// All policies together.
    pub node: usize,
}

impl Budget {
    /// No limits.
    pub const UNLIMITED: Budget =
        Budget { policy: usize::MAX, namespace: usize::MAX, node: usize::MAX };
}

impl Default for Budget {
    fn default() -> Self {
        Budget { policy: 1_000_000, namespace: 2_000_000, node: 4_000_000 }
    }
}

/// Why a policy is locked down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// It needs more entries than a policy may use.
    Policy,
    /// Its selectors would have to be compared with too many pods.
    Comparisons,
    /// The policies of its namespace together need too many entries, and it is one of the largest.
    Namespace,
    /// All policies together need too many entries, and it is one of the largest of a namespace that
    /// uses many.
    Node,
    /// The caller of the engine requested it.
    Requested,
}

/// What a policy may still use while it is compiled.
#[derive(Debug)]
pub(crate) struct Allowance {
    pub(crate) entries: usize,
    pub(crate) comparisons: usize,
}

impl Allowance {
    pub(crate) fn unlimited() -> Self {
        Allowance { entries: usize::MAX, comparisons: usize::MAX }
    }

    pub(crate) fn take_entries(&mut self, entries: usize) -> Result<(), Lockdown> {
        self.entries = self.entries.checked_sub(entries).ok_or(Lockdown::Policy)?;
        Ok(())
    }

    pub(crate) fn take_comparisons(&mut self, comparisons: usize) -> Result<(), Lockdown> {
        self.comparisons =
            self.comparisons.checked_sub(comparisons).ok_or(Lockdown::Comparisons)?;
        Ok(())
    }

    /// Collects the members of a set.
    pub(crate) fn collect(
        &mut self,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<BTreeSet<Member>, Lockdown> {
        let limit = self.entries.saturating_add(1);
        let members: BTreeSet<Member> = addresses.take(limit).map(Member::from).collect();
        self.take_entries(members.len())?;
        Ok(members)
    }
}

/// The use of the budget by compiled policies.
#[derive(Debug)]
pub(crate) struct Quota {
    budget: Budget,
    /// The policies with a compiled direction.
    compiled: BTreeSet<PolicyIndex>,
    /// The entries of the rules of all classes of endpoints, without sets.
    rules: usize,
    lockdowns: BTreeMap<PolicyIndex, Lockdown>,
    requested: BTreeSet<PolicyId>,
    /// Groups with a policy that was locked down or released from it.
    disturbed: Vec<GroupIndex>,
    /// All entries at the last check.
    checked: usize,
}

impl Default for Quota {
    fn default() -> Self {
        Quota::new(Budget::UNLIMITED)
    }
}

impl Quota {
    /// A quota with the same limits and requests, of which nothing is used.
    pub(crate) fn unused(&self) -> Self {
        Quota { requested: self.requested.clone(), ..Quota::new(self.budget) }
    }

    pub(crate) fn new(budget: Budget) -> Self {
        Quota {
            budget,
            compiled: BTreeSet::new(),
            rules: 0,
            lockdowns: BTreeMap::new(),
            requested: BTreeSet::new(),
            disturbed: Vec::new(),
            checked: 0,
        }
    }

    /// What a policy with this use may still use.
    pub(crate) fn allowance(&self, used: usize) -> Option<Allowance> {
        let entries = self.budget.policy.checked_sub(used)?;
        let comparisons = self.budget.policy.saturating_mul(COMPARISONS_PER_ENTRY);
        Some(Allowance { entries, comparisons })
    }

    pub(crate) fn is_locked_down(&self, policy: PolicyIndex) -> bool {
        self.lockdowns.contains_key(&policy)
    }

    /// A policy has compiled rules.
    pub(crate) fn add(&mut self, policy: PolicyIndex) {
        self.compiled.insert(policy);
    }

    /// A policy has no compiled rules any more.
    pub(crate) fn remove(&mut self, policy: PolicyIndex) {
        self.compiled.remove(&policy);
    }

    /// The rules of a class of endpoints have changed from one number of entries to another.
    pub(crate) fn resize_class(&mut self, from: usize, to: usize) {
        self.rules = self.rules - from + to;
    }

    /// A new policy: locked down if the caller requested it.
    pub(crate) fn register(&mut self, policy: PolicyIndex, id: &PolicyId) {
        if self.requested.contains(id) {
            self.lockdowns.insert(policy, Lockdown::Requested);
        }
    }

    /// A policy that no longer exists.
    pub(crate) fn forget(&mut self, policy: PolicyIndex) {
        self.lockdowns.remove(&policy);
    }

    /// A policy that applies to no endpoint. It is checked again when it does.
    pub(crate) fn release(&mut self, policy: PolicyIndex) {
        if self.lockdowns.get(&policy).is_some_and(|why| *why != Lockdown::Requested) {
            self.lockdowns.remove(&policy);
        }
    }

    pub(crate) fn take_disturbed(&mut self) -> Vec<GroupIndex> {
        std::mem::take(&mut self.disturbed)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.compiled.is_empty() && self.rules == 0 && self.lockdowns.is_empty()
    }
}

/// The entries of the rules of a policy, without their sets.
pub fn rule_entries(spec: &Spec) -> usize {
    Direction::BOTH.into_iter().filter_map(|way| spec.rules(way)).map(entries).sum()
}

/// The entries of a list of rules, without their sets.
pub(crate) fn entries(rules: &[PolicyRule]) -> usize {
    let size = |rule: &PolicyRule| {
        let exceptions = rule.peers.iter().flatten().map(|peer| match &peer.who {
            Who::Block(block) => 1 + block.except.len(),
            _ => 1,
        });
        1 + exceptions.sum::<usize>() + rule.ports.as_ref().map_or(0, Vec::len)
    };
    rules.iter().map(size).sum::<usize>() * ENTRIES_PER_RULE
}

impl Policies {
    /// The policies that are locked down.
    pub(crate) fn lockdowns(&self) -> impl Iterator<Item = (&PolicyId, Lockdown)> {
        self.quota.lockdowns.iter().map(|(policy, why)| (&self.table[*policy].id, *why))
    }

    /// Locks down exactly these policies by request, whether or not they exist.
    pub(crate) fn request_lockdowns(
        &mut self,
        requested: BTreeSet<PolicyId>,
        sets: &mut Sets,
        cluster: &mut Cluster,
    ) {
        let known = std::mem::replace(&mut self.quota.requested, requested);
        for id in known.difference(&self.quota.requested.clone()) {
            if let Some(policy) = self.find(id) {
                self.unlock(policy);
            }
        }
        for id in self.quota.requested.clone().difference(&known) {
            if let Some(policy) = self.find(id) {
                self.lock_down(policy, Lockdown::Requested, sets, cluster);
            }
        }
    }

    /// Releases all policies whose lockdown was not requested. They are checked again when they are
    /// compiled.
    pub(crate) fn reconsider_lockdowns(&mut self) {
        let is_requested = |why: &Lockdown| *why == Lockdown::Requested;
        let others = self.quota.lockdowns.iter().filter(|(_, why)| !is_requested(why));
        let others: Vec<PolicyIndex> = others.map(|(policy, _)| *policy).collect();
        others.into_iter().for_each(|policy| self.unlock(policy));
        self.quota.checked = 0;
    }

    fn unlock(&mut self, policy: PolicyIndex) {
        if self.quota.lockdowns.remove(&policy).is_some() {
            self.forget_sections(self.group_of(policy));
            self.quota.disturbed.push(self.group_of(policy));
        }
    }

    /// Drops the compiled rules of a policy, and its sets unless other policies use them.
    pub(crate) fn lock_down(
        &mut self,
        policy: PolicyIndex,
        why: Lockdown,
        sets: &mut Sets,
        cluster: &mut Cluster,
    ) {
        for direction in Direction::BOTH {
            let unused = self.drop_compiled(policy, direction);
            unused.into_iter().rev().for_each(|set| sets.release(set, cluster));
        }
        self.quota.lockdowns.insert(policy, why);
        self.quota.disturbed.push(self.group_of(policy));
    }

    /// The entries of the compiled rules of a policy in one direction.
    pub(crate) fn rule_entries(&self, policy: PolicyIndex, direction: Direction) -> usize {
        self.table[policy].compiled(direction).map_or(0, |compiled| compiled.entries)
    }

    /// Whether the entries in use exceed the budget of the node so far that compiling must not
    /// continue before a check.
    pub(crate) fn must_check_budget(&self, sets: &Sets) -> bool {
        self.entries_in_use(sets) / 2 > self.quota.budget.node
    }

    /// Whether a policy can exceed a budget because of changes since the last check. Growth of a
    /// sixteenth is tolerated.
    pub(crate) fn should_check_budget(&self, sets: &Sets) -> bool {
        let now = self.entries_in_use(sets);
        let grown = self.quota.checked + self.quota.checked / 16;
        now > self.quota.budget.policy.min(self.quota.budget.namespace) && now > grown
    }

    fn entries_in_use(&self, sets: &Sets) -> usize {
        self.quota.rules.saturating_add(sets.entries())
    }

    /// Locks down the policies that exceed a budget: those that exceed the budget of a policy, the
    /// largest of namespaces that exceed theirs, and the largest of the namespaces that use most
    /// while the budget of the node is exceeded.
    pub(crate) fn enforce_budget(&mut self, sets: &mut Sets, cluster: &mut Cluster) {
        let compiled: Vec<PolicyIndex> = self.quota.compiled.iter().copied().collect();
        let rules = compiled.iter().map(|policy| self.rules_of(*policy)).sum();
        let checked = BudgetCheck { policies: self, sets, cluster, rules }.run(compiled);
        self.quota.checked = checked;
    }

    /// The sets of a policy.
    fn sets_of(&self, policy: PolicyIndex) -> BTreeSet<SetIndex> {
        let compiled =
            Direction::BOTH.into_iter().filter_map(|way| self.table[policy].compiled(way));
        compiled.flat_map(|compiled| compiled.sets.iter().copied()).collect()
    }

    /// The entries of the rules of a policy. Each class of endpoints has its own.
    fn rules_of(&self, policy: PolicyIndex) -> usize {
        let entries: usize =
            Direction::BOTH.into_iter().map(|way| self.rule_entries(policy, way)).sum();
        entries.saturating_mul(self.classes_of(self.group_of(policy)).len().max(1))
    }
}

/// A comparison of all policies with the budget.
struct BudgetCheck<'a> {
    policies: &'a mut Policies,
    sets: &'a mut Sets,
    cluster: &'a mut Cluster,
    /// The entries of all rules.
    rules: usize,
}

impl BudgetCheck<'_> {
    /// Locks down policies, and returns the entries of the others.
    fn run(mut self, compiled: Vec<PolicyIndex>) -> usize {
        let Budget { policy: of_policy, namespace: of_namespace, node: of_node } =
            self.policies.quota.budget;
        let mut by_namespace: BTreeMap<Name, Vec<(usize, PolicyIndex)>> = BTreeMap::new();
        for policy in compiled {
            let sets = self.policies.sets_of(policy).into_iter();
            let entries = self.policies.rules_of(policy)
                + sets.map(|set| self.sets.entries_of(set)).sum::<usize>();
            if entries > of_policy {
                self.lock_down(policy, Lockdown::Policy);
            } else {
                let namespace = self.policies.table[policy].id.namespace.clone();
                by_namespace.entry(namespace).or_default().push((entries, policy));
            }
        }
        for list in by_namespace.values_mut() {
            list.sort_by_cached_key(|(size, policy)| {
                (*size, self.policies.table[*policy].id.clone())
            });
        }
        let mut cluster_wide = by_namespace.remove("").unwrap_or_default();
        by_namespace
            .values_mut()
            .for_each(|list| self.limit(list, of_namespace, Lockdown::Namespace));
        let mut share = of_namespace.min(of_node);
        while self.entries() > of_node && share > 0 {
            share -= share.div_ceil(4);
            by_namespace.values_mut().for_each(|list| self.limit(list, share, Lockdown::Node));
        }
        if self.entries() > of_node {
            self.limit(&mut cluster_wide, of_node, Lockdown::Node);
        }
        self.entries()
    }

    fn entries(&self) -> usize {
        self.rules.saturating_add(self.sets.entries())
    }

    /// Locks down the largest of these policies, which are sorted by size, so that the others
    /// together stay within a limit. Removes them from the list.
    fn limit(&mut self, policies: &mut Vec<(usize, PolicyIndex)>, limit: usize, why: Lockdown) {
        let mut used = 0_usize;
        let mut counted: HashSet<SetIndex> = HashSet::new();
        policies.retain(|(_, policy)| {
            let own = self.policies.sets_of(*policy);
            let new = own.iter().filter(|set| !counted.contains(*set));
            let entries = self.policies.rules_of(*policy)
                + new.map(|set| self.sets.entries_of(*set)).sum::<usize>();
            let fits = used.saturating_add(entries) <= limit;
            if fits {
                used += entries;
                counted.extend(own);
            } else {
                self.lock_down(*policy, why);
            }
            fits
        });
    }

    fn lock_down(&mut self, policy: PolicyIndex, why: Lockdown) {
        self.rules -= self.policies.rules_of(policy);
        self.policies.lock_down(policy, why, self.sets, self.cluster);
    }
}
