//! Signposts: chains that no packet enters, and whose comments name the pods and policies of the node.
//!
//! Sets and merged chains contain the rules of many policies, so their names alone do not lead from
//! a policy to its rules. Each pod and each policy has a chain with a name in kube-router's format.
//! The comments of its rules name the chains and sets that decide. The set
//! `inet6:KUBE-DST-POLICIES` has an entry for each policy, which names its chain.
//!
//! Pods with equal rules share the rules that they add to the signposts of policies, so that the
//! number of rules does not grow with pods times policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use weir_datapath::{MAX_POLICY_NAMES, isolated_by, policy_name};
use weir_model::{Chain, Direction, IpFamily, Name, PodId, PolicyId, RuleSet, Section};

use crate::{
    Entry, IptablesRule, IptablesTarget, Match, SrcDst,
    name::{self, MAX_COMMENT, comment},
    objects::Objects,
    skeleton,
};

/// The length of a name in a comment. The rest is for the direction and the place.
const MAX_NAME: usize = 205;
/// The length of the policies in the comment of a pod. Longer ones become a list.
const MAX_POLICIES: usize = 150;

/// A rule of a signpost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SignpostRule {
    /// The address of the pod, and the direction in which it is compared.
    at: Option<(Direction, IpAddr)>,
    comment: Name,
    /// The chain or set that the comment of a policy names.
    place: Place,
}

impl SignpostRule {
    fn rule(&self) -> IptablesRule {
        let at = |(direction, address): (Direction, IpAddr)| {
            Match::At(SrcDst::here(direction), IpNet::from(address))
        };
        IptablesRule {
            matches: self.at.map(at).into_iter().collect(),
            target: IptablesTarget::Return,
            comment: self.comment.clone(),
        }
    }
}

/// A rule of a signpost, and its chain.
type Line = ((IpFamily, Name), SignpostRule);

/// The chain or set that has the rules of a policy. `None` if it has no rule in a family.
pub(crate) type Place = Option<Name>;

/// The rules of several pods in one direction and family. Two rule sets at one address never exist
/// at the same time, because a class holds its rule set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassKey {
    rules: usize,
    direction: Direction,
    family: IpFamily,
    /// Whether the pods have a chain.
    has_chain: bool,
}

#[derive(Clone, Debug)]
struct Class {
    _rules: Arc<RuleSet>,
    pods: usize,
    lines: Vec<Line>,
    policies: Vec<PolicyId>,
}

/// The part of a pod in the signposts.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodSignposts {
    lines: Vec<Line>,
    classes: Vec<ClassKey>,
}

/// All signposts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signposts {
    /// The rules of each chain, with the number of pods and classes that need them.
    chains: BTreeMap<(IpFamily, Name), BTreeMap<SignpostRule, usize>>,
    classes: BTreeMap<ClassKey, Class>,
    /// The number of classes of each policy.
    policies: BTreeMap<PolicyId, usize>,
    /// The chains that changed since the last flush.
    changed: BTreeSet<(IpFamily, Name)>,
    changed_policies: BTreeSet<PolicyId>,
}

/// The rules of a pod in one direction.
pub(crate) struct PodDirection<'a> {
    pub(crate) pod: &'a PodId,
    pub(crate) rules: &'a Arc<RuleSet>,
    pub(crate) direction: Direction,
}

impl Signposts {
    /// Adds an address of a pod. `chain` is the chain of the pod, with the places of its policies in
    /// order, or `None` if its grants are in a set.
    pub(crate) fn add(
        &mut self,
        signposts: &mut PodSignposts,
        of: &PodDirection<'_>,
        address: IpAddr,
        chain: Option<(&Name, &[Place])>,
    ) {
        let PodDirection { pod, rules, direction } = *of;
        let family = IpFamily::from(address);
        let all = rules.chain(direction);
        let pod_name = short(&pod.to_string());
        let texts = if all.is_open() {
            vec![format!("{pod_name} {direction}: not isolated")]
        } else {
            let key = ClassKey {
                rules: Arc::as_ptr(rules).addr(),
                direction,
                family,
                has_chain: chain.is_some(),
            };
            self.add_class(&key, rules, chain.map(|(_, places)| places));
            signposts.classes.push(key);
            let place = match chain {
                Some((chain, _)) => chain.clone(),
                None => skeleton::grants(direction, family),
            };
            let place = format!("{pod_name} {direction}: {place}");
            let why = match list(all) {
                Some(list) => format!("policies: {list}"),
                None => isolated_by(all),
            };
            match format!("{place}, {why}") {
                text if text.len() <= MAX_COMMENT => vec![text],
                _ => vec![place, why],
            }
        };
        let signpost = (family, name::pod_signpost(pod));
        for text in texts {
            let at = Some((direction, address));
            let rule = SignpostRule { at, comment: comment(&text), place: None };
            self.count(&signpost, &rule);
            signposts.lines.push((signpost.clone(), rule));
        }
    }

