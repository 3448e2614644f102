//! What policies allow an address, worked out anew where something happened.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Direction, PolicyId};

use super::ClusterSet;
use crate::{
    RemoteId, ShardKey,
    directory::{Directory, InterestId, Known, Shift},
    tree::Ports,
};

impl ClusterSet {
    /// Works out what follows from what happened to pods.
    pub(super) fn settle(&mut self, shifts: Vec<Shift>) {
        let mut asked: BTreeMap<IpAddr, BTreeSet<InterestId>> = BTreeMap::new();
        for Shift { before, after } in shifts {
            for (known, is_there) in [(&before, false), (&after, true)] {
                let Some(known) = known else { continue };
                for address in &known.pod.addresses {
                    claim(&mut self.claims, *address, &known.pod.id, is_there);
                    asked.entry(*address).or_default().extend(known.interests.iter().copied());
                }
            }
        }
        self.weigh(asked);
    }

    /// Works out what policies with these interests, and those of whoever claims the addresses, allow them.
    pub(super) fn weigh(&mut self, asked: BTreeMap<IpAddr, BTreeSet<InterestId>>) {
        for (address, mut interests) in asked {
            for known in claimants(&self.claims, &self.directory, address) {
                interests.extend(known.interests.iter().copied());
            }
            let policies: BTreeSet<PolicyId> =
                interests.iter().filter_map(|id| self.users.get(id)).flatten().cloned().collect();
            for policy in policies {
                self.judge(&policy, address);
            }
        }
    }

    /// Works out what a policy allows an address.
    pub(super) fn judge(&mut self, id: &PolicyId, address: IpAddr) {
        let Some(tracked) = self.policies.get_mut(id) else { return };
        let claimants = claimants(&self.claims, &self.directory, address);
        let mut allowed: [BTreeSet<Ports>; 2] = Default::default();
        // Whose it is nobody can tell: it is enough to say so to speak for another's pods.
        let holders = self.members.values().filter(|member| member.holds(address));
        let is_contested = holders.take(2).count() == 2;
        let mut is_selected = false;
        for rule in &tracked.rules {
            is_selected |= claimants.iter().any(|known| rule.peer(known).is_some());
            if let Some(ports) = rule.allowed(&claimants).filter(|_| !is_contested) {
                allowed[rule.direction as usize].insert(ports);
            }
        }
        match is_contested && is_selected {
            true => drop(tracked.overlaps.insert(address)),
            false => drop(tracked.overlaps.remove(&address)),
        }
        let owner = claimants.first().map(|known| known.pod.id.cluster.clone());
        let owner = owner.filter(|_| allowed.iter().any(|allowed| !allowed.is_empty()));
        tracked.own(address, owner);
        let touched = self.touched.entry(id.clone()).or_default();
        for (direction, mut allowed) in Direction::BOTH.into_iter().zip(allowed) {
            // All ports are all ports.
            if allowed.contains(&None) {
                allowed = BTreeSet::from([None]);
            }
            let mut networks = BTreeSet::new();
            tracked.tree_mut(direction).set(address, allowed, &mut networks);
            touched.extend(networks.into_iter().map(|network| ShardKey { direction, network }));
        }
    }
}

fn claim(
    claims: &mut BTreeMap<IpAddr, Vec<RemoteId>>,
    address: IpAddr,
    id: &RemoteId,
    is_there: bool,
) {
    // Nearly always it is one, and a list that grows has room for more.
    let pods = claims.entry(address).or_insert_with(|| Vec::with_capacity(1));
    match (pods.binary_search(id), is_there) {
        (Err(at), true) => pods.insert(at, id.clone()),
        (Ok(at), false) => drop(pods.remove(at)),
        _ => (),
    }
    if pods.is_empty() {
        claims.remove(&address);
    }
}

/// The pods that claim an address.
pub(super) fn claimants<'a>(
    claims: &BTreeMap<IpAddr, Vec<RemoteId>>,
    directory: &'a Directory,
    address: IpAddr,
) -> Vec<&'a Known> {
    let ids = claims.get(&address).into_iter().flatten();
    ids.filter_map(|id| directory.pod(id)).collect()
}
