use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{Labels, Name, Requirement};

use crate::{Interest, Reach, RemoteId, RemotePod};

/// The id of a registered interest. Ids are not reused.
pub(crate) type InterestId = u32;

/// An index of pods, namespaces and interests that knows which interests select which pod.
///
/// `ClusterSet` matches its own interests against remote pods; `Publication` matches the interests
/// of other clusters against local pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    /// By namespace and cluster.
    namespaces: BTreeMap<(Name, Name), KnownNamespace>,
    interests: BTreeMap<InterestId, Interest>,
    ids: BTreeMap<Interest, InterestId>,
    anchors: BTreeMap<InterestAnchor, BTreeSet<InterestId>>,
    next: InterestId,
}

#[derive(Clone, Debug, Default)]
struct KnownNamespace {
    /// The labels of the namespace; `None` until it is received.
    labels: Option<Labels>,
    pods: BTreeMap<Name, KnownPod>,
}

/// A pod and the interests that select it.
#[derive(Clone, Debug)]
pub(crate) struct KnownPod {
    pub(crate) pod: Arc<RemotePod>,
    /// Sorted.
    pub(crate) interests: Vec<InterestId>,
}

/// A change of a pod or of the interests that select it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shift {
    pub(crate) before: Option<KnownPod>,
    pub(crate) after: Option<KnownPod>,
}

/// A property of every pod that an interest selects, used as an index key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum InterestAnchor {
    Namespace(Name),
    PodLabel(Name, Name),
    NamespaceLabel(Name, Name),
    Nothing,
}

impl Directory {
    /// Adds or replaces a pod.
    pub(crate) fn put_pod(&mut self, pod: Arc<RemotePod>) -> Shift {
        let RemoteId { namespace, cluster, name } = pod.id.clone();
        let key = (namespace, cluster);
        let labels = self.namespaces.get(&key).and_then(|entry| entry.labels.clone());
        let interests = self.select(&pod, labels.as_ref());
        let known = KnownPod { pod, interests };
        let entry = self.namespaces.entry(key).or_default();
        let before = entry.pods.insert(name, known.clone());
        Shift { before, after: Some(known) }
    }

    /// Removes a pod.
    pub(crate) fn remove_pod(&mut self, id: &RemoteId) -> Shift {
        let key = (id.namespace.clone(), id.cluster.clone());
        let Some(entry) = self.namespaces.get_mut(&key) else { return Shift::default() };
        let before = entry.pods.remove(&id.name);
        self.remove_if_empty(&key);
        Shift { before, after: None }
    }

    /// Sets the labels of a namespace, or removes it (`None`).
    pub(crate) fn set_labels(
        &mut self,
        cluster: &Name,
        namespace: &Name,
        labels: Option<Labels>,
    ) -> Vec<Shift> {
        let key = (namespace.clone(), cluster.clone());
        let entry = self.namespaces.entry(key.clone()).or_default();
        if entry.labels == labels {
            self.remove_if_empty(&key);
            return Vec::new();
        }
        entry.labels = labels.clone();
        let pods: Vec<KnownPod> = entry.pods.values().cloned().collect();
        let mut shifts = Vec::new();
        for before in pods {
            let interests = self.select(&before.pod, labels.as_ref());
            if interests != before.interests {
                let after = KnownPod { pod: before.pod.clone(), interests };
                if let Some(entry) = self.namespaces.get_mut(&key) {
                    entry.pods.insert(before.pod.id.name.clone(), after.clone());
                }
                shifts.push(Shift { before: Some(before), after: Some(after) });
            }
        }
        self.remove_if_empty(&key);
        shifts
    }

    /// The labels of a namespace.
    pub(crate) fn labels(&self, cluster: &Name, namespace: &Name) -> Option<&Labels> {
        self.namespaces.get(&(namespace.clone(), cluster.clone()))?.labels.as_ref()
    }

    /// A pod.
    pub(crate) fn pod(&self, id: &RemoteId) -> Option<&KnownPod> {
        let entry = self.namespaces.get(&(id.namespace.clone(), id.cluster.clone()))?;
        entry.pods.get(&id.name)
    }

    /// All pods in a namespace of a cluster.
    pub(crate) fn pods_of(
        &self,
        cluster: &Name,
        namespace: &Name,
    ) -> impl Iterator<Item = &KnownPod> {
        let entry = self.namespaces.get(&(namespace.clone(), cluster.clone()));
        entry.into_iter().flat_map(|entry| entry.pods.values())
    }

    /// Registers an interest, which must be new.
    pub(crate) fn add_interest(&mut self, interest: Interest) -> (InterestId, Vec<Shift>) {
        let id = self.next;
        self.next += 1;
        for anchor in anchors(&interest) {
            self.anchors.entry(anchor).or_default().insert(id);
        }
        self.ids.insert(interest.clone(), id);
        let mut shifts = Vec::new();
        for ((namespace, _), entry) in reachable(&mut self.namespaces, &interest) {
            if !interest.reaches(namespace, entry.labels.as_ref()) {
                continue;
            }
            for known in entry.pods.values_mut() {
                if interest.selects(&known.pod.labels) {
                    let before = Some(known.clone());
                    // Ids grow, so the list stays sorted.
                    known.interests.push(id);
                    shifts.push(Shift { before, after: Some(known.clone()) });
                }
            }
        }
        self.interests.insert(id, interest);
        (id, shifts)
    }

