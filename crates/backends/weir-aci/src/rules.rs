//! Compiles a policy into the rules of a HostprotPol.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{
    Block, Direction, IpFamily, Name, Peer, PolicyRule, PortMatch, PortRange, Protocol, Who,
};

use crate::{
    net,
    normalized::{NormalizedPolicy, PortName},
    object::{FilterContainer, HostprotRule, Subj},
    peer::{NamespaceScope, PeerMatch, PeerSelector, ethertype},
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
}

/// The numbers of the named ports in ingress rules, equal for all pods with the same profile.
pub(crate) type Numbers = BTreeMap<PortName, BTreeSet<(Protocol, u16)>>;

/// The subjects of a policy: one for each direction that it isolates, even without rules.
pub(crate) fn subjects(
    policy: &NormalizedPolicy,
    own: &Numbers,
    cluster: &impl ClusterState,
) -> Vec<Subj> {
    let mut subjects = Vec::new();
    for direction in Direction::BOTH {
        let Some(rules) = policy.rules(direction) else { continue };
        let side = PolicyDirection { policy, direction, own, cluster };
        let hostprot_rule =
            rules.iter().enumerate().flat_map(|(at, rule)| side.rule(at, rule)).collect();
        subjects.push(Subj { name: format!("networkpolicy-{direction}"), hostprot_rule });
    }
    subjects
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
}

/// The part of a rule's name for its ports, and the ports.
type NamedPorts = (String, Option<PortRange>);

impl<C: ClusterState> PolicyDirection<'_, C> {
    /// Compiles one rule of the policy to one rule per peer, port and family. Peers without pods
    /// get no rule.
    fn rule(&self, at: usize, rule: &PolicyRule) -> Vec<HostprotRule> {
        let names = peer_ports(rule, self.direction);
        let mut entries: Vec<NamedPorts> = match &rule.ports {
            None => vec![(at.to_string(), None)],
            Some(ports) => self
                .ranges(ports.iter().map(|port| &port.ports))
                .into_iter()
                .enumerate()
                .map(|(port, range)| (format!("{at}_{port}"), Some(range)))
                .collect(),
        };
        let mut rules = Vec::new();
        match &rule.peers {
            None => {
                for entry in &entries {
                    rules.extend(self.cluster.families().iter().map(|f| self.blank(entry, *f)));
                }
                for port in names {
                    let peer = all_pods_with(port);
                    self.named(&mut entries, at, &peer, &mut rules);
                }
            }
            Some(peers) => {
                // Sort the peers, so that policies that share an object agree on their order.
                let peers: BTreeSet<&Who> = peers.iter().map(|peer| &peer.who).collect();
                for (number, who) in peers.into_iter().enumerate() {
                    let from = rules.len();
                    self.peer(who, at, &names, &mut entries.clone(), &mut rules);
                    // Use one rule per peer. Filters apply to all containers of a rule, so peers
                    // cannot share one.
                    if number > 0 {
                        let of_peer = rules[from..].iter_mut();
                        of_peer.for_each(|rule| rule.name += &format!("__{number}"));
                    }
                }
            }
        }
        rules
    }

    fn peer(
        &self,
        who: &Who,
        at: usize,
        names: &[PortName],
        entries: &mut Vec<NamedPorts>,
        rules: &mut Vec<HostprotRule>,
    ) {
        match who {
            Who::Pods { scope, pods } => {
                let namespaces = NamespaceScope::for_peer(scope, &self.policy.namespace);
                let peer = |port| PeerSelector {
                    namespaces: namespaces.clone(),
                    pods: pods.clone(),
                    port,
                };
                for entry in entries.iter() {
                    self.pods(entry, &peer(None), None, rules);
                }
                for port in names {
                    self.named(entries, at, &peer(Some(port.clone())), rules);
                }
            }
            Who::Block(block) => {
                let nets: Vec<String> = block.nets().iter().map(net::text).collect();
                for entry in entries.iter().filter(|_| !nets.is_empty()) {
                    let blank = self.blank(entry, IpFamily::from(block.net.addr()));
                    rules.push(HostprotRule { hostprot_service_remote_ips: nets.clone(), ..blank });
                }
                for port in names {
                    for ((protocol, number), addresses) in
                        self.cluster.named_port_addresses(block, port)
                    {
                        let range = PortRange::one(protocol, number);
                        let entry = next(entries, at, range);
                        let blank = self.blank(&entry, IpFamily::from(block.net.addr()));
                        let list = addresses.iter().map(ToString::to_string).collect();
                        rules.push(HostprotRule { hostprot_service_remote_ips: list, ..blank });
                    }
                }
            }
            // NetworkPolicies do not have such peers.
            Who::Nodes(_) | Who::Domain(_) => (),
        }
    }

    /// Adds the rules for pods with a named port, one per port number.
    fn named(
        &self,
        entries: &mut Vec<NamedPorts>,
        at: usize,
        peer: &PeerSelector,
        rules: &mut Vec<HostprotRule>,
    ) {
        let matches = self.cluster.matches(peer).values().flatten();
        let numbers: BTreeSet<_> = matches.filter_map(|(_, number)| *number).collect();
        for (protocol, number) in numbers {
            let entry = next(entries, at, PortRange::one(protocol, number));
            self.pods(&entry, peer, Some((protocol, number)), rules);
        }
    }

    /// Adds the rules for pods, one per family that some of them have.
    fn pods(
        &self,
        entry: &NamedPorts,
        peer: &PeerSelector,
        number: Option<(Protocol, u16)>,
        rules: &mut Vec<HostprotRule>,
    ) {
        let matches = self.cluster.matches(peer);
        for family in IpFamily::BOTH {
            let matching =
                matches.iter().filter(|(_, matches)| matches.contains(&(family, number)));
            let containers: Vec<String> = matching.map(|(name, _)| name.to_string()).collect();
            if containers.is_empty() {
                continue;
            }
            rules.push(HostprotRule {
                rs_remote_ip_container: containers,
                hostprot_filter_container: FilterContainer {
                    hostprot_filter: peer.filters(number),
                },
                ..self.blank(entry, family)
            });
        }
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

/// Adds an entry for a port number that a name resolved to.
fn next(entries: &mut Vec<NamedPorts>, at: usize, range: PortRange) -> NamedPorts {
    let entry = (format!("{at}_{}", entries.len()), Some(range));
    entries.push(entry.clone());
    entry
}
