//! The destinations that a policy's egress rules admit, in a form that is quick to search.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{
    Direction, Interval, IpFamily, Labels, Peer, PolicyRule, PortMatch, Protocol, Selector, Who,
    address_number,
};

use crate::{
    frontend::{BackendClass, Frontend, FrontendPort},
    normalized::{NormalizedPolicy, PortName},
    peer::NamespaceScope,
};

/// The egress rules of a policy. Cost of a lookup: the logarithm of its ports and networks, and its
/// distinct pod selectors.
#[derive(Debug)]
pub(crate) struct Destinations {
    rules: Vec<DestinationRule>,
}

#[derive(Debug)]
struct DestinationRule {
    /// `None` admits every port.
    ports: Option<PortSet>,
    /// `None` admits every peer.
    peers: Option<PeerSet>,
}

#[derive(Debug, Default)]
struct PortSet {
    /// Disjoint ranges in order.
    ranges: BTreeMap<Protocol, Vec<(u16, u16)>>,
    names: BTreeSet<PortName>,
}

#[derive(Debug, Default)]
struct PeerSet {
    pods: BTreeSet<(NamespaceScope, Selector)>,
    /// Disjoint intervals in order.
    networks: BTreeMap<IpFamily, Vec<Interval>>,
}

/// How many backends of a Service a policy admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// All of them.
    Whole,
    /// Some of them. A connection to the Service could reach the others too.
    Part,
}

impl Destinations {
    /// The destinations of a policy. `None` if it isolates no egress, or allows all of it.
    pub(crate) fn from_policy(policy: &NormalizedPolicy) -> Option<Self> {
        let rules = policy.rules(Direction::Egress)?;
        let rule = |rule: &PolicyRule| DestinationRule {
            ports: rule.ports.as_ref().map(|ports| PortSet::new(ports.iter().map(|p| &p.ports))),
            peers: rule.peers.as_ref().map(|peers| PeerSet::new(peers, policy)),
        };
        let rules: Vec<DestinationRule> = rules.iter().map(rule).collect();
        let is_open = rules.iter().any(|rule| rule.ports.is_none() && rule.peers.is_none());
        (!is_open).then_some(Destinations { rules })
    }

    /// Whether a Service of any namespace can have admitted backends.
    pub(crate) fn are_everywhere(&self) -> bool {
        let is_wide = |peers: &PeerSet| !peers.networks.is_empty();
        self.rules.iter().any(|rule| rule.peers.as_ref().is_none_or(is_wide))
    }

    /// How many backends of a Service's port the policy admits; `None` for none of them. `labels`
    /// are those of a namespace.
    pub(crate) fn admission<'l>(
        &self,
        frontend: &Frontend,
        labels: impl Fn(&str) -> Option<&'l Labels>,
    ) -> Option<Admission> {
        let protocol = frontend.port.protocol;
        let (mut admits_some, mut admits_all) = (false, true);
        for (class, addresses) in &frontend.backends {
            let rules: Vec<&DestinationRule> =
                self.rules.iter().filter(|rule| rule.has_port(protocol, class)).collect();
            if rules.iter().any(|rule| rule.selects(class, &labels)) {
                admits_some = true;
                continue;
            }
            let is_in_network =
                |address: &IpAddr| rules.iter().any(|rule| rule.has_network(*address));
            let admitted = addresses.iter().filter(|address| is_in_network(address)).count();
            admits_some |= admitted > 0;
            admits_all &= admitted == addresses.len();
        }
        match (admits_some, admits_all) {
            (true, true) => Some(Admission::Whole),
            (true, false) => Some(Admission::Part),
            (false, _) => None,
        }
    }

    /// Whether a network of the policy contains the address of a Service, at its port.
    pub(crate) fn have_address(&self, address: IpAddr, port: FrontendPort) -> bool {
        let class = BackendClass { port: port.port, pod: None };
        let admits = |rule: &DestinationRule| {
            rule.has_port(port.protocol, &class)
                && (rule.peers.is_none() || rule.has_network(address))
        };
        self.rules.iter().any(admits)
    }
}

impl DestinationRule {
    fn has_port(&self, protocol: Protocol, class: &BackendClass) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(protocol, class))
    }

    /// Whether the rule admits a backend whatever its address is.
    fn selects<'l>(
        &self,
        class: &BackendClass,
        labels: impl Fn(&str) -> Option<&'l Labels>,
    ) -> bool {
        let Some(peers) = &self.peers else { return true };
        let Some((namespace, profile)) = &class.pod else { return false };
        peers.pods.iter().any(|(scope, pods)| {
            scope.contains(namespace, labels(namespace)) && pods.matches(&profile.labels)
        })
    }

    fn has_network(&self, address: IpAddr) -> bool {
        let networks = self.peers.as_ref().and_then(|peers| peers.networks.get(&address.into()));
        let number = address_number(address);
        networks.is_some_and(|networks| {
            let at = networks.partition_point(|(_, last)| *last < number);
            networks.get(at).is_some_and(|(first, _)| *first <= number)
        })
    }
}

impl PortSet {
    fn new<'p>(ports: impl Iterator<Item = &'p PortMatch>) -> Self {
        let mut set = PortSet::default();
        let mut ranges: BTreeMap<Protocol, Vec<(u16, u16)>> = BTreeMap::new();
        for port in ports {
            match port {
                PortMatch::Range(range) => {
                    ranges.entry(range.protocol).or_default().push((range.first, range.last));
                }
                PortMatch::Named { name, protocol } => {
                    set.names.insert((name.clone(), *protocol));
                }
            }
        }
        let merge = |(protocol, ranges)| (protocol, merged(ranges));
        set.ranges = ranges.into_iter().map(merge).collect();
        set
    }

    fn contains(&self, protocol: Protocol, class: &BackendClass) -> bool {
        let ranges = self.ranges.get(&protocol).map_or(&[][..], Vec::as_slice);
        let at = ranges.partition_point(|(_, last)| *last < class.port);
        let is_listed = ranges.get(at).is_some_and(|(first, _)| *first <= class.port);
        let declared = class.pod.iter().flat_map(|(_, profile)| &profile.ports);
        let is_named = |port: &weir_model::NamedPort| {
            let has = |protocol| self.names.contains(&(port.name.clone(), protocol));
            (port.protocol, port.port) == (protocol, class.port)
                && (has(None) || has(Some(protocol)))
        };
        is_listed || declared.into_iter().any(is_named)
    }
}

impl PeerSet {
    fn new(peers: &[Peer], policy: &NormalizedPolicy) -> Self {
        let mut set = PeerSet::default();
        let mut networks: BTreeMap<IpFamily, Vec<Interval>> = BTreeMap::new();
        for Peer { who, .. } in peers {
            match who {
                Who::Pods { scope, pods } => {
                    let namespaces = NamespaceScope::for_peer(scope, &policy.namespace);
                    set.pods.insert((namespaces, pods.clone()));
                }
                Who::Block(block) => {
                    networks.entry(block.net.addr().into()).or_default().extend(block.intervals());
                }
                // NetworkPolicies do not have such peers.
                Who::Nodes(_) | Who::Domain(_) => (),
            }
        }
        let merge = |(family, intervals)| (family, merged(intervals));
        set.networks = networks.into_iter().map(merge).collect();
        set
    }
}

/// Overlapping ranges joined, in order.
fn merged<T: Copy + Ord>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut joined: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if first <= *end => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined
}