    /// Removes an interest.
    pub(crate) fn remove_interest(&mut self, id: InterestId) -> Vec<Shift> {
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
        for (_, entry) in reachable(&mut self.namespaces, &interest) {
            for known in entry.pods.values_mut() {
                if let Ok(at) = known.interests.binary_search(&id) {
                    let before = Some(known.clone());
                    known.interests.remove(at);
                    shifts.push(Shift { before, after: Some(known.clone()) });
                }
            }
        }
        shifts
    }

    /// The id of a registered interest.
    pub(crate) fn id(&self, interest: &Interest) -> Option<InterestId> {
        self.ids.get(interest).copied()
    }

    /// All registered interests, sorted.
    pub(crate) fn interests(&self) -> impl Iterator<Item = &Interest> {
        self.ids.keys()
    }

    /// The pods that an interest selects.
    pub(crate) fn members(&self, id: InterestId) -> impl Iterator<Item = &KnownPod> {
        let (from, to) = match self.interests.get(&id).map(|interest| &interest.reach) {
            Some(Reach::Named(name)) => (name.clone(), Some(name.clone())),
            _ => (Name::default(), None),
        };
        let namespaces = self.namespaces.range((from, Name::default())..);
        let namespaces = namespaces
            .take_while(move |((namespace, _), _)| to.as_ref().is_none_or(|to| namespace == to));
        let pods = namespaces.flat_map(|(_, entry)| entry.pods.values());
        pods.filter(move |known| known.interests.binary_search(&id).is_ok())
    }

    /// The interests that select a pod, whether or not the directory contains the pod.
    pub(crate) fn interests_in(&self, pod: &RemotePod) -> Vec<InterestId> {
        self.select(pod, self.labels(&pod.id.cluster, &pod.id.namespace))
    }

    /// Whether one of these interests selects a pod, whether or not the directory contains the pod.
    pub(crate) fn is_selected(&self, pod: &RemotePod, interests: &BTreeSet<InterestId>) -> bool {
        let labels = self.labels(&pod.id.cluster, &pod.id.namespace);
        let mut interests = interests.iter().filter_map(|id| self.interests.get(id));
        interests.any(|one| one.reaches(&pod.id.namespace, labels) && one.selects(&pod.labels))
    }

    fn select(&self, pod: &RemotePod, labels: Option<&Labels>) -> Vec<InterestId> {
        let namespace = &pod.id.namespace;
        let by_pod = pod
            .labels
            .iter()
            .map(|(key, value)| InterestAnchor::PodLabel(key.clone(), value.clone()));
        let by_namespace = labels.into_iter().flat_map(Labels::iter);
        let by_namespace = by_namespace
            .map(|(key, value)| InterestAnchor::NamespaceLabel(key.clone(), value.clone()));
        let pod_anchors = [InterestAnchor::Namespace(namespace.clone()), InterestAnchor::Nothing];
        let pod_anchors = pod_anchors.into_iter().chain(by_pod).chain(by_namespace);
        let candidates = pod_anchors.filter_map(|anchor| self.anchors.get(&anchor)).flatten();
        let selecting = candidates.filter(|id| {
            self.interests.get(id).is_some_and(|interest| {
                interest.reaches(namespace, labels) && interest.selects(&pod.labels)
            })
        });
        let sorted: BTreeSet<InterestId> = selecting.copied().collect();
        sorted.into_iter().collect()
    }

    fn remove_if_empty(&mut self, key: &(Name, Name)) {
        if self
            .namespaces
            .get(key)
            .is_some_and(|entry| entry.labels.is_none() && entry.pods.is_empty())
        {
            self.namespaces.remove(key);
        }
    }
}

/// The namespaces that an interest could select.
fn reachable<'a>(
    namespaces: &'a mut BTreeMap<(Name, Name), KnownNamespace>,
    interest: &Interest,
) -> impl Iterator<Item = (&'a (Name, Name), &'a mut KnownNamespace)> {
    let named = match &interest.reach {
        Reach::Named(name) => Some(name.clone()),
        Reach::Matching(_) => None,
    };
    let from = (named.clone().unwrap_or_default(), Name::default());
    namespaces.range_mut(from..).take_while(move |((namespace, _), _)| {
        named.as_ref().is_none_or(|named| namespace == named)
    })
}

/// The index keys of an interest. Every pod that it selects has at least one of them.
fn anchors(interest: &Interest) -> Vec<InterestAnchor> {
    let pairs = |requirements: &[Requirement]| {
        let ins = requirements.iter().filter_map(|requirement| match requirement {
            Requirement::In(key, values) => Some((key.clone(), values.clone())),
            _ => None,
        });
        ins.min_by_key(|(_, values)| values.len())
    };
    match &interest.reach {
        Reach::Named(name) => vec![InterestAnchor::Namespace(name.clone())],
        Reach::Matching(selector) => match pairs(interest.pods.requirements()) {
            Some((key, values)) => values
                .into_iter()
                .map(|value| InterestAnchor::PodLabel(key.clone(), value))
                .collect(),
            None => match pairs(selector.requirements()) {
                Some((key, values)) => values
                    .into_iter()
                    .map(|value| InterestAnchor::NamespaceLabel(key.clone(), value))
                    .collect(),
                None => vec![InterestAnchor::Nothing],
            },
        },
    }
}
