use weir_model::{Labels, Name, Peer, Policy, Requirement, Scope, Selector, Who};

/// What a peer of a policy asks for, and so which pods other clusters need to tell about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interest {
    /// In these namespaces,
    pub reach: Reach,
    /// the pods with these labels.
    pub pods: Selector,
}

/// A choice of namespaces in other clusters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// The namespace of this name: a peer without `namespaceSelector` means the policy's own, and namespaces of one name are one.
    Named(Name),
    /// The namespaces with these labels.
    Matching(Selector),
}

impl Interest {
    /// What a peer of a policy asks for; `None` if it is not about pods, or about labels that never travel.
    pub(crate) fn of(policy: &Policy, peer: &Peer) -> Option<Self> {
        let Who::Pods { scope, pods } = &peer.who else { return None };
        let reach = match scope {
            Scope::Own => Reach::Named(policy.id.namespace.clone()),
            Scope::Matching(selector) => Reach::Matching(selector.clone()),
        };
        let interest = Interest { reach, pods: pods.clone() };
        (!interest.is_unanswerable()).then_some(interest)
    }

    /// Whether it asks for labels that no cluster tells: that a label is missing would then say nothing.
    pub fn is_unanswerable(&self) -> bool {
        let by_namespace = match &self.reach {
            Reach::Named(_) => &[][..],
            Reach::Matching(selector) => selector.requirements(),
        };
        let mut all = self.pods.requirements().iter().chain(by_namespace);
        all.any(|requirement| is_reserved(requirement.key()))
    }

    /// Whether it holds for a namespace. Without its labels, only a selector that asks for nothing does.
    pub(crate) fn reaches(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        match &self.reach {
            Reach::Named(name) => &**name == namespace,
            Reach::Matching(selector) => {
                selector.is_everything() || labels.is_some_and(|labels| holds(selector, labels))
            }
        }
    }

    /// Whether it holds for a pod in a namespace that it reaches.
    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        holds(&self.pods, labels)
    }
}

/// Whether a label belongs to the exchange between clusters, so that pods and namespaces cannot be told by it.
pub fn is_reserved(key: &str) -> bool {
    key.split_once('/').is_some_and(|(prefix, _)| prefix == "submariner-io")
}

fn holds(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| match requirement {
        Requirement::In(key, values) => labels.value(key).is_some_and(|v| values.contains(v)),
        Requirement::NotIn(key, values) => !labels.value(key).is_some_and(|v| values.contains(v)),
        Requirement::Exists(key) => labels.value(key).is_some(),
        Requirement::Absent(key) => labels.value(key).is_none(),
    })
}
