use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use weir_model::{Labels, Pod, PodId};

use crate::{
    AciSettings,
    file_policies::{self, FilePolicies},
    name,
    netpol::{Containers, Netpol, render},
    object::{HostprotId, HostprotKind, HostprotObject, NODE_SUBJECT, Pol},
};

/// The names of the groups of policies. Endpoints list them, so their writer decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupNames {
    /// The hash of the rules. Policies with equal rules share a group.
    Hash,
    /// The namespace and name of each policy.
    Policy,
    /// Both, each in a file of its own, while endpoints change from one to the other.
    Both,
}

impl GroupNames {
    /// Whether there are files named after hashes.
    fn has_hashes(self) -> bool {
        self != GroupNames::Policy
    }

    /// Whether there are files named after policies.
    fn has_policies(self) -> bool {
        self != GroupNames::Hash
    }
}

/// The files that a node must have, and the set of files that need rendering again.
///
/// *Invariant*: the files depend on the two kinds of objects and on the node's pods, never on
/// policies.
#[derive(Debug)]
pub struct Files {
    space: String,
    prefix: String,
    group_names: GroupNames,
    /// The policies, if files are named after them.
    policies: FilePolicies,
    /// The ACI name of this node's HostprotPol.
    node_object: String,
    pods: BTreeMap<PodId, Labels>,
    containers: Containers,
    pols: BTreeMap<String, Pol>,
    /// The HostprotPols that refer to each container.
    users: BTreeMap<String, BTreeSet<String>>,
    dirty: BTreeSet<String>,
    /// The file names that this node needs.
    needed: BTreeSet<String>,
    /// The files of deleted objects, not yet drained.
    gone: BTreeSet<String>,
}

