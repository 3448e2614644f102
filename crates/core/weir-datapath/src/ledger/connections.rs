//! Termination of established connections that a change forbids.

use std::{collections::BTreeSet, mem, net::IpAddr};

use weir_model::{Delta, Program, SetDelta, SetId};

use super::Ledger;
use crate::{ApplyError, Datapath, EndingFlows, former::is_domain};

/// What happens to established connections that a change forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// They continue.
    Keep,
    /// The datapath ends them.
    Cut,
}

/// The addresses whose connections may have to end.
#[derive(Debug, Default)]
pub(super) struct Affected {
    /// Addresses that take part in connections which the rules may forbid now.
    pub(super) touched: BTreeSet<IpAddr>,
    /// Addresses that no longer belong to the pod that they belonged to.
    pub(super) released: BTreeSet<IpAddr>,
}

impl Affected {
    fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.released.is_empty()
    }
}

impl<D: Datapath> Ledger<D> {
    /// Whether established connections may have to be ended.
    pub fn has_flows_to_terminate(&self) -> bool {
        self.trusted && !(self.affected.is_empty() && self.ending.is_empty())
    }

    /// Whether `terminate_flows` need not wait for packets inside the rules. It does not wait itself:
    /// the first call starts the wait, which takes milliseconds, elsewhere.
    pub fn can_terminate_flows(&mut self) -> bool {
        self.gather_ending();
        self.datapath.flows().is_none_or(|flows| flows.have_packets_left())
    }

    /// Ends the established connections that the program forbids, and those of addresses that left
    /// their pods. Returns how many it ended. Those of changes after the first call of
    /// `can_terminate_flows` may remain for the next time.
    pub fn terminate_flows(&mut self) -> Result<usize, ApplyError> {
        if !self.has_flows_to_terminate() {
            return Ok(0);
        }
        self.gather_ending();
        let Ledger { program, ending: Affected { touched, released }, former, .. } = self;
        let ending = EndingFlows { program, touched, released, former };
        let terminated = match self.datapath.flows() {
            Some(flows) => flows.terminate(&mut self.planner, &ending)?,
            None => 0,
        };
        self.ending = Affected::default();
        Ok(terminated)
    }

    /// Begins with the connections of all changes so far, unless those of earlier ones are ending.
    fn gather_ending(&mut self) {
        if self.ending.is_empty() {
            self.ending = mem::take(&mut self.affected);
        }
    }

    /// How many more connections ended since the last call, on a machine that ends them one by one.
    pub fn ended_since(&mut self) -> Result<usize, ApplyError> {
        self.datapath.flows().map_or(Ok(0), |flows| flows.ended_since())
    }

    /// The addresses that left sets of domain names that rules name. Their connections continue.
    pub fn former(&self) -> impl Iterator<Item = (&SetId, &BTreeSet<IpAddr>)> {
        let sets = self.former.iter();
        sets.filter(|(set, former)| !former.is_empty() && self.program.sets.contains_key(*set))
    }

    /// Adds addresses that left the set of a domain name under an earlier agent.
    pub fn restore_former(&mut self, set: SetId, addresses: impl IntoIterator<Item = IpAddr>) {
        self.former.extend(set, addresses);
    }

    /// Records a delta that the machine accepted. The first one decides which restored addresses count.
    pub(super) fn record_former(&mut self, delta: &Delta, is_first: bool) {
        self.former.record(delta);
        if is_first {
            self.former.retain(&self.program);
        }
    }

    /// The addresses whose connections a delta may forbid.
    pub(super) fn touched_by(&self, delta: &Delta) -> BTreeSet<IpAddr> {
        let mut touched = BTreeSet::new();
        if self.established == Established::Keep {
            return touched;
        }
        for (id, desired) in &delta.endpoints {
            if let Some(desired) = desired
                && self.program.endpoints.get(id) != Some(desired)
            {
                touched.extend(&desired.addresses);
            }
        }
        for (id, change) in delta.sets.iter().filter(|(id, _)| !is_domain(id)) {
            let additions_matter = self.denying.contains(id);
            match (change, self.program.sets.get(id)) {
                (SetDelta::Change { added, removed }, _) => {
                    touched.extend(removed.iter().map(|member| member.address));
                    if additions_matter {
                        touched.extend(added.iter().map(|member| member.address));
                    }
                }
                (SetDelta::Put(now), Some(before)) => {
                    touched.extend(before.difference(now).map(|member| member.address));
                    if additions_matter {
                        touched.extend(now.difference(before).map(|member| member.address));
                    }
                }
                // The rules that name a new or a removed set change together with it.
                (SetDelta::Put(_), None) | (SetDelta::Gone { .. }, _) => (),
            }
        }
        touched
    }
}

/// The addresses that no longer belong to the pod that they belonged to before a delta.
pub(super) fn released_by(undo: &Delta, program: &Program) -> BTreeSet<IpAddr> {
    let old = undo.endpoints.iter().filter_map(|(id, old)| Some((id, old.as_ref()?)));
    let addresses = old.flat_map(|(id, old)| old.addresses.iter().map(move |one| (id, *one)));
    let is_released = |id, address| program.owner(address).is_none_or(|(owner, _)| owner != id);
    addresses.filter(|(id, one)| is_released(*id, *one)).map(|(_, address)| address).collect()
}
