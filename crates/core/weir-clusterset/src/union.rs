//! Several clusters as one world, so that one question can be asked of all of them.
//!
//! A namespace is called `cluster:namespace` there. What is local stays local: selectors of namespaces and nodes ask for the cluster as
//! well, except those of ClusterSetNetworkPolicies, which see the namespaces of all clusters.

use std::{collections::BTreeMap, sync::Arc};

use weir_model::{
    Labels, NAMESPACE_NAME_LABEL, Name, Namespace, Node, Pod, PodId, Policy, PolicyId, PolicyKind,
    PolicyRule, Requirement, Scope, Selector, Spec, Subject, Who, World,
};

use crate::Interest;

/// The label that says which cluster a namespace is of. It is reserved, so no selector of others asks for it.
const CLUSTER: &str = "submariner-io/clusterID";

/// What something of a cluster is called among those of others.
pub fn qualified(cluster: &str, name: &str) -> Name {
    format!("{cluster}:{name}").into()
}

/// Several clusters as one world.
pub fn union(clusters: &BTreeMap<Name, World>) -> World {
    let mut union = World::default();
    for (cluster, world) in clusters {
        let label = |labels: &Labels| {
            let own = (Name::from(CLUSTER), cluster.clone());
            labels.iter().cloned().chain([own]).collect::<Labels>()
        };
        for namespace in world.namespaces.values() {
            let name = qualified(cluster, &namespace.name);
            let labels = label(&namespace.labels);
            let location = namespace.location.clone();
            union.namespaces.insert(name.clone(), Namespace { name, labels, location });
        }
        for node in world.nodes.values() {
            let name = qualified(cluster, &node.name);
            let node = Node { name: name.clone(), labels: label(&node.labels), ..node.clone() };
            union.nodes.insert(name, node);
        }
        for pod in world.pods.values() {
            let id = PodId {
                namespace: qualified(cluster, &pod.id.namespace),
                name: pod.id.name.clone(),
            };
            let node = pod.node.as_ref().map(|node| qualified(cluster, node));
            union.pods.insert(id.clone(), Pod { id, node, ..pod.clone() });
        }
        for policy in world.policies.values() {
            let policy = among(cluster, policy);
            union.policies.insert(policy.id.clone(), policy);
        }
        union.domains.extend(world.domains.clone());
    }
    union
}

/// Whether a policy of a union is about pods of another cluster by name, as only a ClusterSetNetworkPolicy can be.
pub fn crosses(policy: &Policy) -> bool {
    let own = policy.id.namespace.split_once(':').map(|(cluster, _)| cluster);
    let rules = [&policy.spec.ingress, &policy.spec.egress].into_iter().flatten().flatten();
    let mut peers = rules.flat_map(|rule| rule.peers.iter().flatten());
    peers.any(|peer| match &peer.who {
        Who::Pods { scope: Scope::Matching(selector), .. } => selector
            .requirements()
            .iter()
            .filter_map(named)
            .any(|name| name.split_once(':').map(|(cluster, _)| cluster) != own),
        _ => false,
    })
}

/// A policy of a union as it would be written in its own cluster, and which that is.
pub fn parted(policy: &Policy) -> (Option<Name>, Policy) {
    let kind = match (policy.id.kind, crosses(policy)) {
        (PolicyKind::NetworkPolicy, true) => PolicyKind::ClusterSetNetworkPolicy,
        (kind, _) => kind,
    };
    let (cluster, namespace) = match policy.id.namespace.split_once(':') {
        Some((cluster, namespace)) => (Some(Name::from(cluster)), namespace.into()),
        None => (None, policy.id.namespace.clone()),
    };
    let bare = |selector: &Selector| {
        let requirements = selector.requirements().iter().map(|requirement| {
            match named(requirement).and_then(|name| name.split_once(':')) {
                Some((_, name)) => Requirement::equals(NAMESPACE_NAME_LABEL, name),
                None => requirement.clone(),
            }
        });
        requirements.filter(|requirement| &**requirement.key() != CLUSTER).collect()
    };
    let id = PolicyId { kind, namespace, name: policy.id.name.clone() };
    (cluster, Policy { id, location: policy.location.clone(), spec: with_selectors(policy, bare) })
}

/// A policy as one of a union.
fn among(cluster: &Name, policy: &Policy) -> Policy {
    let own = Requirement::equals(CLUSTER, cluster.clone());
    let local = |selector: &Selector| -> Selector {
        selector.requirements().iter().cloned().chain([own.clone()]).collect()
    };
    let mut spec = with_selectors(policy, local);
    let mut id = policy.id.clone();
    match id.kind.is_namespaced() {
        true => id.namespace = qualified(cluster, &id.namespace),
        false => id.name = qualified(cluster, &id.name),
    }
    if policy.id.kind == PolicyKind::ClusterSetNetworkPolicy {
        let mut wide = (*policy.spec).clone();
        for rule in [&mut wide.ingress, &mut wide.egress].into_iter().flatten().flatten() {
            reach_out(policy, rule, &local);
        }
        spec = Arc::new(wide);
    }
    Policy { id, location: policy.location.clone(), spec }
}

/// Lets the peers of a rule mean the pods of all clusters.
fn reach_out(policy: &Policy, rule: &mut PolicyRule, local: &impl Fn(&Selector) -> Selector) {
    for peer in rule.peers.iter_mut().flatten() {
        let is_known = Interest::of(policy, peer).is_some();
        let Who::Pods { scope, .. } = &mut peer.who else { continue };
        match scope {
            Scope::Own if is_known => {
                let own = Requirement::equals(NAMESPACE_NAME_LABEL, policy.id.namespace.clone());
                *scope = Scope::Matching(Selector::from_iter([own]));
            }
            // What asks for labels that never travel stays at home.
            Scope::Matching(selector) if !is_known => *selector = local(selector),
            Scope::Own | Scope::Matching(_) => (),
        }
    }
}

/// What a policy says, with its selectors of namespaces and nodes changed.
fn with_selectors(policy: &Policy, change: impl Fn(&Selector) -> Selector) -> Arc<Spec> {
    let scope = |scope: &Scope| match scope {
        Scope::Own => Scope::Own,
        Scope::Matching(selector) => Scope::Matching(change(selector)),
    };
    let mut spec = (*policy.spec).clone();
    spec.subject = Subject { scope: scope(&spec.subject.scope), pods: spec.subject.pods };
    for rule in [&mut spec.ingress, &mut spec.egress].into_iter().flatten().flatten() {
        for peer in rule.peers.iter_mut().flatten() {
            match &mut peer.who {
                Who::Pods { scope: namespaces, .. } => *namespaces = scope(namespaces),
                Who::Nodes(selector) => *selector = change(selector),
                Who::Block(_) | Who::Domain(_) => (),
            }
        }
    }
    Arc::new(spec)
}

/// The one name of a namespace that a requirement asks for.
fn named(requirement: &Requirement) -> Option<&str> {
    match requirement {
        Requirement::In(key, values) if &**key == NAMESPACE_NAME_LABEL && values.len() == 1 => {
            values.first().map(|name| &**name)
        }
        _ => None,
    }
}
