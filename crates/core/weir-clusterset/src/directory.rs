use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{Labels, Name, Requirement};

use crate::{Interest, Reach, RemoteId, RemotePod};

/// An interest that somebody has, while somebody has it.
pub(crate) type InterestId = u32;

/// Pods and namespaces on one side, interests on the other, and who is selected by which.
///
/// A cluster asks with its own interests about the pods of others, and with the interests of others about its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    /// By namespace and cluster.
    homes: BTreeMap<(Name, Name), Home>,
    interests: BTreeMap<InterestId, Interest>,
    ids: BTreeMap<Interest, InterestId>,
    anchors: BTreeMap<Anchor, BTreeSet<InterestId>>,
    next: InterestId,
}

#[derive(Clone, Debug, Default)]
struct Home {
    /// The labels of the namespace, if it has been told about.
    labels: Option<Labels>,
    pods: BTreeMap<Name, Known>,
}

/// A pod, and what selects it.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) pod: Arc<RemotePod>,
    /// Sorted.
    pub(crate) interests: Vec<InterestId>,
}

/// A pod that is there, was there, or is selected by others than before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shift {
    pub(crate) before: Option<Known>,
    pub(crate) after: Option<Known>,
}

/// What every pod that an interest selects has in common, as far as one look-up can tell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Anchor {
    Namespace(Name),
    PodLabel(Name, Name),
    NamespaceLabel(Name, Name),
    Nothing,
}

impl Directory {
    /// A pod is there.
    pub(crate) fn put_pod(&mut self, pod: Arc<RemotePod>) -> Shift {
        let RemoteId { namespace, cluster, name } = pod.id.clone();
        let key = (namespace, cluster);
        let labels = self.homes.get(&key).and_then(|home| home.labels.clone());
        let interests = self.select(&pod, labels.as_ref());
        let known = Known { pod, interests };
        let home = self.homes.entry(key).or_default();
        let before = home.pods.insert(name, known.clone());
        Shift { before, after: Some(known) }
    }

    /// A pod is gone.
    pub(crate) fn remove_pod(&mut self, id: &RemoteId) -> Shift {
        let key = (id.namespace.clone(), id.cluster.clone());
        let Some(home) = self.homes.get_mut(&key) else { return Shift::default() };
        let before = home.pods.remove(&id.name);
        self.tidy(&key);
        Shift { before, after: None }
    }

    /// A namespace has these labels; `None` if nothing is known about it any more.
    pub(crate) fn label(
        &mut self,
        cluster: &Name,
        namespace: &Name,
        labels: Option<Labels>,
    ) -> Vec<Shift> {
        let key = (namespace.clone(), cluster.clone());
        let home = self.homes.entry(key.clone()).or_default();
        if home.labels == labels {
            self.tidy(&key);
            return Vec::new();
        }
        home.labels = labels.clone();
        let pods: Vec<Known> = home.pods.values().cloned().collect();
        let mut shifts = Vec::new();
        for before in pods {
            let interests = self.select(&before.pod, labels.as_ref());
            if interests != before.interests {
                let after = Known { pod: before.pod.clone(), interests };
                if let Some(home) = self.homes.get_mut(&key) {
                    home.pods.insert(before.pod.id.name.clone(), after.clone());
                }
                shifts.push(Shift { before: Some(before), after: Some(after) });
            }
        }
        self.tidy(&key);
        shifts
    }

    /// The labels of a namespace.
    pub(crate) fn labels(&self, cluster: &Name, namespace: &Name) -> Option<&Labels> {
        self.homes.get(&(namespace.clone(), cluster.clone()))?.labels.as_ref()
    }

    /// A pod.
    pub(crate) fn pod(&self, id: &RemoteId) -> Option<&Known> {
        let home = self.homes.get(&(id.namespace.clone(), id.cluster.clone()))?;
        home.pods.get(&id.name)
    }

    /// All pods of a namespace of a cluster.
    pub(crate) fn pods_of(&self, cluster: &Name, namespace: &Name) -> impl Iterator<Item = &Known> {
        let home = self.homes.get(&(namespace.clone(), cluster.clone()));
        home.into_iter().flat_map(|home| home.pods.values())
    }

    /// Somebody has an interest. Nobody may have had it before.
    pub(crate) fn add(&mut self, interest: Interest) -> (InterestId, Vec<Shift>) {
        let id = self.next;
        self.next += 1;
        for anchor in anchors(&interest) {
            self.anchors.entry(anchor).or_default().insert(id);
        }
        self.ids.insert(interest.clone(), id);
        let mut shifts = Vec::new();
        for ((namespace, _), home) in homes(&mut self.homes, &interest) {
            if !interest.reaches(namespace, home.labels.as_ref()) {
                continue;
            }
            for known in home.pods.values_mut() {
                if interest.selects(&known.pod.labels) {
                    let before = Some(known.clone());
                    // It is the newest, so the list stays sorted.
                    known.interests.push(id);
                    shifts.push(Shift { before, after: Some(known.clone()) });
                }
            }
        }
        self.interests.insert(id, interest);
        (id, shifts)
    }

