use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{IpFamily, Name, PodId, PortRange, Program};

use crate::{
    ReachState,
    outside::{self, OutsideClass},
    port,
    view::{PodView, View},
};

/// The pods, addresses and ports that the rules of some states distinguish.
pub(crate) struct Partition {
    /// Pods; each group holds pods that no rule distinguishes. Sorted by their first pod.
    pub(crate) groups: Vec<PodGroup>,
    /// Addresses that belong to no pod.
    pub(crate) outside: Vec<OutsideClass>,
    /// All ports of all protocols, in order.
    pub(crate) slices: Vec<PortRange>,
}

/// Pods that every rule of every state treats alike.
pub(crate) struct PodGroup {
    /// The pods, sorted; never empty.
    pub(crate) pods: Vec<PodId>,
    /// Whether the rules treat these pods differently in different states.
    pub(crate) differs: bool,
}

impl Partition {
    /// Computes the partition of the pods that all states have in common.
    pub(crate) fn new(states: &[&ReachState]) -> Self {
        let view = View::new(states);
        let mut groups: BTreeMap<Vec<PodView>, Vec<PodId>> = BTreeMap::new();
        for id in common_pods(states) {
            let views = states.iter().enumerate().map(|(at, _)| view.pod(at, id)).collect();
            groups.entry(views).or_default().push(id.clone());
        }
        let mut groups: Vec<PodGroup> = groups
            .into_iter()
            .map(|(views, pods)| PodGroup {
                pods,
                differs: views.windows(2).any(|pair| pair[0] != pair[1]),
            })
            .collect();
        groups.sort_by(|one, two| one.pods.cmp(&two.pods));
        let programs: Vec<&Program> = states.iter().map(|state| &state.program).collect();
        let outside = outside::classes(&view, states);
        Partition { groups, outside, slices: port::slices(&programs) }
    }
}

/// The pods that have an address of their own in every state.
fn common_pods<'a>(states: &'a [&ReachState]) -> BTreeSet<&'a PodId> {
    let pods_of = |state: &'a ReachState| {
        let pods = state.world.pods.values();
        pods.filter(|pod| !pod.own_addresses().is_empty()).map(|pod| &pod.id)
    };
    let Some((first, rest)) = states.split_first() else { return BTreeSet::new() };
    let mut common: BTreeSet<&PodId> = pods_of(first).collect();
    for state in rest {
        let here: BTreeSet<&PodId> = pods_of(state).collect();
        common.retain(|id| here.contains(id));
    }
    common
}

/// One end of a connection.
#[derive(Clone, Copy)]
pub(crate) enum ReachEnd<'a> {
    /// A pod.
    Pod(&'a PodId),
    /// An address outside the cluster.
    Outside(&'a OutsideClass),
}

impl<'a> ReachEnd<'a> {
    /// The address of a family in a state.
    pub(crate) fn address(&self, state: &ReachState, family: IpFamily) -> Option<IpAddr> {
        match self {
            ReachEnd::Pod(id) => family.first_in(state.world.pods.get(*id)?.own_addresses()),
            ReachEnd::Outside(class) => {
                (IpFamily::from(class.example) == family).then_some(class.example)
            }
        }
    }

    /// The node that the pod runs on, or that the address belongs to. Rules exempt traffic between
    /// a pod and its node.
    pub(crate) fn node<'s>(&self, state: &'s ReachState) -> Option<&'s Name>
    where
        'a: 's,
    {
        match self {
            ReachEnd::Pod(id) => state.world.pods.get(*id)?.node.as_ref(),
            ReachEnd::Outside(class) => class.node.as_ref(),
        }
    }
}
