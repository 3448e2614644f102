//! Policies of the admin and baseline tiers, as far as allow rules can express them.
//!
//! Endpoints list the groups of the NetworkPolicies that select the pod, and the static groups. All
//! pods that a NetworkPolicy selects list the group `static-discovery`. Allow rules for all pods are
//! there; no group can take back what another one allows.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{
    Action, Direction, Peer, Policy, PolicyId, PolicyKind, PolicyRule, PortMatch, Scope, Tier, Who,
};

use super::{Changed, Dirty, Group, GroupKey, Hpp};
use crate::{
    destinations::Destinations,
    fixed, name,
    normalized::NormalizedPolicy,
    object::{HostprotObject, Subj},
    rules::{self, CompiledPolicy, Numbers},
};

/// Why a part of a policy is not enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unexpressed {
    /// It denies.
    Deny,
    /// It allows after a rule that denies or passes.
    Order,
    /// It allows for some pods only.
    Subject,
    /// It allows nodes, domain names, or a named port of the selected pods.
    Peer,
}

/// The key of the group with the allow rules of the admin tier. No hash is equal to it.
pub(super) fn admin_key() -> GroupKey {
    ("admin".into(), "admin".into())
}

/// Whether policies of a kind are in the admin or the baseline tier.
pub(super) fn is_admin(kind: PolicyKind) -> bool {
    match kind {
        PolicyKind::AdminNetworkPolicy
        | PolicyKind::BaselineAdminNetworkPolicy
        | PolicyKind::ClusterNetworkPolicy => true,
        PolicyKind::ClusterSetNetworkPolicy | PolicyKind::NetworkPolicy => false,
    }
}

/// The allow rules that can be expressed, and the policies with others.
#[derive(Default)]
struct AdminRules {
    rules: BTreeMap<Direction, Vec<PolicyRule>>,
    policies: BTreeSet<PolicyId>,
    unexpressed: BTreeMap<PolicyId, Unexpressed>,
}

impl AdminRules {
    fn new<'p>(policies: impl Iterator<Item = &'p Policy>) -> Self {
        let mut all = AdminRules::default();
        let mut ordered: Vec<(u32, &Policy)> = Vec::new();
        for policy in policies {
            match policy.spec.tier {
                Tier::Admin { priority } => ordered.push((priority, policy)),
                // Without Deny, all connections that reach this tier are allowed anyway.
                Tier::Baseline { .. } if has_deny(policy) => {
                    all.unexpressed.insert(policy.id.clone(), Unexpressed::Deny);
                }
                Tier::Baseline { .. } | Tier::Namespace => (),
            }
        }
        ordered.sort_by(|one, other| (one.0, &one.1.id).cmp(&(other.0, &other.1.id)));
        for direction in Direction::BOTH {
            let mut is_first = true;
            for (_, policy) in &ordered {
                for rule in policy.rules(direction).unwrap_or_default() {
                    all.add(policy, rule, direction, &mut is_first);
                }
            }
        }
        all
    }

    /// Adds a rule. `is_first` is false after a rule that denies or passes.
    fn add(
        &mut self,
        policy: &Policy,
        rule: &PolicyRule,
        direction: Direction,
        is_first: &mut bool,
    ) {
        let why = match rule.action {
            Action::Pass => {
                *is_first = false;
                return;
            }
            Action::Deny => {
                *is_first = false;
                Some(Unexpressed::Deny)
            }
            Action::Allow if !*is_first => Some(Unexpressed::Order),
            Action::Allow if !selects_all(policy) => Some(Unexpressed::Subject),
            Action::Allow if !is_expressible(rule, direction) => Some(Unexpressed::Peer),
            Action::Allow => None,
        };
        match why {
            Some(why) => {
                let known = self.unexpressed.entry(policy.id.clone()).or_insert(why);
                *known = why.min(*known);
            }
            None => {
                self.rules.entry(direction).or_default().push(rule.clone());
                self.policies.insert(policy.id.clone());
            }
        }
    }
}

fn has_deny(policy: &Policy) -> bool {
    let rules = Direction::BOTH.iter().filter_map(|direction| policy.rules(*direction));
    rules.flatten().any(|rule| rule.action == Action::Deny)
}

/// Whether a policy applies to all pods.
fn selects_all(policy: &Policy) -> bool {
    let subject = &policy.spec.subject;
    let is_wide = matches!(&subject.scope, Scope::Matching(all) if all.is_everything());
    is_wide && subject.pods.is_everything()
}

