use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{Block, Direction, Name, Peer, Policy, PolicyRule, PortMatch, PortSpec, Who};

use crate::{
    ShardKey,
    directory::KnownPod,
    rules::RemoteRule,
    tree::{AddressTree, AllowedPorts},
};

/// A policy and the addresses that it allows.
#[derive(Clone, Debug)]
pub(crate) struct TrackedPolicy {
    pub(crate) policy: Policy,
    pub(crate) uid: Name,
    pub(crate) rules: Vec<RemoteRule>,
    ingress: AddressTree,
    egress: AddressTree,
    /// The addresses for which any port is allowed, with their cluster.
    owners: BTreeMap<IpAddr, Name>,
    /// The number of these addresses, by cluster.
    pub(crate) clusters: BTreeMap<Name, usize>,
    /// The addresses that are not allowed because several clusters have them in their networks.
    pub(crate) overlaps: BTreeSet<IpAddr>,
}

impl TrackedPolicy {
    pub(crate) fn new(policy: Policy, uid: Name, rules: Vec<RemoteRule>, limit: usize) -> Self {
        TrackedPolicy {
            policy,
            uid,
            rules,
            ingress: AddressTree::new(limit),
            egress: AddressTree::new(limit),
            owners: BTreeMap::new(),
            clusters: BTreeMap::new(),
            overlaps: BTreeSet::new(),
        }
    }

    pub(crate) fn tree(&self, direction: Direction) -> &AddressTree {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    pub(crate) fn tree_mut(&mut self, direction: Direction) -> &mut AddressTree {
        match direction {
            Direction::Ingress => &mut self.ingress,
            Direction::Egress => &mut self.egress,
        }
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardKey> {
        Direction::BOTH.into_iter().flat_map(|direction| {
            let networks = self.tree(direction).networks();
            networks.map(move |network| ShardKey { direction, network })
        })
    }

    /// Sets the cluster of an allowed address; `None` if the address is not allowed.
    pub(crate) fn set_owner(&mut self, address: IpAddr, owner: Option<Name>) {
        let before = match &owner {
            Some(owner) => self.owners.insert(address, owner.clone()),
            None => self.owners.remove(&address),
        };
        if let Some(before) = before
            && let Some(count) = self.clusters.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.clusters.remove(&before);
            }
        }
        if let Some(owner) = owner {
            *self.clusters.entry(owner).or_default() += 1;
        }
    }

    /// The policy with additional rules that list the addresses of the selected remote pods.
    pub(crate) fn expanded<'a>(&self, claimants: impl Fn(IpAddr) -> Vec<&'a KnownPod>) -> Policy {
        let mut spec = (*self.policy.spec).clone();
        // Port names can resolve to different numbers, so each distinct list of ports gets its own
        // rule.
        let mut added: BTreeMap<(Direction, usize, AllowedPorts), PolicyRule> = BTreeMap::new();
        for address in self.owners.keys() {
            let claimants = claimants(*address);
            let Some(first) = claimants.first() else { continue };
            for remote in &self.rules {
                let Some(ports) = remote.allowed(&claimants) else { continue };
                let rules = match remote.direction {
                    Direction::Ingress => spec.ingress.as_mut(),
                    Direction::Egress => spec.egress.as_mut(),
                };
                let rule = rules.and_then(|rules| rules.get_mut(remote.at));
                let (Some(rule), Some(at)) = (rule, remote.peer(first)) else { continue };
                let Some(peer) = rule.peers.as_ref().and_then(|peers| peers.get(at)) else {
                    continue;
                };
                let who = Who::Block(Block::host(*address));
                let peer = Peer { index: peer.index, line: peer.line, who };
                let resolved = ports.as_ref().map(|ports| {
                    let line = rule.ports.iter().flatten().map(|port| port.line).next();
                    let spec = |ports: &PortMatch| PortSpec {
                        line: line.unwrap_or_default(),
                        ports: ports.clone(),
                    };
                    ports.iter().map(spec).collect()
                });
                let key = (remote.direction, remote.at, ports);
                let new =
                    || PolicyRule { peers: Some(Vec::new()), ports: resolved, ..rule.clone() };
                let rule = added.entry(key).or_insert_with(new);
                rule.peers.get_or_insert_default().push(peer);
            }
        }
        for ((direction, _, _), rule) in added {
            match direction {
                Direction::Ingress => spec.ingress.get_or_insert_default().push(rule),
                Direction::Egress => spec.egress.get_or_insert_default().push(rule),
            }
        }
        Policy { spec: Arc::new(spec), ..self.policy.clone() }
    }
}
