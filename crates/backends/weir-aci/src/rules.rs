//! Compiles a policy into the rules of a HostprotPol.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{
    Block, Direction, IpFamily, Name, Peer, PolicyRule, PortMatch, PortRange, Protocol, Who,
};

use crate::{
    AciLimits,
    frontend::FrontendPort,
    normalized::{NormalizedPolicy, PortName},
    object::{ContainerSpec, FilterContainer, HostprotRule, RemoteIp, Subj},
    peer::{NamespaceScope, PeerMatch, PeerSelector, ethertype},
    size::{self, SizedRules, TooLarge},
};

/// The value of a field that matches everything.
pub(crate) const UNSPECIFIED: &str = "unspecified";

/// The state of the cluster that the compiler needs.
pub(crate) trait ClusterState {
    /// The pods that match a peer selector, by namespace.
    fn matches(&self, peer: &PeerSelector) -> &BTreeMap<Name, BTreeSet<PeerMatch>>;
    /// The addresses in a block whose pods have the named port, by port number.
    fn named_port_addresses(
        &self,
        block: &Block,
        port: &PortName,
    ) -> BTreeMap<(Protocol, u16), Vec<IpAddr>>;
    /// The address families that pods have.
    fn families(&self) -> &[IpFamily];
    /// The limits of objects.
    fn limits(&self) -> &AciLimits;
}

/// The numbers of the named ports in ingress rules, equal for all pods with the same profile.
pub(crate) type Numbers = BTreeMap<PortName, BTreeSet<(Protocol, u16)>>;

/// The addresses of Services that a policy admits, by port.
pub(crate) type ServiceAddresses = BTreeMap<FrontendPort, BTreeSet<IpAddr>>;

/// The parts of a policy's objects.
pub(crate) struct CompiledPolicy {
    /// The subjects: one for each direction that the policy isolates, even without rules.
    pub(crate) subjects: Vec<Subj>,
    /// The containers that their rules share.
    pub(crate) containers: Vec<ContainerSpec>,
    /// The number of rules for Services that do not fit.
    pub(crate) unserved: usize,
}

impl CompiledPolicy {
    /// A policy that allows nothing.
    pub(crate) fn without_rules(policy: &NormalizedPolicy) -> Self {
        CompiledPolicy { subjects: empty_subjects(policy), containers: Vec::new(), unserved: 0 }
    }
}

/// Compiles a policy that admits these Services. `name` is the object's name.
pub(crate) fn compile(
    policy: &NormalizedPolicy,
    own: &Numbers,
    cluster: &impl ClusterState,
    name: &str,
    services: &ServiceAddresses,
) -> Result<CompiledPolicy, TooLarge> {
    let mut subjects = empty_subjects(policy);
    let mut unserved = 0;
    let mut all = SizedRules::new(cluster.limits());
    for (direction, subject) in isolated(policy).zip(&mut subjects) {
        let side = PolicyDirection { policy, direction, own, cluster, name };
        for (at, rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
            side.rule(at, rule, &mut all)?;
        }
        if direction == Direction::Egress {
            unserved = side.services(services, &mut all);
        }
        subject.hostprot_rule = std::mem::take(&mut all.rules);
    }
    Ok(CompiledPolicy { subjects, containers: all.containers, unserved })
}

fn empty_subjects(policy: &NormalizedPolicy) -> Vec<Subj> {
    let subject =
        |direction| Subj { name: format!("networkpolicy-{direction}"), hostprot_rule: Vec::new() };
    isolated(policy).map(subject).collect()
}

/// The directions that a policy isolates.
fn isolated(policy: &NormalizedPolicy) -> impl Iterator<Item = Direction> {
    Direction::BOTH.into_iter().filter(|direction| policy.rules(*direction).is_some())
}

/// Whether a policy has more pairs of peers and named ports than the limits allow.
pub(crate) fn has_too_many_names(policy: &NormalizedPolicy, limits: &AciLimits) -> bool {
    let egress = policy.rules(Direction::Egress).unwrap_or_default();
    let pairs = |rule: &PolicyRule| {
        let peers = rule.peers.as_ref().map_or(1, Vec::len);
        peers.saturating_mul(peer_ports(rule, Direction::Egress).len())
    };
    egress.iter().map(pairs).fold(0, usize::saturating_add) > limits.named_pairs
        || policy.own_ports().len() > limits.own_names
}