fn is_expressible(rule: &PolicyRule, direction: Direction) -> bool {
    let is_known = |peer: &Peer| matches!(peer.who, Who::Pods { .. } | Who::Block(_));
    let mut ports = rule.ports.iter().flatten();
    let is_named = ports.any(|port| matches!(port.ports, PortMatch::Named { .. }));
    rule.peers.iter().flatten().all(is_known) && !(is_named && direction == Direction::Ingress)
}

impl Hpp {
    /// Recomputes the allow rules of the admin tier.
    pub(super) fn update_admin(&mut self, dirty: &mut Dirty) {
        let policies = self.world.policies.values();
        let policies = policies.take_while(|policy| policy.id.kind != PolicyKind::NetworkPolicy);
        let all = AdminRules::new(policies.filter(|policy| is_admin(policy.id.kind)));
        self.unexpressed = all.unexpressed;
        let key = admin_key();
        if let Some(old) = self.hashes.remove(&key.0).and_then(|mut all| all.remove(&key.1)) {
            let peers = rules::peer_selectors(&old.policy);
            peers.iter().for_each(|peer| self.remove_peer_use(peer, &key, dirty));
            self.everywhere_groups.remove(&key);
            self.block_port_groups.remove(&key);
            self.partial_groups.remove(&key);
            dirty.stale_admin.extend(old.made);
        }
        dirty.statics = true;
        if all.policies.is_empty() {
            return;
        }
        let policy = NormalizedPolicy::of_all_pods(&all.rules);
        let has_too_many_names = rules::has_too_many_names(&policy, &self.limits);
        let mut destinations = None;
        if !has_too_many_names {
            for peer in rules::peer_selectors(&policy) {
                self.add_peer_use(peer, &key, dirty);
            }
            destinations = Destinations::from_policy(&policy);
        }
        if destinations.as_ref().is_some_and(Destinations::are_everywhere) {
            self.everywhere_groups.insert(key.clone());
        }
        if rules::has_named_ports_in_blocks(&policy) {
            self.block_port_groups.insert(key.clone());
        }
        dirty.new_groups.insert(key.clone());
        let group = Group {
            policy,
            has_too_many_names,
            published: String::new(),
            canonical: String::new(),
            policies: all.policies,
            destinations,
            services: BTreeMap::new(),
            parts: 0,
            made: BTreeSet::new(),
        };
        self.hashes.entry(key.0).or_default().insert(key.1, group);
    }

    /// Updates the static objects, with the allow rules of the admin tier.
    pub(super) fn statics(&mut self, dirty: &mut Dirty, changed: &mut Changed) {
        let key = admin_key();
        let discovery = name::policy_object(&self.settings.prefix, "np", "static-discovery");
        let admin = self.group(&key).map(|group| {
            let (object, services) = (name::resource(&discovery), self.admitted_services(group));
            let compiled = if group.has_too_many_names {
                Err(crate::size::TooLarge)
            } else {
                rules::compile(&group.policy, &Numbers::new(), self, &object, &services)
            };
            let is_held = compiled.is_err();
            let compiled =
                compiled.unwrap_or_else(|_| CompiledPolicy::without_rules(&group.policy));
            (compiled, is_held)
        });
        let (subjects, containers, unserved, is_held) = match admin {
            Some((compiled, is_held)) => {
                (compiled.subjects, compiled.containers, compiled.unserved, is_held)
            }
            None => (Vec::new(), Vec::new(), 0, false),
        };
        if is_held {
            self.held.insert(key.clone());
        } else {
            self.held.remove(&key);
        }
        if unserved > 0 {
            self.unserved.insert(key.clone(), unserved);
        } else {
            self.unserved.remove(&key);
        }
        let containers: BTreeMap<_, _> = containers
            .into_iter()
            .map(HostprotObject::Container)
            .map(|object| (object.id(), object))
            .collect();
        let mut stale = std::mem::take(&mut dirty.stale_admin);
        stale.extend(self.remember(&key, containers.keys().cloned().collect()));
        for id in stale.into_iter().filter(|id| !containers.contains_key(id)) {
            self.set_object(id, None, changed);
        }
        for (id, object) in containers {
            self.set_object(id, Some(object), changed);
        }
        for mut pol in fixed::static_pols(&self.settings.prefix, &self.families) {
            if pol.spec.name == discovery {
                pol.spec.hostprot_subj.extend(subjects.iter().filter_map(admin_subject));
            }
            let object = HostprotObject::Pol(pol);
            self.set_object(object.id(), Some(object), changed);
        }
    }
}

/// A subject of the admin tier, if it has rules.
fn admin_subject(subject: &Subj) -> Option<Subj> {
    let name = subject.name.replace("networkpolicy", "admin");
    let hostprot_rule = subject.hostprot_rule.clone();
    (!hostprot_rule.is_empty()).then_some(Subj { name, hostprot_rule })
}
