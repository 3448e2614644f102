//! Small edits: one field of an existing object changes.

use std::{mem::swap, sync::Arc};

use proptest::prelude::*;
use weir_model::{Node, Object, Pod, Policy, PolicyKind, PolicyRule, PortMatch, Spec, World};

use crate::{policy::rule::make_valid, pool};

/// The choice of an object, of a part of it, and of a rule or number in that part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectEdit {
    which: usize,
    part: u8,
    at: usize,
}

/// A random edit.
pub(crate) fn edit() -> impl Strategy<Value = ObjectEdit> {
    (0..40_usize, 0..12_u8, 0..pool::PORTS.len()).prop_map(|(which, part, at)| ObjectEdit {
        which,
        part,
        at,
    })
}

impl ObjectEdit {
    /// Copies one part of `like` into an existing object of its kind. Returns `like` if there is none.
    pub(crate) fn apply(self, world: &World, like: Object) -> Object {
        match like {
            Object::Pod(like) => Object::Pod(match self.choose(world.pods.values()) {
                Some(old) => self.pod(old.clone(), like),
                None => like,
            }),
            Object::Node(like) => Object::Node(match self.choose(world.nodes.values()) {
                Some(old) => self.node(old.clone(), like),
                None => like,
            }),
            Object::Policy(like) => {
                let kind = |old: &&Policy| old.id.kind == like.id.kind;
                let old = self.choose(world.policies.values().filter(kind)).cloned();
                Object::Policy(old.map_or(like.clone(), |old| self.policy(old, like)))
            }
            Object::Namespace(_)
            | Object::Service(_)
            | Object::EndpointSlice(_)
            | Object::Domain(..) => like,
        }
    }

    fn choose<T>(self, all: impl Iterator<Item = T>) -> Option<T> {
        let mut all: Vec<T> = all.collect();
        (!all.is_empty()).then(|| all.swap_remove(self.which % all.len()))
    }

    fn pod(self, mut pod: Pod, like: Pod) -> Pod {
        match self.part {
            // A second pod with the same fields, including the address.
            0 => pod.id = like.id,
            1 | 2 => pod.labels = like.labels,
            3 => pod.addresses = like.addresses,
            4 => {
                pod.addresses.pop();
            }
            5 => pod.addresses.reverse(),
            6 => pod.node = like.node,
            7 => pod.ports = like.ports,
            8 => pod.ports.reverse(),
            9 => pod.claim = like.claim,
            10 => pod.finished = !pod.finished,
            _ => pod.host_network = !pod.host_network,
        }
        pod
    }

    fn node(self, mut node: Node, like: Node) -> Node {
        match self.part {
            0..6 => node.labels = like.labels,
            _ => node.addresses = like.addresses,
        }
        node
    }

    fn policy(self, mut policy: Policy, like: Policy) -> Policy {
        let spec = Arc::make_mut(&mut policy.spec);
        match self.part {
            // A second policy with the same spec.
            0 => policy.id = like.id,
            1 => policy.location = like.location,
            2 => spec.tier = like.spec.tier,
            3 => spec.subject = like.spec.subject.clone(),
            4 => spec.ingress.clone_from(&like.spec.ingress),
            5 => spec.egress.clone_from(&like.spec.egress),
            // Only a NetworkPolicy has the same kinds of rules in both directions.
            6 if policy.id.kind == PolicyKind::NetworkPolicy => {
                swap(&mut spec.ingress, &mut spec.egress);
            }
            6 | 7 => self.rules(spec, &like.spec, |rule, like| rule.peers.clone_from(&like.peers)),
            8 => self.rules(spec, &like.spec, |rule, like| rule.ports.clone_from(&like.ports)),
            9 => self.rules(spec, &like.spec, |rule, like| rule.action = like.action),
            10 => self.rules(spec, &like.spec, |rule, _| self.range(rule)),
            _ => [&mut spec.ingress, &mut spec.egress].into_iter().flatten().for_each(reverse),
        }
        policy
    }

    /// Edits one rule in each direction that has rules in both policies.
    fn rules(self, spec: &mut Spec, like: &Spec, edit: impl Fn(&mut PolicyRule, &PolicyRule)) {
        let ways = [(&mut spec.ingress, &like.ingress), (&mut spec.egress, &like.egress)];
        for (rules, like) in ways {
            let rule = rules.as_mut().and_then(|rules| {
                let count = rules.len().max(1);
                rules.get_mut(self.at % count)
            });
            if let (Some(rule), Some([like, ..])) = (rule, like.as_deref()) {
                edit(rule, like);
                *rule = make_valid(rule.clone());
            }
        }
    }

    /// Changes the end of port ranges.
    fn range(self, rule: &mut PolicyRule) {
        for spec in rule.ports.iter_mut().flatten() {
            if let PortMatch::Range(range) = &mut spec.ports {
                range.last = pool::PORTS[self.at].max(range.first);
            }
        }
    }
}

/// Reverses the order of the rules.
fn reverse(rules: &mut Vec<PolicyRule>) {
    rules.reverse();
    (0..).zip(rules).for_each(|(index, rule)| rule.index = index);
}
