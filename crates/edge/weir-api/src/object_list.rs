use std::collections::BTreeMap;

use weir_model::{Key, Object, Pod, PodId, Policy, World};

use crate::lower::without_location;

/// Objects with different keys: namespaces and nodes first, then pods, then all others by kind and
/// name.
///
/// The pods of a large cluster take much memory, so they stay in the map in which they were
/// assembled, also if the list becomes a [`World`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectList {
    first: BTreeMap<Key, Object>,
    pods: BTreeMap<PodId, Pod>,
    others: BTreeMap<Key, Object>,
}

impl ObjectList {
    pub(crate) fn new(pods: BTreeMap<PodId, Pod>, mut others: BTreeMap<Key, Object>) -> Self {
        let is_first =
            |_: &Key, object: &mut Object| matches!(object, Object::Namespace(_) | Object::Node(_));
        let first = others.extract_if(.., is_first).collect();
        ObjectList { first, pods, others }
    }

    /// The pods.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// The policies.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.others.values().filter_map(|object| match object {
            Object::Policy(policy) => Some(policy),
            _ => None,
        })
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.pods.is_empty() && self.others.is_empty()
    }

    pub(crate) fn retain_policies(&mut self, keep: impl Fn(&Policy) -> bool) {
        self.others.retain(|_, object| match object {
            Object::Policy(policy) => keep(policy),
            _ => true,
        });
    }

    pub(crate) fn pods_mut(&mut self) -> impl Iterator<Item = &mut Pod> {
        self.pods.values_mut()
    }

    pub(crate) fn drop_locations(&mut self) {
        self.first.values_mut().chain(self.others.values_mut()).for_each(without_location);
        self.pods.values_mut().for_each(|pod| pod.location = None);
    }
}

impl IntoIterator for ObjectList {
    type Item = Object;
    type IntoIter = Box<dyn Iterator<Item = Object>>;

    fn into_iter(self) -> Self::IntoIter {
        let ObjectList { first, pods, others } = self;
        let pods = pods.into_values().map(Object::Pod);
        Box::new(first.into_values().chain(pods).chain(others.into_values()))
    }
}

impl From<ObjectList> for World {
    fn from(list: ObjectList) -> Self {
        let ObjectList { first, pods, others } = list;
        let mut world: World = first.into_values().chain(others.into_values()).collect();
        world.pods = pods;
        world
    }
}
