use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{Labels, Name, NamedPort, Pod, Protocol, Requirement, Scope, Selector};

use crate::{
    name,
    object::{EpLabel, Filter},
    said::PortName,
    text,
};

/// The families of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// What rules call it.
    pub(crate) fn ethertype(self) -> &'static str {
        match self {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        }
    }
}

/// Pods at the other end, by their labels and those of their namespace, and perhaps by a port that they give a name to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Term {
    pub(crate) realm: Realm,
    pub(crate) pods: Selector,
    pub(crate) port: Option<PortName>,
}

/// A choice of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Realm {
    /// This one.
    One(Name),
    /// Those that exist with these labels.
    Matching(Selector),
    /// All, also those that are not known to exist.
    Every,
}

impl Realm {
    /// The namespaces that a peer of a policy in `own` means.
    pub(crate) fn of(scope: &Scope, own: &Name) -> Self {
        match scope {
            Scope::Own => Realm::One(own.clone()),
            Scope::Matching(selector) => Realm::Matching(selector.clone()),
        }
    }

    /// Whether a namespace is one of them; `labels` are those it has if it exists.
    pub(crate) fn holds(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        match self {
            Realm::One(name) => &**name == namespace,
            Realm::Matching(selector) => labels.is_some_and(|labels| holds(selector, labels)),
            Realm::Every => true,
        }
    }
}

/// What pods of one sort look like: all that rules can tell them apart by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sort {
    pub(crate) family: Family,
    pub(crate) labels: Labels,
    pub(crate) ports: Vec<NamedPort>,
}

/// That there is somebody: of a family, and at which port, if the term names one.
pub(crate) type Found = (Family, Option<(Protocol, u16)>);

impl Term {
    /// The first of all terms about these namespaces.
    pub(crate) fn first_of(realm: Realm) -> Self {
        Term { realm, pods: Selector::everything(), port: None }
    }

    /// Who of a namespace is meant.
    pub(crate) fn find<'a>(&self, sorts: impl Iterator<Item = &'a Sort>) -> BTreeSet<Found> {
        let mut found = BTreeSet::new();
        for sort in sorts.filter(|sort| holds(&self.pods, &sort.labels)) {
            match &self.port {
                None => drop(found.insert((sort.family, None))),
                Some(port) => {
                    let numbers = numbers(port, &sort.ports);
                    found.extend(numbers.map(|number| (sort.family, Some(number))));
                }
            }
        }
        found
    }

    /// The filters that single its pods out, at a port if it names one.
    pub(crate) fn filters(&self, at: Option<(Protocol, u16)>) -> Vec<Filter> {
        let pods = Mark::of(&self.pods);
        let mut filters: Vec<Filter> = match &pods {
            None => self.pods.requirements().iter().map(Filter::from).collect(),
            Some(mark) => vec![mark.filter(Mark::YES.into())],
        };
        if let (Some((name, _)), Some((protocol, number))) = (&self.port, at) {
            filters.push(Mark::Port(name.clone(), protocol).filter(number.to_string()));
        }
        filters
    }

    /// The marks that its filters need.
    pub(crate) fn marks(&self) -> impl Iterator<Item = Mark> {
        let ports = self.port.iter().flat_map(|(name, protocol)| {
            let one = protocol.map(|protocol| vec![protocol]);
            let protocols = one.unwrap_or_else(|| Protocol::ALL.to_vec());
            protocols.into_iter().map(|protocol| Mark::Port(name.clone(), protocol))
        });
        Mark::of(&self.pods).into_iter().chain(ports)
    }
}

/// Something that is said about a pod beside its labels, where labels alone would not do.
///
/// Those who read containers ask whether *any* label of a pod satisfies a filter. That cannot express that a label is missing, or has
/// none of some values: so who does is told by a mark. No label of a pod can be taken for one, for no key begins so.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    /// That the selector holds.
    Selected(Selector),
    /// Which number the pod gives to a name.
    Port(Name, Protocol),
}

impl Mark {
    const YES: &str = "yes";

    /// The mark that a selector needs, if it does.
    fn of(selector: &Selector) -> Option<Mark> {
        let asks_for_absence = |requirement: &Requirement| {
            matches!(requirement, Requirement::NotIn(..) | Requirement::Absent(_))
        };
        let needs_one = selector.requirements().iter().any(asks_for_absence);
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

    /// What it says about a pod. A pod may give one name to several numbers.
    pub(crate) fn labels(&self, pod: &Pod) -> Vec<EpLabel> {
        let values = match self {
            Mark::Selected(selector) if holds(selector, &pod.labels) => vec![Mark::YES.into()],
            Mark::Selected(_) => Vec::new(),
            Mark::Port(name, protocol) => numbers(&(name.clone(), Some(*protocol)), &pod.ports)
                .map(|(_, number)| number.to_string())
                .collect(),
        };
        values.into_iter().map(|value| EpLabel { key: self.key(), value }).collect()
    }
}

/// The numbers that a pod with these ports gives a name.
pub(crate) fn numbers<'a>(
    (name, protocol): &'a PortName,
    ports: &'a [NamedPort],
) -> impl Iterator<Item = (Protocol, u16)> + 'a {
    let fits = |port: &&NamedPort| {
        port.name == *name && protocol.is_none_or(|protocol| protocol == port.protocol)
    };
    ports.iter().filter(fits).map(|port| (port.protocol, port.port))
}

/// Whether a selector holds.
pub(crate) fn holds(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| match requirement {
        Requirement::In(key, values) => labels.value(key).is_some_and(|v| values.contains(v)),
        Requirement::NotIn(key, values) => !labels.value(key).is_some_and(|v| values.contains(v)),
        Requirement::Exists(key) => labels.value(key).is_some(),
        Requirement::Absent(key) => labels.value(key).is_none(),
    })
}
