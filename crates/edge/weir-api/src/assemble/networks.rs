//! The networks of pods that weir does not judge.

use std::collections::BTreeMap;

use weir_model::{
    Attachments, Finding, Labels, Location, Name, Namespace, Object, PodId, Requirement, Selector,
    Severity,
};

use super::Assembly;
use crate::lower::{NetworkNamespaces, PrimaryNetwork, keep};

/// The code of a finding about a network that weir does not judge.
const UNJUDGED_NETWORK: &str = "unjudged-network";

/// OVN-Kubernetes: the label of namespaces whose pods have another primary network.
const PRIMARY_LABEL: &str = "k8s.ovn.org/primary-user-defined-network";

impl Assembly {
    /// The pods with networks other than the cluster network. Reports each such network once.
    pub(super) fn find_unjudged(&mut self) -> BTreeMap<PodId, Attachments> {
        let mut unjudged = std::mem::take(&mut self.attached);
        let networks = std::mem::take(&mut self.primary_networks);
        let namespaces = self.objects.values().filter_map(|object| match object {
            Object::Namespace(namespace) => Some((&namespace.name, primary(namespace, &networks)?)),
            _ => None,
        });
        let namespaces: BTreeMap<&Name, Name> = namespaces.collect();
        let mut uses: BTreeMap<Network, Use> = BTreeMap::new();
        if namespaces.is_empty() && unjudged.is_empty() {
            return unjudged;
        }
        for pod in self.pods.values() {
            if pod.host_network {
                unjudged.remove(&pod.id);
                continue;
            }
            if let Some(network) = namespaces.get(&pod.id.namespace) {
                unjudged.entry(pod.id.clone()).or_default().primary = Some(network.clone());
            }
            let Some(attached) = unjudged.get(&pod.id) else { continue };
            let primary = attached.primary.iter().cloned().map(Network::Primary);
            let secondary = attached.secondary.iter().cloned().map(Network::Secondary);
            for network in primary.chain(secondary) {
                let found = uses.entry(network).or_insert_with(|| Use {
                    pods: 0,
                    first: pod.id.clone(),
                    location: pod.location.clone(),
                });
                found.pods += 1;
            }
        }
        for (network, found) in uses {
            let of = networks.iter().find(|known| network == Network::Primary(known.name.clone()));
            keep(&mut self.findings, finding(&network, found, of));
        }
        unjudged
    }
}

/// The network that replaces the cluster network of a namespace's pods.
fn primary(namespace: &Namespace, networks: &[PrimaryNetwork]) -> Option<Name> {
    let is_of = |network: &&PrimaryNetwork| match &network.namespaces {
        NetworkNamespaces::One(name) => *name == namespace.name,
        NetworkNamespaces::Selected(None) => true,
        NetworkNamespaces::Selected(Some(selector)) => selects(selector, &namespace.labels),
    };
    let labelled = || {
        namespace.labels.value(PRIMARY_LABEL)?;
        Some(Name::from(format!("the UserDefinedNetwork of namespace {}", namespace.name)))
    };
    networks.iter().find(is_of).map(|network| network.name.clone()).or_else(labelled)
}

/// Whether a selector matches labels.
fn selects(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| match requirement {
        Requirement::In(key, values) => labels.value(key).is_some_and(|v| values.contains(v)),
        Requirement::NotIn(key, values) => labels.value(key).is_none_or(|v| !values.contains(v)),
        Requirement::Exists(key) => labels.value(key).is_some(),
        Requirement::Absent(key) => labels.value(key).is_none(),
    })
}

/// A network that weir does not judge.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Network {
    Primary(Name),
    Secondary(Name),
}

/// The use of a network.
struct Use {
    pods: usize,
    first: PodId,
    location: Option<Location>,
}

fn finding(network: &Network, found: Use, defined: Option<&PrimaryNetwork>) -> Finding {
    let Use { pods, first, location } = found;
    let who = match pods {
        1 => first.to_string(),
        2 => format!("{first} and 1 more pod"),
        _ => format!("{first} and {} more pods", pods - 1),
    };
    let (message, hint) = match network {
        Network::Primary(name) => (
            format!(
                "{name} replaces the cluster network for {who}; weir does not judge their connections"
            ),
            "do not rely on results about these pods: the network can separate or connect them",
        ),
        Network::Secondary(name) => (
            format!(
                "the secondary network {name} connects {who}; weir does not judge its connections"
            ),
            "NetworkPolicies do not apply to a secondary network; results are about the cluster network",
        ),
    };
    Finding {
        location: defined.map_or(location, |network| network.location.clone()),
        code: UNJUDGED_NETWORK,
        severity: Severity::Warning,
        object: None,
        field: String::new(),
        message,
        hint: hint.into(),
    }
}