    /// Nobody has an interest any more.
    pub(crate) fn drop_interest(&mut self, id: InterestId) -> Vec<Shift> {
        let Some(interest) = self.interests.remove(&id) else { return Vec::new() };
        self.ids.remove(&interest);
        for anchor in anchors(&interest) {
            if let Some(ids) = self.anchors.get_mut(&anchor) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.anchors.remove(&anchor);
                }
            }
        }
        let mut shifts = Vec::new();
        for (_, home) in homes(&mut self.homes, &interest) {
            for known in home.pods.values_mut() {
                if let Ok(at) = known.interests.binary_search(&id) {
                    let before = Some(known.clone());
                    known.interests.remove(at);
                    shifts.push(Shift { before, after: Some(known.clone()) });
                }
            }
        }
        shifts
    }

    /// The id of an interest that somebody has.
    pub(crate) fn id(&self, interest: &Interest) -> Option<InterestId> {
        self.ids.get(interest).copied()
    }

    /// All interests that somebody has, sorted.
    pub(crate) fn interests(&self) -> impl Iterator<Item = &Interest> {
        self.ids.keys()
    }

    /// The pods that an interest selects.
    pub(crate) fn members(&self, id: InterestId) -> impl Iterator<Item = &Known> {
        let (from, to) = match self.interests.get(&id).map(|interest| &interest.reach) {
            Some(Reach::Named(name)) => (name.clone(), Some(name.clone())),
            _ => (Name::default(), None),
        };
        let homes = self.homes.range((from, Name::default())..);
        let homes = homes
            .take_while(move |((namespace, _), _)| to.as_ref().is_none_or(|to| namespace == to));
        let pods = homes.flat_map(|(_, home)| home.pods.values());
        pods.filter(move |known| known.interests.binary_search(&id).is_ok())
    }

    fn select(&self, pod: &RemotePod, labels: Option<&Labels>) -> Vec<InterestId> {
        let namespace = &pod.id.namespace;
        let by_pod =
            pod.labels.iter().map(|(key, value)| Anchor::PodLabel(key.clone(), value.clone()));
        let by_namespace = labels.into_iter().flat_map(Labels::iter);
        let by_namespace =
            by_namespace.map(|(key, value)| Anchor::NamespaceLabel(key.clone(), value.clone()));
        let looked_up = [Anchor::Namespace(namespace.clone()), Anchor::Nothing];
        let looked_up = looked_up.into_iter().chain(by_pod).chain(by_namespace);
        let candidates = looked_up.filter_map(|anchor| self.anchors.get(&anchor)).flatten();
        let selecting = candidates.filter(|id| {
            self.interests.get(id).is_some_and(|interest| {
                interest.reaches(namespace, labels) && interest.selects(&pod.labels)
            })
        });
        let sorted: BTreeSet<InterestId> = selecting.copied().collect();
        sorted.into_iter().collect()
    }

    fn tidy(&mut self, key: &(Name, Name)) {
        if self.homes.get(key).is_some_and(|home| home.labels.is_none() && home.pods.is_empty()) {
            self.homes.remove(key);
        }
    }
}

/// The namespaces that an interest could reach.
fn homes<'a>(
    homes: &'a mut BTreeMap<(Name, Name), Home>,
    interest: &Interest,
) -> impl Iterator<Item = (&'a (Name, Name), &'a mut Home)> {
    let named = match &interest.reach {
        Reach::Named(name) => Some(name.clone()),
        Reach::Matching(_) => None,
    };
    let from = (named.clone().unwrap_or_default(), Name::default());
    homes.range_mut(from..).take_while(move |((namespace, _), _)| {
        named.as_ref().is_none_or(|named| namespace == named)
    })
}

/// Where to look for an interest: a pod that it selects has at least one of these.
fn anchors(interest: &Interest) -> Vec<Anchor> {
    let pairs = |requirements: &[Requirement]| {
        let ins = requirements.iter().filter_map(|requirement| match requirement {
            Requirement::In(key, values) => Some((key.clone(), values.clone())),
            _ => None,
        });
        ins.min_by_key(|(_, values)| values.len())
    };
    match &interest.reach {
        Reach::Named(name) => vec![Anchor::Namespace(name.clone())],
        Reach::Matching(selector) => match pairs(interest.pods.requirements()) {
            Some((key, values)) => {
                values.into_iter().map(|value| Anchor::PodLabel(key.clone(), value)).collect()
            }
            None => match pairs(selector.requirements()) {
                Some((key, values)) => values
                    .into_iter()
                    .map(|value| Anchor::NamespaceLabel(key.clone(), value))
                    .collect(),
                None => vec![Anchor::Nothing],
            },
        },
    }
}
