use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{IpFamily, Pod, PodId};

use crate::peer::PodProfile;

/// The pods of a namespace, by address.
#[derive(Debug, Default)]
pub(crate) struct NamespacePods {
    /// Whether the namespace exists. Pods can arrive before their namespace.
    pub(crate) exists: bool,
    /// The pod that owns each address.
    pub(crate) entries: BTreeMap<IpAddr, PodId>,
    /// The distinct profiles of the pods.
    pub(crate) profiles: BTreeSet<PodProfile>,
}

impl NamespacePods {
    pub(crate) fn add(&mut self, address: IpAddr, pod: &Pod) {
        self.entries.insert(address, pod.id.clone());
        let family = IpFamily::from(address);
        self.profiles.insert(PodProfile {
            family,
            labels: pod.labels.clone(),
            ports: pod.ports.clone(),
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of addresses per family.
    pub(crate) fn counts(&self) -> BTreeMap<IpFamily, usize> {
        let mut counts = BTreeMap::new();
        for address in self.entries.keys() {
            *counts.entry(IpFamily::from(*address)).or_default() += 1;
        }
        counts
    }
}