/// The peer selectors of a policy's rules.
pub(crate) fn peer_selectors(policy: &NormalizedPolicy) -> BTreeSet<PeerSelector> {
    let mut selectors = BTreeSet::new();
    for direction in Direction::BOTH {
        for rule in policy.rules(direction).unwrap_or_default() {
            let Some(peers) = &rule.peers else {
                let names = peer_ports(rule, direction).into_iter();
                selectors.extend(names.map(|port| all_pods_with(port.clone())));
                continue;
            };
            for Peer { who, .. } in peers {
                let Who::Pods { scope, pods } = who else { continue };
                let namespaces = NamespaceScope::for_peer(scope, &policy.namespace);
                let selector = |port| PeerSelector {
                    namespaces: namespaces.clone(),
                    pods: pods.clone(),
                    port,
                };
                let names = peer_ports(rule, direction);
                let numbers = rule.ports.as_ref().map_or(1, Vec::len) > names.len();
                if numbers || direction == Direction::Ingress {
                    selectors.insert(selector(None));
                }
                selectors.extend(names.into_iter().map(|port| selector(Some(port))));
            }
        }
    }
    selectors
}

/// Whether an egress rule combines a named port and an IP block. Only the pods' addresses resolve
/// it.
pub(crate) fn has_named_ports_in_blocks(policy: &NormalizedPolicy) -> bool {
    policy.rules(Direction::Egress).unwrap_or_default().iter().any(|rule| {
        let is_block = |peer: &Peer| matches!(peer.who, Who::Block(_));
        !peer_ports(rule, Direction::Egress).is_empty() && rule.peers.iter().flatten().any(is_block)
    })
}

/// The named ports that the peers resolve.
fn peer_ports(rule: &PolicyRule, direction: Direction) -> Vec<PortName> {
    let named = |port: &PortMatch| match port {
        PortMatch::Named { name, protocol } => Some((name.clone(), *protocol)),
        PortMatch::Range(_) => None,
    };
    match direction {
        Direction::Ingress => Vec::new(),
        Direction::Egress => {
            let names: BTreeSet<PortName> =
                rule.ports.iter().flatten().filter_map(|port| named(&port.ports)).collect();
            names.into_iter().collect()
        }
    }
}

fn all_pods_with(port: PortName) -> PeerSelector {
    PeerSelector { namespaces: NamespaceScope::Every, pods: Default::default(), port: Some(port) }
}

/// One direction of a policy.
struct PolicyDirection<'a, C> {
    policy: &'a NormalizedPolicy,
    direction: Direction,
    own: &'a Numbers,
    cluster: &'a C,
    /// The name of the object.
    name: &'a str,
}

/// The part of a rule's name for its ports, and the ports.
type NamedPorts = (String, Option<PortRange>);

