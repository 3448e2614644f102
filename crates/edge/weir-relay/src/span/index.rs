//! Finds the selectors that may match a pod, by one label that each of them needs.

use std::collections::HashMap;

use weir_model::{Labels, Name, Requirement, Scope, Selector};

/// A selection of pods: the namespace is given if the scope is that of one namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PodSelection {
    /// The pods of one namespace.
    In(Name, Selector),
    /// The pods of the namespaces that match.
    Across(Selector, Selector),
    /// The pods that declare a port of this name.
    WithPort(Name),
}

impl PodSelection {
    /// The pods that a scope and a selector of a policy in this namespace stand for.
    pub(crate) fn new(namespace: &Name, scope: &Scope, pods: &Selector) -> Self {
        match scope {
            Scope::Own => PodSelection::In(namespace.clone(), pods.clone()),
            Scope::Matching(namespaces) => PodSelection::Across(namespaces.clone(), pods.clone()),
        }
    }

    /// Whether it selects a pod. The labels of a namespace that does not exist are `None`.
    pub(crate) fn selects(&self, pod: &PodFacts<'_>) -> bool {
        match self {
            PodSelection::In(namespace, pods) => {
                namespace == pod.namespace && pods.matches(pod.labels)
            }
            PodSelection::Across(namespaces, pods) => {
                pod.of_namespace.is_some_and(|labels| namespaces.matches(labels))
                    && pods.matches(pod.labels)
            }
            PodSelection::WithPort(name) => pod.ports.contains(&name),
        }
    }
}

/// What selections see of a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodFacts<'a> {
    pub(crate) namespace: &'a Name,
    pub(crate) of_namespace: Option<&'a Labels>,
    pub(crate) labels: &'a Labels,
    pub(crate) ports: Vec<&'a Name>,
}

/// Selections, by a label that each of them needs.
#[derive(Debug, Default)]
pub(crate) struct SelectionIndex {
    by_namespace: HashMap<Name, Anchors>,
    by_labels: Anchors,
    by_namespace_labels: Anchors,
    by_port: HashMap<Name, Vec<u32>>,
}

#[derive(Debug, Default)]
struct Anchors {
    pairs: HashMap<(Name, Name), Vec<u32>>,
    keys: HashMap<Name, Vec<u32>>,
    others: Vec<u32>,
}

/// The labels of which an object needs one to match a selector.
enum Needed<'a> {
    Pairs(Vec<(&'a Name, &'a Name)>),
    Key(&'a Name),
    Nothing,
}

fn needed(selector: &Selector) -> Needed<'_> {
    let requirements = selector.requirements();
    let pairs = requirements.iter().find_map(|requirement| match requirement {
        Requirement::In(key, values) => Some(values.iter().map(|value| (key, value)).collect()),
        _ => None,
    });
    let key = requirements.iter().find_map(|requirement| match requirement {
        Requirement::Exists(key) => Some(key),
        _ => None,
    });
    pairs.map(Needed::Pairs).or(key.map(Needed::Key)).unwrap_or(Needed::Nothing)
}

impl Anchors {
    /// Calls `edit` for each list that a selector belongs to.
    fn edit(&mut self, selector: &Selector, mut edit: impl FnMut(&mut Vec<u32>)) {
        match needed(selector) {
            Needed::Pairs(pairs) => {
                for (key, value) in pairs {
                    let place = (key.clone(), value.clone());
                    let list = self.pairs.entry(place.clone()).or_default();
                    edit(list);
                    if list.is_empty() {
                        self.pairs.remove(&place);
                    }
                }
            }
            Needed::Key(key) => {
                let list = self.keys.entry(key.clone()).or_default();
                edit(list);
                if list.is_empty() {
                    self.keys.remove(key);
                }
            }
            Needed::Nothing => edit(&mut self.others),
        }
    }

    fn candidates(&self, labels: &Labels, found: &mut Vec<u32>) {
        found.extend(&self.others);
        if self.pairs.is_empty() && self.keys.is_empty() {
            return;
        }
        for pair in labels.iter() {
            found.extend(self.pairs.get(pair).into_iter().flatten());
            found.extend(self.keys.get(&pair.0).into_iter().flatten());
        }
    }

    fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.keys.is_empty() && self.others.is_empty()
    }
}

impl SelectionIndex {
    pub(crate) fn insert(&mut self, selection: &PodSelection, id: u32) {
        self.edit(selection, |list| list.push(id));
    }

    pub(crate) fn remove(&mut self, selection: &PodSelection, id: u32) {
        self.edit(selection, |list| list.retain(|other| *other != id));
    }

    fn edit(&mut self, selection: &PodSelection, mut edit: impl FnMut(&mut Vec<u32>)) {
        match selection {
            PodSelection::In(namespace, pods) => {
                let anchors = self.by_namespace.entry(namespace.clone()).or_default();
                anchors.edit(pods, edit);
                if anchors.is_empty() {
                    self.by_namespace.remove(namespace);
                }
            }
            PodSelection::Across(namespaces, pods) => match needed(pods) {
                Needed::Nothing => self.by_namespace_labels.edit(namespaces, edit),
                _ => self.by_labels.edit(pods, edit),
            },
            PodSelection::WithPort(name) => {
                let list = self.by_port.entry(name.clone()).or_default();
                edit(list);
                if list.is_empty() {
                    self.by_port.remove(name);
                }
            }
        }
    }

    /// The selections that may select a pod, each once.
    pub(crate) fn candidates(&self, pod: &PodFacts<'_>) -> Vec<u32> {
        let mut found = Vec::new();
        if let Some(anchors) = self.by_namespace.get(pod.namespace) {
            anchors.candidates(pod.labels, &mut found);
        }
        self.by_labels.candidates(pod.labels, &mut found);
        if let Some(labels) = pod.of_namespace {
            self.by_namespace_labels.candidates(labels, &mut found);
        }
        for port in &pod.ports {
            found.extend(self.by_port.get(*port).into_iter().flatten());
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
            && self.by_labels.is_empty()
            && self.by_namespace_labels.is_empty()
            && self.by_port.is_empty()
    }
}
