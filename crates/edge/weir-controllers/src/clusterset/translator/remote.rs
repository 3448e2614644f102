//! What is told about other clusters.

use std::collections::BTreeSet;

use ipnet::IpNet;
use weir_clusterset::{Life, RemoteId, RemotePod};
use weir_model::Name;

use super::{Translator, name_of};
use crate::{
    Object, Told,
    clusterset::{
        Settings,
        wire::{self, MEMBERS, REMOTE_NAMESPACES, REMOTE_PODS},
    },
};

/// What members are called where something is wrong with them.
const MEMBER: &str = "ClusterSetMember ";
/// How many objects that cannot be read are named.
const SHOWN: usize = 3;

impl Translator<'_> {
    pub(super) fn take_pods(&mut self, told: Told) {
        self.trouble(REMOTE_PODS.kind, &told);
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(REMOTE_PODS.kind);
                let read = objects
                    .into_iter()
                    .map(|object| (name_of(&object), wire::read_pressed(&object)));
                let read: Vec<(String, Result<RemotePod, String>)> = read.collect();
                let there = read.iter().filter_map(|(_, pod)| pod.as_ref().ok());
                let there: BTreeSet<&RemoteId> = there.map(|pod| &pod.id).collect();
                let gone = self.set.pods().filter(|id| !there.contains(id));
                let gone: Vec<RemoteId> = gone.cloned().collect();
                gone.iter().for_each(|id| self.set.remove_pod(id));
                self.strays.clear();
                self.odd.retain(|name, _| name.starts_with(MEMBER));
                self.set.forget_crowded();
                read.into_iter().for_each(|(name, pod)| self.put_pod(name, pod));
            }
            Told::Put(object) => self.put_pod(name_of(&object), wire::read_pressed(&object)),
            Told::Gone(object) => self.remove_pod(&name_of(&object)),
            Told::Trouble(_) => (),
        }
    }

    fn put_pod(&mut self, name: String, read: Result<RemotePod, String>) {
        match read {
            Ok(pod) => {
                self.odd.remove(&name);
                // What an object was about before is gone if it is about another pod now.
                if let Some(before) = self.about(&name).filter(|before| *before != pod.id) {
                    self.set.remove_pod(&before);
                }
                match wire::remote_name(&pod.id) == name {
                    true => drop(self.strays.remove(&name)),
                    false => drop(self.strays.insert(name, pod.id.clone())),
                }
                self.set.put_pod(pod);
            }
            Err(wrong) => {
                self.remove_pod(&name);
                self.odd.insert(name.clone(), format!("RemotePod {name} is not believed: {wrong}"));
            }
        }
    }

    fn remove_pod(&mut self, name: &str) {
        self.odd.remove(name);
        if let Some(id) = self.about(name) {
            self.strays.remove(name);
            self.set.remove_pod(&id);
        }
    }

    /// The pod that an object of the broker was about.
    fn about(&self, name: &str) -> Option<RemoteId> {
        match self.strays.get(name) {
            Some(id) => Some(id.clone()),
            None => wire::remote_id(name).filter(|id| self.set.knows(id)),
        }
    }

    pub(super) fn take_namespaces(&mut self, told: Told) {
        self.trouble(REMOTE_NAMESPACES.kind, &told);
        let mut put = Vec::new();
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(REMOTE_NAMESPACES.kind);
                let there: BTreeSet<String> = objects.iter().map(name_of).collect();
                let gone: Vec<String> =
                    self.namespaces.keys().filter(|name| !there.contains(*name)).cloned().collect();
                gone.iter().for_each(|name| self.remove_namespace(name));
                self.set.forget_sprawling();
                put = objects;
            }
            Told::Put(object) => put.push(object),
            Told::Gone(object) => self.remove_namespace(&name_of(&object)),
            Told::Trouble(_) => (),
        }
        for object in put {
            let name = name_of(&object);
            match wire::read_namespace(&object) {
                Ok((cluster, namespace, labels)) => {
                    // What an object was about before is gone if it is about another namespace now.
                    let now = (cluster.clone(), namespace.clone());
                    if self.namespaces.get(&name).is_some_and(|known| *known != now) {
                        self.remove_namespace(&name);
                    }
                    self.set.namespace(&cluster, &namespace, Some(labels));
                    if self.set.knows_namespace(&cluster, &namespace) {
                        self.namespaces.insert(name, (cluster, namespace));
                    }
                }
                Err(_) => self.remove_namespace(&name),
            }
        }
    }

    fn remove_namespace(&mut self, name: &str) {
        if let Some((cluster, namespace)) = self.namespaces.remove(name) {
            self.set.namespace(&cluster, &namespace, None);
        }
    }

    pub(super) fn take_members(&mut self, told: Told) {
        self.trouble(MEMBERS.kind, &told);
        let mut touched: BTreeSet<String> = BTreeSet::new();
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(MEMBERS.kind);
                touched.extend(std::mem::take(&mut self.members).into_keys());
                self.odd.retain(|name, _| !name.starts_with(MEMBER));
                touched.extend(objects.iter().map(name_of));
                objects.iter().for_each(|object| self.put_member(object));
            }
            Told::Put(object) => {
                self.put_member(&object);
                touched.insert(name_of(&object));
            }
            Told::Gone(object) => {
                let name = name_of(&object);
                self.members.remove(&name);
                self.odd.remove(&format!("{MEMBER}{name}"));
                touched.insert(name);
            }
            Told::Trouble(_) => (),
        }
        for cluster in touched {
            self.admit(&cluster.as_str().into());
        }
    }

    fn put_member(&mut self, object: &Object) {
        let name = name_of(object);
        let odd = format!("{MEMBER}{name}");
        match wire::read_member(object) {
            Ok(told) => {
                self.odd.remove(&odd);
                self.members.insert(name, told);
            }
            Err(wrong) => {
                self.members.remove(&name);
                self.odd.insert(odd.clone(), format!("{odd} is not believed: {wrong}"));
            }
        }
    }

    /// Decides whether a cluster counts: it says where its pods are, it gives signs of life, and the two are of one cluster.
    pub(super) fn admit(&mut self, cluster: &Name) {
        let Some(lives) = self.lives() else { return };
        let told = self.members.get(&**cluster);
        let counts = told.filter(|told| {
            lives.get(cluster).is_some_and(|(uid, life)| *uid == told.uid && *life != Life::Gone)
        });
        let member = counts.map(|told| told.member.clone());
        self.set.member(cluster, member);
    }

    /// What other clusters do wrong.
    pub(super) fn notes(&self) -> Vec<String> {
        let Settings { accepted, pods, namespaces, .. } = self.settings;
        let mut notes: Vec<String> = self.odd.values().take(SHOWN).cloned().collect();
        for (name, told) in &self.members {
            let cluster = &told.cluster;
            if accepted.is_empty() || *cluster == self.settings.cluster {
                continue;
            }
            let Some(here) = accepted.get(cluster) else {
                notes.push(format!(
                    "{MEMBER}{name} is not accepted: there is no --member-cidr for it"
                ));
                continue;
            };
            let is_accepted = |one: &&IpNet| here.iter().any(|other| other.contains(*one));
            if let Some(network) = told.member.networks.iter().find(|one| !is_accepted(one)) {
                notes.push(format!(
                    "{MEMBER}{name} says that pods are in {network}; only those count that are where --member-cidr says"
                ));
            }
        }
        for (cluster, pods) in self.set.refused() {
            let Some((id, addresses)) = pods.first_key_value() else { continue };
            let address = addresses.first().map(ToString::to_string).unwrap_or_default();
            notes.push(format!(
                "cluster {cluster} tells {} pods at addresses that are outside of its networks or inside of ours, as {}/{} at {address}; they are refused",
                pods.len(), id.namespace, id.name
            ));
        }
        let crowded = self.set.crowded().iter().map(|cluster| {
            format!("cluster {cluster} tells more than {pods} pods; the others are not allowed, until this controller starts anew with a higher --member-pods")
        });
        notes.extend(crowded);
        let sprawling = self.set.sprawling().iter().map(|cluster| {
            format!("cluster {cluster} tells more than {namespaces} namespaces; policies that choose namespaces by labels do not allow pods of the others, until this controller starts anew with a higher --member-namespaces")
        });
        notes.extend(sprawling);
        notes
    }
}
