//! What is told about other clusters.

use std::collections::BTreeSet;

use weir_clusterset::Life;
use weir_model::Name;

use super::{Translator, name_of};
use crate::{
    Object, Told,
    clusterset::wire::{self, MEMBERS, REMOTE_NAMESPACES, REMOTE_PODS},
};

/// What members are called where something is wrong with them.
const MEMBER: &str = "ClusterSetMember ";

impl Translator<'_> {
    pub(super) fn take_pods(&mut self, told: Told) {
        self.trouble(REMOTE_PODS.kind, &told);
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(REMOTE_PODS.kind);
                let there: BTreeSet<String> = objects.iter().map(name_of).collect();
                let gone: Vec<String> =
                    self.pods.keys().filter(|name| !there.contains(*name)).cloned().collect();
                gone.iter().for_each(|name| self.remove_pod(name));
                objects.iter().for_each(|object| self.put_pod(object));
            }
            Told::Put(object) => self.put_pod(&object),
            Told::Gone(object) => self.remove_pod(&name_of(&object)),
            Told::Trouble(_) => (),
        }
    }

    fn put_pod(&mut self, object: &Object) {
        let name = name_of(object);
        match wire::read_pod(object) {
            Ok(pod) => {
                self.odd.remove(&name);
                // What an object was about before is gone if it is about another pod now.
                if self.pods.get(&name).is_some_and(|known| *known != pod.id) {
                    self.remove_pod(&name);
                }
                self.pods.insert(name, pod.id.clone());
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
        if let Some(id) = self.pods.remove(name) {
            self.set.remove_pod(&id);
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
                    self.namespaces.insert(name, (cluster, namespace));
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
        let Some(lives) = &self.lives else { return };
        let told = self.members.get(&**cluster);
        let counts = told.filter(|told| {
            lives.get(cluster).is_some_and(|(uid, life)| *uid == told.uid && *life != Life::Gone)
        });
        let member = counts.map(|told| told.member.clone());
        self.set.member(cluster, member);
    }
}