impl Files {
    /// A node without objects and pods, in the given policy space.
    pub fn new(settings: &AciSettings, space: &str, node: &str, group_names: GroupNames) -> Self {
        Files {
            space: space.into(),
            prefix: settings.prefix.clone(),
            group_names,
            policies: FilePolicies::default(),
            node_object: settings.node_object(node),
            pods: BTreeMap::new(),
            containers: BTreeMap::new(),
            pols: BTreeMap::new(),
            users: BTreeMap::new(),
            dirty: BTreeSet::new(),
            needed: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    /// Adds or replaces an object.
    pub fn put(&mut self, object: HostprotObject) {
        let id = object.id();
        match object {
            HostprotObject::Container(spec) => {
                if self.containers.get(&id.name) != Some(&spec) {
                    self.dirty.extend(self.users.get(&id.name).into_iter().flatten().cloned());
                    self.containers.insert(id.name, spec);
                }
            }
            HostprotObject::Pol(pol) => {
                if self.pols.get(&id.name) != Some(&pol) {
                    self.update_references(&id.name, References::Remove);
                    if let Some(old) = self.pols.insert(id.name.clone(), pol) {
                        self.policies.remove(&id.name, &old);
                    }
                    self.policies.add(&id.name, &self.pols[&id.name]);
                    self.update_references(&id.name, References::Add);
                    self.dirty.insert(id.name);
                }
            }
        }
    }

    /// Removes an object.
    pub fn remove(&mut self, id: &HostprotId) {
        match id.kind {
            HostprotKind::Container => {
                if self.containers.remove(&id.name).is_some() {
                    self.dirty.extend(self.users.get(&id.name).into_iter().flatten().cloned());
                }
            }
            HostprotKind::Pol => {
                self.update_references(&id.name, References::Remove);
                self.dirty.remove(&id.name);
                if let Some(pol) = self.pols.remove(&id.name) {
                    self.policies.remove(&id.name, &pol);
                    let file = file(&pol.spec.name);
                    self.needed.remove(&file);
                    self.gone.insert(file);
                }
            }
        }
    }

    /// Adds or replaces a pod. Pods that have finished and host-network pods are ignored.
    pub fn put_pod(&mut self, pod: &Pod) {
        if pod.finished || pod.host_network {
            return self.remove_pod(&pod.id);
        }
        if self.pods.get(&pod.id) != Some(&pod.labels) {
            self.remove_pod(&pod.id);
            self.mark_dirty(&pod.id, &pod.labels);
            self.pods.insert(pod.id.clone(), pod.labels.clone());
        }
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, id: &PodId) {
        if let Some(labels) = self.pods.remove(id) {
            self.mark_dirty(id, &labels);
        }
    }

    /// Drains the files that may have changed since the last call, as [`Files::next_dirty`] does.
    pub fn drain_dirty(&mut self) -> impl Iterator<Item = (String, Option<Netpol>)> {
        iter::from_fn(|| self.next_dirty())
    }

    /// The next file that may have changed, with its new content, or `None` for a file to delete. The
    /// files of a large policy take much memory, so only one of them exists at a time.
    pub fn next_dirty(&mut self) -> Option<(String, Option<Netpol>)> {
        while let Some(name) = self.dirty.pop_first() {
            let Some(pol) = self.pols.get(&name) else { continue };
            if !is_own(pol) {
                self.policies.touch(pol);
                if !self.group_names.has_hashes() {
                    continue;
                }
            }
            let content =
                self.needs_file(pol).then(|| render(&pol.spec, &self.containers, &self.space));
            return Some(self.record(file(&pol.spec.name), content));
        }
        while let Some((policy, pols)) = self.policies.next_dirty() {
            if self.group_names.has_policies()
                && let Some(file) = self.render_policy(&policy, &pols)
            {
                return Some(file);
            }
        }
        // Another object may have taken over a file.
        let gone = iter::from_fn(|| self.gone.pop_first());
        let file = gone.into_iter().find(|file| !self.needed.contains(file))?;
        Some((file, None))
    }

    /// Renders the file of a policy from its objects.
    fn render_policy(
        &mut self,
        policy: &str,
        pols: &BTreeSet<String>,
    ) -> Option<(String, Option<Netpol>)> {
        let pols: Vec<&Pol> = pols.iter().filter_map(|name| self.pols.get(name)).collect();
        if pols.iter().any(|pol| is_own(pol)) {
            return None;
        }
        let name = file_policies::policy_name(&self.prefix, policy);
        let is_needed = pols.iter().any(|pol| self.needs_file(pol));
        let content = is_needed.then(|| {
            let (spec, is_narrower) = file_policies::combined(name.clone(), &pols);
            let mut netpol = render(&spec, &self.containers, &self.space);
            if is_narrower {
                netpol.warnings.push(format!(
                    "NetworkPolicy {policy}: a named port has different numbers on the pods that it selects, and they share one group: only rules that are right for all of them are written"
                ));
            }
            netpol
        });
        Some(self.record(file(&name), content))
    }

    /// Records whether the node needs a file.
    fn record(&mut self, file: String, content: Option<Netpol>) -> (String, Option<Netpol>) {
        match &content {
            Some(_) => self.needed.insert(file.clone()),
            None => self.needed.remove(&file),
        };
        (file, content)
    }

    /// The names of the files that this node needed at the last drain.
    pub fn needed(&self) -> &BTreeSet<String> {
        &self.needed
    }

    /// The ACI name of this node's HostprotPol. Its presence shows that the objects include this
    /// node.
    pub fn node_object(&self) -> &str {
        &self.node_object
    }

    /// Whether this node's HostprotPol is present.
    pub fn has_node_object(&self) -> bool {
        let object = self.pols.get(&name::resource(&self.node_object));
        object.is_some_and(|pol| pol.spec.name == self.node_object)
    }

    /// Whether a HostprotPol is present.
    pub fn has_pol(&self, id: &HostprotId) -> bool {
        self.pols.contains_key(&id.name)
    }

    /// Whether there are files with the names of policies.
    pub fn has_names_of_policies(&self) -> bool {
        self.group_names.has_policies()
    }

    /// All HostprotPols.
    pub fn pols(&self) -> impl Iterator<Item = &Pol> {
        self.pols.values()
    }

    /// The ACI names of all HostprotPols.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pols.values().map(|pol| pol.spec.name.as_str())
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.pols.len() + self.containers.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Marks every file as dirty.
    pub fn distrust(&mut self) {
        self.dirty.extend(self.pols.keys().cloned());
    }

    /// Whether this node needs a file for the object.
    fn needs_file(&self, pol: &Pol) -> bool {
        match &pol.selects {
            Some(choices) => self.pods.iter().any(|(id, labels)| {
                choices.iter().any(|choice| choice.selects(&id.namespace, labels))
            }),
            // An object that lists itself as its policy belongs to one node or to all pods. For any
            // other object the selected pods are unknown. An extra file does no harm.
            None if is_own(pol) => {
                let mut subjects = pol.spec.hostprot_subj.iter();
                pol.spec.name == self.node_object
                    || subjects.any(|subject| subject.name != NODE_SUBJECT)
            }
            None => true,
        }
    }

    /// Marks the objects that select a pod as dirty.
    fn mark_dirty(&mut self, id: &PodId, labels: &Labels) {
        let selects = |pol: &Pol| {
            let choices = pol.selects.iter().flatten();
            choices.into_iter().any(|choice| choice.selects(&id.namespace, labels))
        };
        let touched = self.pols.iter().filter(|(_, pol)| selects(pol));
        let touched: Vec<String> = touched.map(|(name, _)| name.clone()).collect();
        self.dirty.extend(touched);
    }

    fn update_references(&mut self, name: &str, refer: References) {
        let Some(pol) = self.pols.get(name) else { return };
        let rules = pol.spec.hostprot_subj.iter().flat_map(|subject| &subject.hostprot_rule);
        for container in rules.flat_map(|rule| &rule.rs_remote_ip_container) {
            let users = self.users.entry(container.clone()).or_default();
            match refer {
                References::Add => users.insert(name.into()),
                References::Remove => users.remove(name),
            };
            if users.is_empty() {
                self.users.remove(container);
            }
        }
    }
}

/// Whether to add or remove the references to containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum References {
    Add,
    Remove,
}

/// Whether an object lists itself as its policy.
fn is_own(pol: &Pol) -> bool {
    pol.spec.network_policies == [pol.spec.name.as_str()]
}

fn file(name: &str) -> String {
    format!("{name}.netpol")
}

impl AciSettings {
    /// The ACI name of a node's HostprotPol.
    pub(crate) fn node_object(&self, node: &str) -> String {
        name::policy_object(&self.prefix, "node", node)
    }
}
