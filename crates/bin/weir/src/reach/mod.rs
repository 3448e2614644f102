//! Who reaches whom: everything that rules can tell apart, asked once.
//!
//! ```text
//!  State (a world and its program) ┐                ┌ groups   pods that no rule tells apart
//!                                  ├──► Field ──────┤ outside  addresses that no rule tells apart
//!  State, another one (for diff)   ┘                └ ports    ports that no rule tells apart
//! ```
//!
//! *Invariant*: one question per group, address class and port class gives the answer for all of their members, in every
//! state that the field was made for.

mod comparison;
mod fold;
mod judge;
#[cfg(test)]
mod laws;
mod matrix;
mod name;
mod outside;
mod port;
mod shelf;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use weir_engine::Locality;
use weir_model::{Name, PodId, PortRange, Program, World};

pub(crate) use comparison::{Change, Comparison, with_pods_of};
pub(crate) use matrix::{Cell, Question, Reach, Word};
use name::{Names, networks};
use outside::Outside;
use port::union;
pub(crate) use port::{phrase, spell};

/// A world and what it compiles to.
pub(crate) struct State {
    /// The cluster.
    pub(crate) world: World,
    /// Its rules, of all nodes.
    pub(crate) program: Program,
}

impl State {
    /// Compiles a world.
    pub(crate) fn new(world: World) -> Self {
        let program = weir_engine::compile(&world, Locality::Everywhere);
        State { world, program }
    }
}

/// The two families of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The first address of this family.
    pub(crate) fn pick(self, addresses: &[IpAddr]) -> Option<IpAddr> {
        addresses.iter().copied().find(|address| Family::of(*address) == self)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// All that the rules of some states can tell apart.
pub(crate) struct Field {
    /// Pods, those that no rule tells apart together; by their first member.
    pub(crate) groups: Vec<Group>,
    /// Addresses that are no pod's.
    pub(crate) outside: Vec<Outside>,
    /// Ports, in order.
    pub(crate) ports: Vec<PortRange>,
}

/// Pods that every rule of every state treats alike.
pub(crate) struct Group {
    /// The pods, sorted; never empty.
    pub(crate) pods: Vec<PodId>,
    /// Whether the rules see these pods differently in the states.
    pub(crate) differs: bool,
}

impl Field {
    /// The field of some states. Only pods that are in all of them are in it.
    pub(crate) fn new(states: &[&State]) -> Self {
        let view = view::View::new(states);
        let mut groups: BTreeMap<Vec<view::Sight>, Vec<PodId>> = BTreeMap::new();
        for id in common_pods(states) {
            let sights = states.iter().enumerate().map(|(at, _)| view.pod(at, id)).collect();
            groups.entry(sights).or_default().push(id.clone());
        }
        let mut groups: Vec<Group> = groups
            .into_iter()
            .map(|(sights, pods)| Group {
                pods,
                differs: sights.windows(2).any(|pair| pair[0] != pair[1]),
            })
            .collect();
        groups.sort_by(|one, two| one.pods.cmp(&two.pods));
        let programs: Vec<&Program> = states.iter().map(|state| &state.program).collect();
        Field { groups, outside: outside::classes(&view, states), ports: port::slices(&programs) }
    }
}

/// The pods that are at an address of their own in all states.
fn common_pods<'a>(states: &'a [&State]) -> BTreeSet<&'a PodId> {
    let of = |state: &'a State| {
        let pods = state.world.pods.values();
        pods.filter(|pod| !pod.own_addresses().is_empty()).map(|pod| &pod.id)
    };
    let Some((first, rest)) = states.split_first() else { return BTreeSet::new() };
    let mut common: BTreeSet<&PodId> = of(first).collect();
    for state in rest {
        let here: BTreeSet<&PodId> = of(state).collect();
        common.retain(|id| here.contains(id));
    }
    common
}

/// One end of a question: a pod or an address.
#[derive(Clone, Copy)]
pub(crate) enum End<'a> {
    /// A pod.
    Pod(&'a PodId),
    /// An address outside.
    Outside(&'a Outside),
}

impl<'a> End<'a> {
    /// Its address of a family, in a state.
    pub(crate) fn address(&self, state: &State, family: Family) -> Option<IpAddr> {
        match self {
            End::Pod(id) => family.pick(state.world.pods.get(*id)?.own_addresses()),
            End::Outside(outside) => {
                (Family::of(outside.example) == family).then_some(outside.example)
            }
        }
    }

    /// The node it is or runs on, if that makes connections exempt.
    fn node<'s>(&self, state: &'s State) -> Option<&'s Name>
    where
        'a: 's,
    {
        match self {
            End::Pod(id) => state.world.pods.get(*id)?.node.as_ref(),
            End::Outside(outside) => outside.node.as_ref(),
        }
    }
}
