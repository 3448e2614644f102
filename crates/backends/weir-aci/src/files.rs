use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Labels, Pod, PodId};

use crate::{
    Settings, name,
    netpol::{Containers, Netpol, render},
    object::{Kind, Object, ObjectId, Pol},
};

/// The files that a node must have, and which of them are to be looked at again.
///
/// *Invariant*: they depend on the two kinds of objects and on the node's own pods, never on policies.
#[derive(Debug)]
pub struct Files {
    space: String,
    /// The name of the object of this node.
    own: String,
    pods: BTreeMap<PodId, Labels>,
    containers: Containers,
    pols: BTreeMap<String, Pol>,
    /// Which objects refer to a container.
    users: BTreeMap<String, BTreeSet<String>>,
    dirty: BTreeSet<String>,
    /// The files that are needed.
    needed: BTreeSet<String>,
    /// Files of objects that went.
    gone: BTreeSet<String>,
}

impl Files {
    /// A node without anything, in a policy space.
    pub fn new(settings: &Settings, space: &str, node: &str) -> Self {
        Files {
            space: space.into(),
            own: settings.node_object(node),
            pods: BTreeMap::new(),
            containers: BTreeMap::new(),
            pols: BTreeMap::new(),
            users: BTreeMap::new(),
            dirty: BTreeSet::new(),
            needed: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    /// An object is now so.
    pub fn put(&mut self, object: Object) {
        let id = object.id();
        match object {
            Object::Container(spec) => {
                if self.containers.get(&id.name) != Some(&spec) {
                    self.dirty.extend(self.users.get(&id.name).into_iter().flatten().cloned());
                    self.containers.insert(id.name, spec);
                }
            }
            Object::Pol(pol) => {
                if self.pols.get(&id.name) != Some(&pol) {
                    self.refer(&id.name, Refer::No);
                    self.pols.insert(id.name.clone(), pol);
                    self.refer(&id.name, Refer::Yes);
                    self.dirty.insert(id.name);
                }
            }
        }
    }

    /// An object is gone.
    pub fn remove(&mut self, id: &ObjectId) {
        match id.kind {
            Kind::Container => {
                if self.containers.remove(&id.name).is_some() {
                    self.dirty.extend(self.users.get(&id.name).into_iter().flatten().cloned());
                }
            }
            Kind::Pol => {
                self.refer(&id.name, Refer::No);
                self.dirty.remove(&id.name);
                if let Some(pol) = self.pols.remove(&id.name) {
                    let file = file(&pol);
                    self.needed.remove(&file);
                    self.gone.insert(file);
                }
            }
        }
    }

    /// A pod is now so. Pods that have finished, or have the network of a node, are none.
    pub fn put_pod(&mut self, pod: &Pod) {
        if pod.finished || pod.host_network {
            return self.remove_pod(&pod.id);
        }
        if self.pods.get(&pod.id) != Some(&pod.labels) {
            self.remove_pod(&pod.id);
            self.touch(&pod.id, &pod.labels);
            self.pods.insert(pod.id.clone(), pod.labels.clone());
        }
    }

    /// A pod is gone.
    pub fn remove_pod(&mut self, id: &PodId) {
        if let Some(labels) = self.pods.remove(id) {
            self.touch(id, &labels);
        }
    }

    /// The files to look at, since this was last asked: what they must say, or nothing if they must not be there.
    pub fn take(&mut self) -> BTreeMap<String, Option<Netpol>> {
        let mut files: BTreeMap<String, Option<Netpol>> =
            std::mem::take(&mut self.gone).into_iter().map(|file| (file, None)).collect();
        for name in std::mem::take(&mut self.dirty) {
            let Some(pol) = self.pols.get(&name) else { continue };
            let wanted =
                self.concerns(pol).then(|| render(&pol.spec, &self.containers, &self.space));
            match &wanted {
                Some(_) => self.needed.insert(file(pol)),
                None => self.needed.remove(&file(pol)),
            };
            files.insert(file(pol), wanted);
        }
        files
    }

    /// The names of the files that are needed, as of when they were last taken.
    pub fn needed(&self) -> &BTreeSet<String> {
        &self.needed
    }

    /// What the object of this node is called in ACI: it tells that the others are about this node, too.
    pub fn own(&self) -> &str {
        &self.own
    }

    /// Whether the object of this node is known.
    pub fn has_own(&self) -> bool {
        let own = self.pols.get(&name::resource(&self.own));
        own.is_some_and(|pol| pol.spec.name == self.own)
    }

    /// What the known HostprotPols are called in ACI.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pols.values().map(|pol| pol.spec.name.as_str())
    }

    /// How many objects are known.
    pub fn len(&self) -> usize {
        self.pols.len() + self.containers.len()
    }

    /// Whether no object is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks at everything again.
    pub fn distrust(&mut self) {
        self.dirty.extend(self.pols.keys().cloned());
    }

    /// Whether an object has a file on this node.
    fn concerns(&self, pol: &Pol) -> bool {
        match &pol.selects {
            Some(choices) => self.pods.iter().any(|(id, labels)| {
                choices.iter().any(|choice| choice.selects(&id.namespace, labels))
            }),
            // An object that names itself is that of a node, or that of all. Who is meant by others is not known: a file too many does
            // no harm.
            None if pol.spec.network_policies == [pol.spec.name.as_str()] => {
                let mut subjects = pol.spec.hostprot_subj.iter();
                pol.spec.name == self.own || subjects.any(|subject| subject.name != "local-node")
            }
            None => true,
        }
    }

    /// The objects that a pod matters to.
    fn touch(&mut self, id: &PodId, labels: &Labels) {
        let selects = |pol: &Pol| {
            let choices = pol.selects.iter().flatten();
            choices.into_iter().any(|choice| choice.selects(&id.namespace, labels))
        };
        let touched = self.pols.iter().filter(|(_, pol)| selects(pol));
        let touched: Vec<String> = touched.map(|(name, _)| name.clone()).collect();
        self.dirty.extend(touched);
    }

    fn refer(&mut self, name: &str, refer: Refer) {
        let Some(pol) = self.pols.get(name) else { return };
        let rules = pol.spec.hostprot_subj.iter().flat_map(|subject| &subject.hostprot_rule);
        for container in rules.flat_map(|rule| &rule.rs_remote_ip_container) {
            let users = self.users.entry(container.clone()).or_default();
            match refer {
                Refer::Yes => users.insert(name.into()),
                Refer::No => users.remove(name),
            };
            if users.is_empty() {
                self.users.remove(container);
            }
        }
    }
}

/// Whether an object refers to its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refer {
    Yes,
    No,
}

fn file(pol: &Pol) -> String {
    format!("{}.netpol", pol.spec.name)
}

impl Settings {
    /// The name of the object of a node.
    pub(crate) fn node_object(&self, node: &str) -> String {
        name::policy_object(&self.prefix, "node", node)
    }
}
