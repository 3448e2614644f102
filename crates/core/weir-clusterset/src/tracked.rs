use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{Block, Direction, Name, Peer, Policy, PolicyRule, PortMatch, PortSpec, Who};

use crate::{
    ShardKey,
    directory::Known,
    rules::RemoteRule,
    tree::{Ports, Tree},
};

/// A policy, and what it allows to whom.
#[derive(Clone, Debug)]
pub(crate) struct Tracked {
    pub(crate) policy: Policy,
    pub(crate) uid: Name,
    pub(crate) rules: Vec<RemoteRule>,
    ingress: Tree,
    egress: Tree,
    /// The addresses that are allowed anything, and whose they are.
    owners: BTreeMap<IpAddr, Name>,
    /// How many of them are whose.
    pub(crate) clusters: BTreeMap<Name, usize>,
    /// The addresses in networks of several clusters, which are not allowed because of it.
    pub(crate) overlaps: BTreeSet<IpAddr>,
}

impl Tracked {
    pub(crate) fn new(policy: Policy, uid: Name, rules: Vec<RemoteRule>, limit: usize) -> Self {
        Tracked {
            policy,
            uid,
            rules,
            ingress: Tree::new(limit),
            egress: Tree::new(limit),
            owners: BTreeMap::new(),
            clusters: BTreeMap::new(),
            overlaps: BTreeSet::new(),
        }
    }

    pub(crate) fn tree(&self, direction: Direction) -> &Tree {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    pub(crate) fn tree_mut(&mut self, direction: Direction) -> &mut Tree {
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

    /// An address is allowed and a cluster's; `None` if it is not allowed.
    pub(crate) fn own(&mut self, address: IpAddr, owner: Option<Name>) {
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

    /// The policy itself, with the remote pods that it selects written out beside the peer that selects them.
    pub(crate) fn expanded<'a>(&self, claimants: impl Fn(IpAddr) -> Vec<&'a Known>) -> Policy {
        let mut spec = (*self.policy.spec).clone();
        // Where a name of a port stands for a number of its own, a rule beside the one that was written.
        let mut beside: BTreeMap<(Direction, usize, Ports), PolicyRule> = BTreeMap::new();
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
                let rule = beside.entry(key).or_insert_with(new);
                rule.peers.get_or_insert_default().push(peer);
            }
        }
        for ((direction, _, _), rule) in beside {
            match direction {
                Direction::Ingress => spec.ingress.get_or_insert_default().push(rule),
                Direction::Egress => spec.egress.get_or_insert_default().push(rule),
            }
        }
        Policy { spec: Arc::new(spec), ..self.policy.clone() }
    }
}
