//! Several clusters as one world, so that one query can cover all of them.
//!
//! Ids in that world carry their cluster (see [`QualifiedName`]), and so does a label of each
//! namespace and node. Local policies stay local: their selectors of namespaces and nodes also
//! require the cluster's label. Only the peers of a ClusterSetNetworkPolicy match namespaces of
//! every cluster.

use std::{collections::BTreeMap, sync::Arc};

use weir_model::{
    CLUSTER_LABEL, EndpointSlice, Labels, NAMESPACE_NAME_LABEL, Name, Namespace, Node, Pod, Policy,
    PolicyKind, PolicyRule, QualifiedName, Requirement, Scope, Selector, Service, ServiceId, Spec,
    Subject, Who, World,
};

use crate::Interest;

/// Unites several clusters in one world.
pub fn union(clusters: &BTreeMap<Name, World>) -> World {
    let mut union = World::default();
    for (cluster, world) in clusters {
        let qualified = |name: &Name| QualifiedName::new(cluster, name).to_name();
        let with_cluster = |labels: &Labels| {
            let own = (Name::from(CLUSTER_LABEL), cluster.clone());
            labels.iter().cloned().chain([own]).collect::<Labels>()
        };
        for namespace in world.namespaces.values() {
            let name = qualified(&namespace.name);
            let labels = with_cluster(&namespace.labels);
            let location = namespace.location.clone();
            union.namespaces.insert(name.clone(), Namespace { name, labels, location });
        }
        for node in world.nodes.values() {
            let name = qualified(&node.name);
            let labels = with_cluster(&node.labels);
            union.nodes.insert(name.clone(), Node { name, labels, ..node.clone() });
        }
        for pod in world.pods.values() {
            let id = pod.id.in_cluster(cluster);
            let node = pod.node.as_ref().map(qualified);
            union.pods.insert(id.clone(), Pod { id, node, ..pod.clone() });
        }
        for policy in world.policies.values() {
            let policy = qualified_policy(cluster, policy);
            union.policies.insert(policy.id.clone(), policy);
        }
        let in_cluster = |id: &ServiceId| ServiceId {
            namespace: qualified(&id.namespace),
            name: id.name.clone(),
        };
        for service in world.services.values() {
            let id = in_cluster(&service.id);
            union.services.insert(id.clone(), Service { id, ..service.clone() });
        }
        for slice in world.slices.values() {
            let id = in_cluster(&slice.id);
            union.slices.insert(id.clone(), EndpointSlice { id, ..slice.clone() });
        }
        union.domains.extend(world.domains.clone());
    }
    union
}

/// A policy of a united world as its own cluster would write it, and the name of that cluster.
///
/// A NetworkPolicy with a peer in another cluster becomes a ClusterSetNetworkPolicy, the only kind
/// that can have such peers.
pub fn localized(policy: &Policy) -> (Option<Name>, Policy) {
    let subject = match &policy.spec.subject.scope {
        Scope::Matching(selector) => required_cluster(selector),
        Scope::Own => None,
    };
    let cluster = policy.id.cluster().or(subject);
    let mut id = policy.id.in_own_cluster();
    if id.kind == PolicyKind::NetworkPolicy && has_peer_outside(policy, cluster) {
        id.kind = PolicyKind::ClusterSetNetworkPolicy;
    }
    let without_cluster = |selector: &Selector| {
        let requirements = selector.requirements().iter().cloned();
        requirements.filter(|requirement| &**requirement.key() != CLUSTER_LABEL).collect()
    };
    let spec = with_selectors(policy, without_cluster);
    (
        cluster.map(Name::from),
        Policy { id, location: policy.location.clone(), spec, staged: policy.staged },
    )
}

/// Whether a peer of a policy selects pods of one cluster that is not `own`.
fn has_peer_outside(policy: &Policy, own: Option<&str>) -> bool {
    let rules = [&policy.spec.ingress, &policy.spec.egress].into_iter().flatten().flatten();
    let mut peers = rules.flat_map(|rule| rule.peers.iter().flatten());
    peers.any(|peer| match &peer.who {
        Who::Pods { scope: Scope::Matching(selector), .. } => {
            required_cluster(selector).is_some_and(|cluster| Some(cluster) != own)
        }
        _ => false,
    })
}

/// The only cluster in which a selector of namespaces matches.
fn required_cluster(selector: &Selector) -> Option<&str> {
    selector.requirements().iter().find_map(|requirement| match requirement {
        Requirement::In(key, values) if &**key == CLUSTER_LABEL && values.len() == 1 => {
            values.first().map(|cluster| &**cluster)
        }
        _ => None,
    })
}

/// A policy of one cluster as a policy of a united world.
fn qualified_policy(cluster: &Name, policy: &Policy) -> Policy {
    let own = Requirement::equals(CLUSTER_LABEL, cluster.clone());
    let local = |selector: &Selector| -> Selector {
        selector.requirements().iter().cloned().chain([own.clone()]).collect()
    };
    let spec = if policy.id.kind == PolicyKind::ClusterSetNetworkPolicy {
        let mut spec = (*policy.spec).clone();
        for rule in [&mut spec.ingress, &mut spec.egress].into_iter().flatten().flatten() {
            widen_peers(policy, rule, &local);
        }
        Arc::new(spec)
    } else {
        with_selectors(policy, local)
    };
    Policy {
        id: policy.id.in_cluster(cluster),
        location: policy.location.clone(),
        spec,
        staged: policy.staged,
    }
}

/// Makes the peers of a rule match pods of every cluster.
fn widen_peers(policy: &Policy, rule: &mut PolicyRule, local: &impl Fn(&Selector) -> Selector) {
    for peer in rule.peers.iter_mut().flatten() {
        let is_published = Interest::from_peer(policy, peer).is_some();
        let Who::Pods { scope, .. } = &mut peer.who else { continue };
        match scope {
            Scope::Own if is_published => {
                let own = Requirement::equals(NAMESPACE_NAME_LABEL, policy.id.namespace.clone());
                *scope = Scope::Matching(Selector::from_iter([own]));
            }
            // Clusters do not publish the labels that this selector requires, so it matches only
            // local namespaces.
            Scope::Matching(selector) if !is_published => *selector = local(selector),
            Scope::Own | Scope::Matching(_) => (),
        }
    }
}

/// The spec of a policy with its selectors of namespaces and nodes changed.
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
