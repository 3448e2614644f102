use std::collections::BTreeSet;

use weir_model::{IpFamily, Labels, Name, NamedPort, Pod, Protocol, Requirement, Scope, Selector};

use crate::{
    name,
    normalized::PortName,
    object::{EpLabel, Filter},
    text,
};

/// The name of an address family in rules.
pub(crate) fn ethertype(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ipv4",
        IpFamily::V6 => "ipv6",
    }
}

/// Selects peer pods by their labels, the labels of their namespace, and optionally a named port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerSelector {
    pub(crate) namespaces: NamespaceScope,
    pub(crate) pods: Selector,
    pub(crate) port: Option<PortName>,
}

/// A set of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NamespaceScope {
    /// One namespace, by name.
    One(Name),
    /// The existing namespaces with matching labels.
    Matching(Selector),
    /// All namespaces, including those that do not exist yet.
    Every,
}

impl NamespaceScope {
    /// The namespaces of a peer, for a policy in namespace `own`.
    pub(crate) fn for_peer(scope: &Scope, own: &Name) -> Self {
        match scope {
            Scope::Own => NamespaceScope::One(own.clone()),
            Scope::Matching(selector) => NamespaceScope::Matching(selector.clone()),
        }
    }

    /// Whether the set contains a namespace. `labels` is `None` if the namespace does not exist.
    pub(crate) fn contains(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        match self {
            NamespaceScope::One(name) => &**name == namespace,
            NamespaceScope::Matching(selector) => {
                labels.is_some_and(|labels| selector.matches(labels))
            }
            NamespaceScope::Every => true,
        }
    }
}

/// The properties by which rules can distinguish pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodProfile {
    pub(crate) family: IpFamily,
    pub(crate) labels: Labels,
    pub(crate) ports: Vec<NamedPort>,
}

/// A matching pod exists: its family, and its port number if the selector has a named port.
pub(crate) type PeerMatch = (IpFamily, Option<(Protocol, u16)>);

impl PeerSelector {
    /// The smallest selector with these namespaces.
    pub(crate) fn first_of(namespaces: NamespaceScope) -> Self {
        PeerSelector { namespaces, pods: Selector::everything(), port: None }
    }

    /// The smallest selector of several namespaces.
    pub(crate) fn first_wide() -> Self {
        PeerSelector::first_of(NamespaceScope::Matching(Selector::everything()))
    }

    /// The matches among the profiles of a namespace.
    pub(crate) fn matches<'a>(
        &self,
        profiles: impl Iterator<Item = &'a PodProfile>,
    ) -> BTreeSet<PeerMatch> {
        let mut matches = BTreeSet::new();
        for profile in profiles.filter(|profile| self.pods.matches(&profile.labels)) {
            match &self.port {
                None => {
                    matches.insert((profile.family, None));
                }
                Some(port) => {
                    let numbers = numbers(port, &profile.ports);
                    matches.extend(numbers.map(|number| (profile.family, Some(number))));
                }
            }
        }
        matches
    }

    /// The filters that select exactly these pods. `at` is the number of the named port.
    pub(crate) fn filters(&self, at: Option<(Protocol, u16)>) -> Vec<Filter> {
        let pods = Mark::for_selector(&self.pods);
        let mut filters: Vec<Filter> = match &pods {
            None => self.pods.requirements().iter().map(Filter::from).collect(),
            Some(mark) => vec![mark.filter(Mark::YES.into())],
        };
        if let (Some((name, _)), Some((protocol, number))) = (&self.port, at) {
            filters.push(Mark::Port(name.clone(), protocol).filter(number.to_string()));
        }
        filters
    }

    /// The marks that the filters use.
    pub(crate) fn marks(&self) -> impl Iterator<Item = Mark> {
        let ports = self.port.iter().flat_map(|(name, protocol)| {
            let one = protocol.map(|protocol| vec![protocol]);
            let protocols = one.unwrap_or_else(|| Protocol::ALL.to_vec());
            protocols.into_iter().map(|protocol| Mark::Port(name.clone(), protocol))
        });
        Mark::for_selector(&self.pods).into_iter().chain(ports)
    }
}

/// A synthetic label on a pod, for conditions that its labels cannot express.
///
/// Readers of containers check whether *any* label of a pod satisfies a filter. Such a filter
/// cannot require that a label is absent or excludes some values. A mark states it instead. It
/// cannot collide with a label, because no label key begins with `!`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    /// The pod matches the selector.
    Selected(Selector),
    /// The number of a named port of the pod.
    Port(Name, Protocol),
}

impl Mark {
    const YES: &str = "yes";

    /// The mark that a selector needs, if any.
    fn for_selector(selector: &Selector) -> Option<Mark> {
        let requires_absence = |requirement: &Requirement| {
            matches!(requirement, Requirement::NotIn(..) | Requirement::Absent(_))
        };
        let needs_one = selector.requirements().iter().any(requires_absence);
        needs_one.then(|| Mark::Selected(selector.clone()))
    }

    fn key(&self) -> String {
        match self {
            Mark::Selected(selector) => {
                format!("!selected/{}", name::hash(&text::canonical_selector(selector)))
            }
            Mark::Port(name, protocol) => {
                format!("!port/{}/{name}", protocol.to_string().to_lowercase())
            }
        }
    }

    fn filter(&self, value: String) -> Filter {
        Filter { key: self.key(), operator: "Equals".into(), values: vec![value] }
    }

    /// The mark as labels of a pod. A pod can have several numbers for one port name.
    pub(crate) fn labels(&self, pod: &Pod) -> Vec<EpLabel> {
        let values = match self {
            Mark::Selected(selector) if selector.matches(&pod.labels) => vec![Mark::YES.into()],
            Mark::Selected(_) => Vec::new(),
            Mark::Port(name, protocol) => numbers(&(name.clone(), Some(*protocol)), &pod.ports)
                .map(|(_, number)| number.to_string())
                .collect(),
        };
        values.into_iter().map(|value| EpLabel { key: self.key(), value }).collect()
    }
}

/// The numbers that a port name has on a pod with these ports.
pub(crate) fn numbers<'a>(
    (name, protocol): &'a PortName,
    ports: &'a [NamedPort],
) -> impl Iterator<Item = (Protocol, u16)> + 'a {
    let fits = |port: &&NamedPort| {
        port.name == *name && protocol.is_none_or(|protocol| protocol == port.protocol)
    };
    ports.iter().filter(fits).map(|port| (port.protocol, port.port))
}
