use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Pod, PodId};

use crate::term::{Family, Sort};

/// The pods of a namespace, by address.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    /// Whether there is such a namespace; pods may be told before it.
    pub(crate) exists: bool,
    /// Who has which address.
    pub(crate) entries: BTreeMap<IpAddr, PodId>,
    /// What the pods look like, each look once.
    pub(crate) sorts: BTreeSet<Sort>,
}

impl Roster {
    pub(crate) fn add(&mut self, address: IpAddr, pod: &Pod) {
        self.entries.insert(address, pod.id.clone());
        let family = Family::of(address);
        self.sorts.insert(Sort { family, labels: pod.labels.clone(), ports: pod.ports.clone() });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many addresses there are of each family.
    pub(crate) fn counts(&self) -> BTreeMap<Family, usize> {
        let mut counts = BTreeMap::new();
        for address in self.entries.keys() {
            *counts.entry(Family::of(*address)).or_default() += 1;
        }
        counts
    }
}
