//! Policies, by what they select and by what their rules can name.

use std::{collections::BTreeMap, sync::Arc};

use weir_model::{Direction, Policy, PolicyId, PortMatch, Who};

use super::index::PodSelection;

/// A policy, and the frame that transfers it.
#[derive(Debug)]
pub(crate) struct PolicyRecord {
    pub(crate) id: PolicyId,
    pub(crate) subject: PodSelection,
    pub(crate) names: Arc<NamedObjects>,
    pub(crate) frame: Arc<[u8]>,
    /// How many pods of each agent's node it selects.
    pub(crate) subjects: BTreeMap<usize, u32>,
}

/// What the rules of a policy can name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NamedObjects {
    pub(crate) pods: Vec<PodSelection>,
    /// Whether rules select nodes.
    pub(crate) nodes: bool,
}

impl PolicyRecord {
    pub(crate) fn new(policy: &Policy, frame: Arc<[u8]>) -> Self {
        let subject = &policy.spec.subject;
        PolicyRecord {
            id: policy.id.clone(),
            subject: PodSelection::new(&policy.id.namespace, &subject.scope, &subject.pods),
            names: Arc::new(NamedObjects::new(policy)),
            frame,
            subjects: BTreeMap::new(),
        }
    }
}

impl NamedObjects {
    fn new(policy: &Policy) -> Self {
        let mut named = NamedObjects::default();
        for direction in Direction::BOTH {
            for rule in policy.rules(direction).unwrap_or_default() {
                let mut has_pods_only = rule.peers.is_some();
                for peer in rule.peers.iter().flatten() {
                    match &peer.who {
                        Who::Pods { scope, pods } => {
                            let namespace = &policy.id.namespace;
                            named.pods.push(PodSelection::new(namespace, scope, pods));
                        }
                        Who::Nodes(_) => named.nodes = true,
                        Who::Block(_) => has_pods_only = false,
                        Who::Domain(_) => (),
                    }
                }
                // On egress, a port name stands for the ports of all pods at the destination.
                if direction == Direction::Egress && !has_pods_only {
                    let names = rule.ports.iter().flatten().filter_map(|spec| match &spec.ports {
                        PortMatch::Named { name, .. } => Some(name.clone()),
                        PortMatch::Range(_) => None,
                    });
                    named.pods.extend(names.map(PodSelection::WithPort));
                }
            }
        }
        named.pods.sort();
        named.pods.dedup();
        named
    }
}
