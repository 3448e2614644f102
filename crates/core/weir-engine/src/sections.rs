//! The compiled rules of policies.

use std::sync::Arc;

use weir_model::{Direction, NamedPort, PolicyRule, PortNameList, Section, Tier};

use crate::{
    budget::{self, Lockdown},
    cluster::Cluster,
    compile,
    policies::{CompiledDirection, Policies, PolicyEntry, PolicyIndex},
    sets::{SetIndex, Sets},
};

impl PolicyEntry {
    fn compile(
        &self,
        rules: &[PolicyRule],
        names: &[PortNameList],
        direction: Direction,
        ports: &[NamedPort],
        sets: &Sets,
    ) -> Arc<Section> {
        let policy = (&self.id, &self.location);
        let set = |key| sets.id_of(key);
        Arc::new(compile::section(policy, rules, names, direction, ports, set))
    }
}

impl Policies {
    /// The compiled section of a policy for an endpoint with these named ports.
    pub(crate) fn section(
        &mut self,
        policy: PolicyIndex,
        direction: Direction,
        ports: &[NamedPort],
        sets: &mut Sets,
        cluster: &mut Cluster,
    ) -> Option<Arc<Section>> {
        let spec = self.table[policy].spec.clone();
        let rules = spec.rules(direction)?;
        // In the admin tiers, an empty list of rules has no effect.
        if rules.is_empty() && spec.tier != Tier::Namespace {
            return None;
        }
        if !self.quota.is_locked_down(policy) && self.table[policy].compiled(direction).is_none() {
            self.compile(policy, rules, direction, sets, cluster);
        }
        let entry = &self.table[policy];
        if self.quota.is_locked_down(policy) {
            let policy = (&entry.id, &entry.location);
            return Some(Arc::new(compile::locked_down(policy, spec.tier, direction)));
        }
        let known = entry.compiled(direction).and_then(|known| known.section.clone());
        known.or_else(|| {
            let names = compile::port_names(rules, direction);
            Some(entry.compile(rules, &names, direction, ports, sets))
        })
    }

    /// Compiles one direction of a policy, or locks the policy down if that exceeds its budget.
    fn compile(
        &mut self,
        policy: PolicyIndex,
        rules: &[PolicyRule],
        direction: Direction,
        sets: &mut Sets,
        cluster: &mut Cluster,
    ) {
        let entry = &self.table[policy];
        let other = entry.compiled(direction.opposite());
        let of_other = other.iter().flat_map(|other| &other.sets).map(|set| sets.entries_of(*set));
        let entries = budget::entries(rules);
        let known = entries + other.map_or(0, |other| other.entries) + of_other.sum::<usize>();
        let Some(mut allowance) = self.quota.allowance(known) else {
            return self.lock_down(policy, Lockdown::Policy, sets, cluster);
        };
        let names = compile::port_names(rules, direction);
        let mut used = Vec::new();
        for key in compile::set_keys(&entry.id.namespace, rules, &names, direction) {
            match sets.acquire_within(key, &mut allowance, cluster) {
                Ok(set) => used.push(set),
                Err(why) => {
                    used.into_iter().rev().for_each(|set| sets.release(set, cluster));
                    return self.lock_down(policy, why, sets, cluster);
                }
            }
        }
        let fixed = !compile::depends_on_ports(rules, direction);
        let section = fixed.then(|| entry.compile(rules, &names, direction, &[], sets));
        let compiled = CompiledDirection { sets: used, entries, section };
        *self.table[policy].compiled_mut(direction) = Some(Box::new(compiled));
        self.quota.add(policy);
    }

    /// Drops one compiled direction of a policy that applies to no endpoint any more.
    pub(crate) fn retire(&mut self, policy: PolicyIndex, direction: Direction) {
        let sets = self.drop_compiled(policy, direction);
        self.retired.extend(sets);
    }

    /// Drops one compiled direction of a policy and returns its sets.
    pub(crate) fn drop_compiled(
        &mut self,
        policy: PolicyIndex,
        direction: Direction,
    ) -> Vec<SetIndex> {
        self.forget_sections(self.group_of(policy));
        let entry = &mut self.table[policy];
        let Some(dropped) = entry.compiled_mut(direction).take() else { return Vec::new() };
        if entry.compiled(direction.opposite()).is_none() {
            self.quota.remove(policy);
        }
        dropped.sets
    }
}
