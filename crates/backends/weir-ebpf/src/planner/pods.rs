//! The pods of the node: the rules of each address, and the number of its entry.

use std::{collections::BTreeMap, mem, net::IpAddr, sync::Arc};

use weir_model::{Chain, Direction, PodId, Program, RuleSet};

use super::EbpfPlanner;
use crate::{
    layout::{DirectionEntry, Identity, Kind, MAX_PODS, PodEntry},
    tables::Write,
    tier::{AtomId, Signature, TierRole},
};

/// The rules of pods, shared by all pods with them.
#[derive(Clone, Debug)]
pub(super) struct LiveRules {
    /// Keeps the address valid by which the rules are found.
    _rules: Arc<RuleSet>,
    ingress: DirectionEntry,
    egress: DirectionEntry,
    tiers: Vec<u32>,
    uses: usize,
}

/// An address of a pod of this node, or in a set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Address {
    pub(crate) sets: Signature,
    /// The sets of domain names that had the address before.
    pub(crate) former: Vec<AtomId>,
    pub(crate) kind: Kind,
    pub(crate) pod: Option<PodAt>,
}

impl Address {
    /// Whether it is in no set and belongs to no pod.
    pub(crate) fn is_unused(&self) -> bool {
        self.sets.is_empty() && self.former.is_empty() && self.pod.is_none()
    }
}

/// The pod that has an address.
#[derive(Clone, Debug)]
pub(crate) struct PodAt {
    id: PodId,
    rules: usize,
    since: u32,
}

impl EbpfPlanner {
    /// Whether a pod of the node with an address of a family is isolated for ingress.
    pub(super) fn isolated_families(&self) -> [bool; 2] {
        self.isolated.map(|count| count > 0)
    }

    fn is_isolated(&self, pod: &PodAt) -> bool {
        self.rules.get(&pod.rules).is_some_and(|rules| rules.ingress.is_isolated)
    }

    /// Gives addresses the rules of their pods. Returns whether a pod is new at its address.
    pub(super) fn switch_pods(&mut self, pods: BTreeMap<IpAddr, Option<(PodId, usize)>>) -> bool {
        let mut has_new = false;
        let next_epoch = self.tables.config.epoch.wrapping_add(1);
        for (address, owner) in pods {
            let is_known = self.addresses.contains_key(&address);
            if !is_known && owner.is_none() {
                continue;
            }
            self.addresses.entry(address).or_default();
            if !is_known {
                self.update_kind(address);
            }
            let before = self.addresses.get(&address).and_then(|one| one.pod.clone());
            let pod = owner.map(|(id, rules)| {
                let since = match &before {
                    Some(pod) if pod.id == id => pod.since,
                    None if self.seeds.since.contains_key(&address) => self.seeds.since[&address],
                    _ if self.is_filled => {
                        has_new = true;
                        next_epoch
                    }
                    _ => self.seeds.since_now,
                };
                PodAt { id, rules, since }
            });
            let count = |pod: &Option<PodAt>| {
                usize::from(pod.as_ref().is_some_and(|pod| self.is_isolated(pod)))
            };
            let (more, fewer) = (count(&pod), count(&before));
            let isolated = &mut self.isolated[usize::from(address.is_ipv6())];
            *isolated = (*isolated + more).saturating_sub(fewer);
            if let Some(one) = self.addresses.get_mut(&address) {
                one.pod = pod;
            }
            if let Some(pod) = before {
                self.release_rules(pod.rules);
            }
            self.drop_unused(address);
            let write = self.address_write(address);
            if self.tables.apply(&write) {
                self.switch.push(write);
            }
        }
        has_new
    }

    /// Counts a use of rules, and adds them if they are new.
    pub(super) fn use_rules(&mut self, program: &Program, rules: &Arc<RuleSet>) -> usize {
        let number = Arc::as_ptr(rules) as usize;
        if let Some(known) = self.rules.get_mut(&number) {
            known.uses += 1;
            return number;
        }
        let mut tiers = Vec::new();
        let [ingress, egress] = Direction::BOTH.map(|direction| {
            let Chain { admin, isolation, baseline } = rules.chain(direction);
            let admin = self.use_tier(program, TierRole::Admin, admin, &mut tiers);
            let rest = match isolation {
                Some(sections) => {
                    self.use_tier(program, TierRole::Isolation, &sections.to_vec(), &mut tiers)
                }
                None => self.use_tier(program, TierRole::Baseline, baseline, &mut tiers),
            };
            DirectionEntry { admin, rest, is_isolated: isolation.is_some() }
        });
        let rules = rules.clone();
        self.rules.insert(number, LiveRules { _rules: rules, ingress, egress, tiers, uses: 1 });
        number
    }

    fn release_rules(&mut self, number: usize) {
        let Some(rules) = self.rules.get_mut(&number) else { return };
        rules.uses -= 1;
        if rules.uses == 0
            && let Some(rules) = self.rules.remove(&number)
        {
            for tier in rules.tiers {
                self.release_tier(tier);
            }
        }
    }

    /// The write of an address as its state is.
    pub(crate) fn address_write(&mut self, address: IpAddr) -> Write {
        let identity = match self.addresses.get_mut(&address).map(mem::take) {
            None => None,
            Some(one) => {
                let identity = self.identity(&one);
                self.addresses.insert(address, one);
                Some(identity)
            }
        };
        Write::Address(address, identity)
    }

    /// The identity of an address as its state is.
    pub(crate) fn identity(&mut self, one: &Address) -> Identity {
        let rules = one.pod.as_ref().and_then(|pod| Some((pod, self.rules.get(&pod.rules)?)));
        match rules {
            None => Identity::Kind(one.kind),
            Some((pod, rules)) => {
                let (ingress, egress) = (rules.ingress, rules.egress);
                let entry = PodEntry { kind: one.kind, since: pod.since, ingress, egress };
                Identity::Pod(self.pod_number(entry))
            }
        }
    }

    /// The number of a pod entry.
    fn pod_number(&mut self, entry: PodEntry) -> u32 {
        if let Some(number) = self.pod_numbers.get(&entry) {
            return *number;
        }
        let number = match self.seeds.pods.get(&entry) {
            Some(number) => *number,
            None => {
                self.next_pod += 1;
                self.next_pod - 1
            }
        };
        self.is_full |= number >= MAX_PODS;
        self.pod_numbers.insert(entry, number);
        self.write_prepared(Write::Pod(number, entry));
        number
    }

    /// The epoch since which each address belongs to its pod.
    pub(super) fn since(&self) -> BTreeMap<IpAddr, u32> {
        let pods = self.addresses.iter();
        pods.filter_map(|(at, one)| Some((*at, one.pod.as_ref()?.since))).collect()
    }
}