    /// Adds a pod of a class. The first one adds the rules of the class.
    fn add_class(&mut self, key: &ClassKey, rules: &Arc<RuleSet>, places: Option<&[Place]>) {
        if let Some(class) = self.classes.get_mut(key) {
            class.pods += 1;
            return;
        }
        let ClassKey { direction, family, .. } = *key;
        let all = rules.chain(direction);
        let list = list(all);
        let (mut lines, mut ids) = (Vec::new(), Vec::new());
        for (at, section) in policies(all).enumerate() {
            let place = match places {
                Some(places) => places.get(at).cloned().flatten(),
                None if section.rules.is_empty() => Some(skeleton::not_allowed(direction)),
                None => Some(skeleton::grants(direction, family)),
            };
            let policy = short(&policy_name(&section.policy));
            let signpost = name::policy_signpost(&section.policy);
            let mut add = |chain: &Name, place: Place| {
                let text = place.as_deref().unwrap_or("no rules");
                let comment = comment(&format!("{policy} {direction}: {text}"));
                lines.push(((family, chain.clone()), SignpostRule { at: None, comment, place }));
            };
            add(&signpost, place);
            if let Some(list) = &list {
                add(list, Some(signpost.clone()));
            }
            ids.push(section.policy.clone());
        }
        lines.iter().for_each(|(chain, rule)| self.count(chain, rule));
        for policy in &ids {
            *self.policies.entry(policy.clone()).or_default() += 1;
            self.changed_policies.insert(policy.clone());
        }
        let class = Class { _rules: rules.clone(), pods: 1, lines, policies: ids };
        self.classes.insert(key.clone(), class);
    }

    /// Removes a pod.
    pub(crate) fn remove(&mut self, signposts: &PodSignposts) {
        signposts.lines.iter().for_each(|(chain, line)| self.release(chain, line));
        for key in &signposts.classes {
            let Some(class) = self.classes.get_mut(key) else { continue };
            class.pods -= 1;
            if class.pods > 0 {
                continue;
            }
            let Some(class) = self.classes.remove(key) else { continue };
            class.lines.iter().for_each(|(chain, line)| self.release(chain, line));
            for policy in class.policies {
                if let Some(count) = self.policies.get_mut(&policy) {
                    *count -= 1;
                    if *count == 0 {
                        self.policies.remove(&policy);
                    }
                }
                self.changed_policies.insert(policy);
            }
        }
    }

    /// The chains and sets that the signposts of a policy name.
    pub(crate) fn places(&self, policy: &PolicyId) -> BTreeSet<(IpFamily, Name)> {
        let name = name::policy_signpost(policy);
        let in_family = |family| {
            let rules = self.chains.get(&(family, name.clone())).into_iter().flatten();
            rules.filter_map(move |(rule, _)| Some((family, rule.place.clone()?)))
        };
        IpFamily::BOTH.into_iter().flat_map(in_family).collect()
    }

    fn count(&mut self, chain: &(IpFamily, Name), line: &SignpostRule) {
        let lines = self.chains.entry(chain.clone()).or_default();
        *lines.entry(line.clone()).or_default() += 1;
        self.changed.insert(chain.clone());
    }

    fn release(&mut self, chain: &(IpFamily, Name), line: &SignpostRule) {
        let Some(lines) = self.chains.get_mut(chain) else { return };
        if let Some(count) = lines.get_mut(line) {
            *count -= 1;
            if *count == 0 {
                lines.remove(line);
            }
        }
        if lines.is_empty() {
            self.chains.remove(chain);
        }
        self.changed.insert(chain.clone());
    }

    /// Writes the changed signposts to the desired chains and sets.
    pub(crate) fn flush(&mut self, objects: &mut Objects) {
        for (family, name) in std::mem::take(&mut self.changed) {
            let lines = self.chains.get(&(family, name.clone())).into_iter().flatten();
            objects.put_signpost(family, &name, lines.map(|(line, _)| line.rule()).collect());
        }
        let set = skeleton::policies();
        for policy in std::mem::take(&mut self.changed_policies) {
            let entry = Entry::Address(name::policy_address(&policy));
            if self.policies.contains_key(&policy) {
                let policy_name = short(&policy_name(&policy));
                let text = format!("{policy_name} {}", name::policy_signpost(&policy));
                objects.put_entry(&set, entry, &comment(&text));
            } else {
                objects.remove_entry(&set, &entry);
            }
        }
    }
}

/// The policies of a chain.
fn policies(chain: &Chain) -> impl Iterator<Item = &Arc<Section>> {
    chain.admin.iter().chain(chain.isolation.iter().flatten()).chain(&chain.baseline)
}

/// The signpost that lists the policies of a chain, if a comment cannot name all of them.
fn list(chain: &Chain) -> Option<Name> {
    let all: Vec<&PolicyId> = policies(chain).map(|section| &section.policy).collect();
    let is_long = all.len() > MAX_POLICY_NAMES || isolated_by(chain).len() > MAX_POLICIES;
    is_long.then(|| name::list_signpost(&all))
}

/// The start of a name. In a comment, each character takes one byte.
fn short(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}
