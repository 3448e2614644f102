//! Sorted arrays of the facts about pods: they find a pod by its name, and follow no change.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::world::{PodFacts, RealisticWorld};

/// Names, labels and addresses as text, one pod after the other.
pub(super) struct FactArray {
    text: String,
    /// Where the text of each pod begins, sorted by name.
    starts: Vec<u32>,
}

impl FactArray {
    pub(super) fn new(world: RealisticWorld) -> Self {
        let mut array = FactArray { text: String::new(), starts: Vec::new() };
        for at in 0..world.pods {
            let PodFacts { namespace, name, labels, addresses, .. } = world.facts(at);
            array.starts.push(array.text.len() as u32);
            array.text.extend([&namespace, "/", &name, "\n"]);
            labels.iter().for_each(|(key, value)| array.text.extend([key, "=", value, "\n"]));
            array.text.push_str(&addresses.0.to_string());
            array.text.extend(addresses.1.map(|address| format!("\n{address}")));
        }
        let FactArray { text, starts } = &mut array;
        starts.sort_by(|one, two| text[*one as usize..].cmp(&text[*two as usize..]));
        starts.shrink_to_fit();
        text.shrink_to_fit();
        array
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }
}

/// Names as text. Equal sets of labels are stored once.
pub(super) struct SharedLabelArray {
    names: String,
    pods: Vec<SharedLabelPod>,
    labels: Vec<String>,
    v6: Vec<Ipv6Addr>,
}

struct SharedLabelPod {
    name: u32,
    labels: u32,
    address: Ipv4Addr,
}

impl SharedLabelArray {
    pub(super) fn new(world: RealisticWorld) -> Self {
        let (names, pods, labels, v6) = (String::new(), Vec::new(), Vec::new(), Vec::new());
        let mut array = SharedLabelArray { names, pods, labels, v6 };
        let mut known: HashMap<String, u32> = HashMap::new();
        for at in 0..world.pods {
            let PodFacts { namespace, name, labels, addresses, .. } = world.facts(at);
            let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let next = known.len() as u32;
            let id = *known.entry(labels.join(",")).or_insert(next);
            if id == next {
                array.labels.push(labels.join(","));
            }
            let start = array.names.len() as u32;
            array.names.extend([&namespace, "/", &name, "\n"]);
            array.pods.push(SharedLabelPod { name: start, labels: id, address: addresses.0 });
            array.v6.extend(addresses.1);
        }
        let SharedLabelArray { names, pods, .. } = &mut array;
        pods.sort_by(|one, two| names[one.name as usize..].cmp(&names[two.name as usize..]));
        pods.shrink_to_fit();
        names.shrink_to_fit();
        array
    }

    pub(super) fn len(&self) -> usize {
        let is_known = |pod: &&SharedLabelPod| {
            (pod.labels as usize) < self.labels.len() && !pod.address.is_unspecified()
        };
        self.pods.iter().filter(is_known).count().max(self.v6.len())
    }
}
