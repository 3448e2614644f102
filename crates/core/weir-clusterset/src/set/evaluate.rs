//! Recomputes the ports that policies allow for an address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Direction, PolicyId};

use super::ClusterSet;
use crate::{
    RemoteId, ShardKey,
    directory::{Directory, InterestId, KnownPod, Shift},
    tree::AllowedPorts,
};

impl ClusterSet {
    /// Applies changes of pods and reevaluates their addresses.
    pub(super) fn apply_shifts(&mut self, shifts: Vec<Shift>) {
        let mut addresses: BTreeMap<IpAddr, BTreeSet<InterestId>> = BTreeMap::new();
        for Shift { before, after } in shifts {
            for known in before.iter().chain(&after) {
                for address in &known.pod.addresses {
                    addresses.entry(*address).or_default().extend(known.interests.iter().copied());
                }
            }
            if let Some(KnownPod { pod, .. }) = &before {
                pod.addresses.iter().for_each(|address| self.release(*address, &pod.id));
            }
            if let Some(KnownPod { pod, .. }) = &after {
                pod.addresses.iter().for_each(|address| self.claim(*address, &pod.id));
            }
        }
        self.reevaluate(addresses);
    }

    /// Reevaluates addresses for the policies with these interests or with interests in the
    /// claimants.
    pub(super) fn reevaluate(&mut self, addresses: BTreeMap<IpAddr, BTreeSet<InterestId>>) {
        for (address, mut interests) in addresses {
            for known in claimants(&self.claims, &self.directory, address) {
                interests.extend(known.interests.iter().copied());
            }
            let policies: BTreeSet<PolicyId> =
                interests.iter().filter_map(|id| self.users.get(id)).flatten().cloned().collect();
            for policy in policies {
                self.evaluate(&policy, address);
            }
        }
    }

    /// Recomputes the ports that a policy allows for an address.
    pub(super) fn evaluate(&mut self, id: &PolicyId, address: IpAddr) {
        let Some(tracked) = self.policies.get_mut(id) else { return };
        let claimants = claimants(&self.claims, &self.directory, address);
        let mut allowed: [BTreeSet<AllowedPorts>; 2] = Default::default();
        // The address lies in the networks of two clusters, and either could have claimed it
        // falsely. Allow neither.
        let holders = self.members.values().filter(|member| member.holds(address));
        let is_contested = holders.take(2).count() == 2;
        let mut is_selected = false;
        for rule in &tracked.rules {
            is_selected |= claimants.iter().any(|known| rule.peer(known).is_some());
            if let Some(ports) = rule.allowed(&claimants).filter(|_| !is_contested) {
                allowed[rule.direction as usize].insert(ports);
            }
        }
        if is_contested && is_selected {
            tracked.overlaps.insert(address);
        } else {
            tracked.overlaps.remove(&address);
        }
        let owner = claimants.first().map(|known| known.pod.id.cluster.clone());
        let owner = owner.filter(|_| allowed.iter().any(|allowed| !allowed.is_empty()));
        tracked.set_owner(address, owner);
        let touched = self.changed.entry(id.clone()).or_default();
        for (direction, mut allowed) in Direction::BOTH.into_iter().zip(allowed) {
            // A rule for all ports includes every other rule.
            if allowed.contains(&None) {
                allowed = BTreeSet::from([None]);
            }
            let mut networks = BTreeSet::new();
            tracked.tree_mut(direction).set(address, allowed, &mut networks);
            touched.extend(networks.into_iter().map(|network| ShardKey { direction, network }));
        }
    }

    fn claim(&mut self, address: IpAddr, id: &RemoteId) {
        // Reserve one element: an address nearly always has one claimant, and the default capacity
        // is larger.
        let pods = self.claims.entry(address).or_insert_with(|| Vec::with_capacity(1));
        if let Err(at) = pods.binary_search(id) {
            pods.insert(at, id.clone());
        }
    }

    fn release(&mut self, address: IpAddr, id: &RemoteId) {
        let Some(pods) = self.claims.get_mut(&address) else { return };
        pods.retain(|pod| pod != id);
        if pods.is_empty() {
            self.claims.remove(&address);
        }
    }
}

/// The pods that claim an address.
pub(super) fn claimants<'a>(
    claims: &BTreeMap<IpAddr, Vec<RemoteId>>,
    directory: &'a Directory,
    address: IpAddr,
) -> Vec<&'a KnownPod> {
    let ids = claims.get(&address).into_iter().flatten();
    ids.filter_map(|id| directory.pod(id)).collect()
}
