use weir_model::{Labels, Name, Peer, Policy, Requirement, Scope, Selector, Who};

/// The pods that a peer of a policy selects. Other clusters publish the pods that match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interest {
    /// Selects the namespaces.
    pub reach: Reach,
    /// Selects the pods in those namespaces.
    pub pods: Selector,
}

/// A selection of namespaces in other clusters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// The namespace of this name in every cluster. A peer without `namespaceSelector` selects the
    /// namespace of its policy.
    Named(Name),
    /// The namespaces that the selector matches.
    Matching(Selector),
}

impl Interest {
    /// The interest of a peer; `None` if the peer does not select pods or requires reserved labels.
    pub(crate) fn from_peer(policy: &Policy, peer: &Peer) -> Option<Self> {
        let Who::Pods { scope, pods } = &peer.who else { return None };
        let reach = match scope {
            Scope::Own => Reach::Named(policy.id.namespace.clone()),
            Scope::Matching(selector) => Reach::Matching(selector.clone()),
        };
        let interest = Interest { reach, pods: pods.clone() };
        (!interest.has_reserved_labels()).then_some(interest)
    }

    /// Whether it requires labels that clusters do not publish. Even their absence cannot be
    /// checked.
    pub fn has_reserved_labels(&self) -> bool {
        let by_namespace = match &self.reach {
            Reach::Named(_) => &[][..],
            Reach::Matching(selector) => selector.requirements(),
        };
        let mut all = self.pods.requirements().iter().chain(by_namespace);
        all.any(|requirement| is_reserved(requirement.key()))
    }

    /// Whether it selects a namespace. If the labels are unknown, only the empty selector matches.
    pub(crate) fn reaches(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        match &self.reach {
            Reach::Named(name) => &**name == namespace,
            Reach::Matching(selector) => {
                selector.is_everything() || labels.is_some_and(|labels| holds(selector, labels))
            }
        }
    }

    /// Whether it selects a pod, in a namespace that it selects.
    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        holds(&self.pods, labels)
    }
}

/// Whether a label is reserved for the exchange between clusters, so that policies cannot select by
/// it.
pub fn is_reserved(key: &str) -> bool {
    key.split_once('/').is_some_and(|(prefix, _)| prefix == "submariner-io")
}

/// Whether labels satisfy a selector.
pub(crate) fn holds(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| match requirement {
        Requirement::In(key, values) => labels.value(key).is_some_and(|v| values.contains(v)),
        Requirement::NotIn(key, values) => !labels.value(key).is_some_and(|v| values.contains(v)),
        Requirement::Exists(key) => labels.value(key).is_some(),
        Requirement::Absent(key) => labels.value(key).is_none(),
    })
}
