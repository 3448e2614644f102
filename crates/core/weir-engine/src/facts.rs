//! The facts of an engine as changes, from which another engine can be built.

use weir_model::{Change, Namespace, Node, Object, Pod, Policy};

use crate::{
    cluster::Cluster,
    pods::{PodEntry, PodIndex},
    policies::Policies,
};

impl Cluster {
    /// The changes that build an equal cluster. Pods without addresses have no labels in them,
    /// because no selector can match them.
    pub(crate) fn facts(&self) -> impl Iterator<Item = Change> + '_ {
        let namespaces = self.namespaces.declared(&self.labels).map(|(name, labels)| {
            Object::Namespace(Namespace { name: name.clone(), labels, location: None })
        });
        let nodes = self.nodes.objects(&self.labels).map(|(name, labels, addresses)| {
            let (name, addresses) = (name.clone(), addresses.to_vec());
            Object::Node(Node { name, labels, addresses, location: None })
        });
        let pods = self.pods.iter().map(|(index, pod)| Object::Pod(self.pod(index, pod)));
        let domains = self.domains.iter();
        let domains =
            domains.map(|(name, addresses)| Object::Domain(name.clone(), addresses.to_vec()));
        namespaces.chain(nodes).chain(pods).chain(domains).map(Change::Put)
    }

    fn pod(&self, index: PodIndex, pod: &PodEntry) -> Pod {
        // The first pair of a row is the pseudo label of the namespace.
        let row = self.pods.postings.row(index).get(1..).unwrap_or_default();
        Pod {
            id: self.pod_id(index),
            labels: self.labels.of(row),
            addresses: pod.addresses.to_vec(),
            node: pod.node.map(|node| self.nodes.name(node).clone()),
            ports: pod.ports.as_deref().map(<[_]>::to_vec).unwrap_or_default(),
            host_network: pod.host_network,
            finished: false,
            claim: pod.claim,
            owner: None,
            uid: None,
            location: None,
        }
    }
}

impl Policies {
    /// The changes that add these policies.
    pub(crate) fn facts(&self) -> impl Iterator<Item = Change> + '_ {
        self.table.iter().map(|(_, policy)| {
            Change::Put(Object::Policy(Policy {
                id: policy.id.clone(),
                location: policy.location.clone(),
                spec: policy.spec.clone(),
                staged: false,
            }))
        })
    }
}
