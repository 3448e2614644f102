//! Pods with networks other than the cluster network, whose connections weir does not judge.

use std::collections::BTreeMap;

use weir_model::{Attachments, PodId, World};

use crate::failure::Failure;

/// Fails for a pod that is not on the cluster network: policies may apply to its connections, but
/// weir does not know the network.
pub fn check(pod: &PodId, attachments: &BTreeMap<PodId, Attachments>) -> Result<(), Failure> {
    let networks = attachments.get(pod);
    let Some(network) = networks.and_then(|networks| networks.primary.as_ref()) else {
        return Ok(());
    };
    let what = format!(
        "weir does not judge the connections of {pod}: {network} replaces its cluster network"
    );
    Err(Failure::new(what, "look at the configuration of that network"))
}

/// A remark about the secondary networks of a pod.
pub fn note(pod: &PodId, attachments: &BTreeMap<PodId, Attachments>) -> Option<String> {
    let names: Vec<&str> = attachments.get(pod)?.secondary.iter().map(|name| &**name).collect();
    let names = names.join(", ");
    (!names.is_empty()).then(|| {
        format!("{pod} also has the network {names}; weir judges only the cluster network")
    })
}

/// The world without the pods that are not on the cluster network: their connections are not
/// judged.
pub fn judged(world: &World, attachments: &BTreeMap<PodId, Attachments>) -> World {
    let mut world = world.clone();
    let is_judged = |id: &PodId| attachments.get(id).is_none_or(|one| one.primary.is_none());
    world.pods.retain(|id, _| is_judged(id));
    world
}