impl<C: ClusterState> PolicyDirection<'_, C> {
    /// Compiles one rule of the policy to one rule per peer, port and family. Peers without pods
    /// get no rule.
    fn rule(&self, at: usize, rule: &PolicyRule, all: &mut SizedRules) -> Result<(), TooLarge> {
        let names = peer_ports(rule, self.direction);
        let entries: Vec<NamedPorts> = match &rule.ports {
            None => vec![(at.to_string(), None)],
            Some(ports) => self
                .ranges(ports.iter().map(|port| &port.ports))
                .into_iter()
                .enumerate()
                .map(|(port, range)| (format!("{at}_{port}"), Some(range)))
                .collect(),
        };
        let Some(peers) = &rule.peers else {
            for entry in &entries {
                for family in self.cluster.families() {
                    all.push(self.blank(entry, *family))?;
                }
            }
            let mut next = entries.len();
            return names
                .into_iter()
                .try_for_each(|port| self.named(at, &mut next, &all_pods_with(port), all));
        };
        // Sort the peers, so that policies that share an object agree on their order.
        let peers: BTreeSet<&Who> = peers.iter().map(|peer| &peer.who).collect();
        let blocks = || peers.iter().filter_map(|who| block(who));
        let shares_blocks =
            blocks().count().saturating_mul(entries.len()) > self.cluster.limits().block_rules;
        for (number, who) in peers.iter().enumerate() {
            let from = all.rules.len();
            let own = if shares_blocks && block(who).is_some() { &[] } else { &entries[..] };
            self.peer(who, at, (own, entries.len()), &names, all)?;
            // Use one rule per peer. Filters apply to all containers of a rule, so peers cannot
            // share one.
            add_suffix(&mut all.rules[from..], number);
        }
        if shares_blocks {
            let from = all.rules.len();
            self.shared_blocks(at, &entries, blocks(), all)?;
            // Pods come before blocks.
            add_suffix(&mut all.rules[from..], peers.len() - blocks().count());
        }
        Ok(())
    }

    /// Adds the rules for Services. Returns the number of those that do not fit.
    fn services(&self, services: &ServiceAddresses, all: &mut SizedRules) -> usize {
        let mut unserved = 0;
        for (FrontendPort { family, protocol, port }, addresses) in services {
            let name = format!("service_{}_{port}", protocol.to_string().to_lowercase());
            let entry = (name, Some(PortRange::one(*protocol, *port)));
            let hostprot_service_remote_ips = addresses.iter().map(ToString::to_string).collect();
            let blank = self.blank(&entry, *family);
            let rule = HostprotRule { hostprot_service_remote_ips, ..blank };
            unserved += usize::from(all.push(rule).is_err());
        }
        unserved
    }

    /// Adds the rules for blocks, one per port and family, and the containers with their networks.
    fn shared_blocks<'b>(
        &self,
        at: usize,
        entries: &[NamedPorts],
        blocks: impl Iterator<Item = &'b Block> + Clone,
        all: &mut SizedRules,
    ) -> Result<(), TooLarge> {
        for family in IpFamily::BOTH {
            let own = blocks.clone().filter(|block| IpFamily::from(block.net.addr()) == family);
            let nets = size::block_nets(own, self.cluster.limits())?;
            if nets.is_empty() {
                continue;
            }
            // A namespace has no name with a dot.
            let name = format!("{}.{}-{at}-{}", self.name, self.direction, ethertype(family));
            for entry in entries {
                let rs_remote_ip_container = vec![name.clone()];
                all.push(HostprotRule { rs_remote_ip_container, ..self.blank(entry, family) })?;
            }
            let remote = |addr| RemoteIp { addr, hpp_ep_label: Vec::new() };
            let hostprot_remote_ip = nets.into_iter().map(remote).collect();
            all.containers.push(ContainerSpec { name, hostprot_remote_ip });
        }
        Ok(())
    }

    /// Adds the rules of a peer for these ports, and for the named ports, whose numbers begin at
    /// `next`.
    fn peer(
        &self,
        who: &Who,
        at: usize,
        (entries, mut next): (&[NamedPorts], usize),
        names: &[PortName],
        all: &mut SizedRules,
    ) -> Result<(), TooLarge> {
        match who {
            Who::Pods { scope, pods } => {
                let namespaces = NamespaceScope::for_peer(scope, &self.policy.namespace);
                let peer = |port| PeerSelector {
                    namespaces: namespaces.clone(),
                    pods: pods.clone(),
                    port,
                };
                self.pods(entries, &peer(None), None, all)?;
                for port in names {
                    self.named(at, &mut next, &peer(Some(port.clone())), all)?;
                }
            }
            Who::Block(block) => {
                let family = IpFamily::from(block.net.addr());
                if !entries.is_empty() {
                    let nets = size::block_nets([block], self.cluster.limits())?;
                    for entry in entries.iter().filter(|_| !nets.is_empty()) {
                        let hostprot_service_remote_ips = nets.clone();
                        let blank = self.blank(entry, family);
                        all.push(HostprotRule { hostprot_service_remote_ips, ..blank })?;
                    }
                }
                for port in names {
                    for ((protocol, number), addresses) in
                        self.cluster.named_port_addresses(block, port)
                    {
                        let entry = numbered(at, &mut next, PortRange::one(protocol, number));
                        let list = addresses.iter().map(ToString::to_string).collect();
                        all.push(HostprotRule {
                            hostprot_service_remote_ips: list,
                            ..self.blank(&entry, family)
                        })?;
                    }
                }
            }
            // NetworkPolicies do not have such peers.
            Who::Nodes(_) | Who::Domain(_) => (),
        }
        Ok(())
    }

    /// Adds the rules for pods with a named port, one per port number.
    fn named(
        &self,
        at: usize,
        next: &mut usize,
        peer: &PeerSelector,
        all: &mut SizedRules,
    ) -> Result<(), TooLarge> {
        let matches = self.cluster.matches(peer).values().flatten();
        let numbers: BTreeSet<_> = matches.filter_map(|(_, number)| *number).collect();
        numbers.into_iter().try_for_each(|(protocol, number)| {
            let entry = numbered(at, next, PortRange::one(protocol, number));
            self.pods(&[entry], peer, Some((protocol, number)), all)
        })
    }

    /// Adds the rules for pods, one per port and per family that some of them have.
    fn pods(
        &self,
        entries: &[NamedPorts],
        peer: &PeerSelector,
        number: Option<(Protocol, u16)>,
        all: &mut SizedRules,
    ) -> Result<(), TooLarge> {
        let matches = self.cluster.matches(peer);
        let containers = IpFamily::BOTH.map(|family| {
            let matching =
                matches.iter().filter(|(_, matches)| matches.contains(&(family, number)));
            let names: Vec<String> = matching.map(|(name, _)| name.to_string()).collect();
            (family, names)
        });
        let containers: Vec<_> =
            containers.into_iter().filter(|(_, names)| !names.is_empty()).collect();
        if containers.is_empty() {
            return Ok(());
        }
        let hostprot_filter_container = FilterContainer { hostprot_filter: peer.filters(number) };
        for entry in entries {
            for (family, names) in &containers {
                all.push(HostprotRule {
                    rs_remote_ip_container: names.clone(),
                    hostprot_filter_container: hostprot_filter_container.clone(),
                    ..self.blank(entry, *family)
                })?;
            }
        }
        Ok(())
    }

    /// The ports with known numbers, sorted and without duplicates.
    fn ranges<'p>(&self, ports: impl Iterator<Item = &'p PortMatch>) -> BTreeSet<PortRange> {
        let mut ranges = BTreeSet::new();
        for port in ports {
            match (port, self.direction) {
                (PortMatch::Range(range), _) => {
                    ranges.insert(*range);
                }
                (PortMatch::Named { name, protocol }, Direction::Ingress) => {
                    let numbers = self.own.get(&(name.clone(), *protocol)).into_iter().flatten();
                    ranges.extend(numbers.map(|(protocol, port)| PortRange::one(*protocol, *port)));
                }
                (PortMatch::Named { .. }, Direction::Egress) => (),
            }
        }
        ranges
    }

    /// A rule that allows every peer of a family at these ports.
    fn blank(&self, (name, ports): &NamedPorts, family: IpFamily) -> HostprotRule {
        let (protocol, from, to) = match ports {
            None => (UNSPECIFIED.into(), None, None),
            Some(range) => {
                let protocol = range.protocol.to_string().to_lowercase();
                match range {
                    range if *range == PortRange::all(range.protocol) => (protocol, None, None),
                    PortRange { first, last, .. } if first == last => (protocol, None, Some(*last)),
                    PortRange { first, last, .. } => (protocol, Some(*first), Some(*last)),
                }
            }
        };
        let port = |port: Option<u16>| port.map_or(UNSPECIFIED.into(), |port| port.to_string());
        HostprotRule {
            name: format!("{name}-{}", ethertype(family)),
            direction: self.direction.to_string(),
            ethertype: ethertype(family).into(),
            conn_track: "reflexive".into(),
            protocol,
            to_port: port(to),
            from_port: port(from),
            ..HostprotRule::default()
        }
    }
}

/// The next entry for a port number that a name resolved to.
fn numbered(at: usize, next: &mut usize, range: PortRange) -> NamedPorts {
    let entry = (format!("{at}_{next}"), Some(range));
    *next += 1;
    entry
}

/// Distinguishes the names of the rules of all peers but the first.
fn add_suffix(rules: &mut [HostprotRule], peer: usize) {
    if peer > 0 {
        rules.iter_mut().for_each(|rule| rule.name += &format!("__{peer}"));
    }
}

/// The block that a peer is.
fn block(who: &Who) -> Option<&Block> {
    match who {
        Who::Block(block) => Some(block),
        Who::Pods { .. } | Who::Nodes(_) | Who::Domain(_) => None,
    }
}
