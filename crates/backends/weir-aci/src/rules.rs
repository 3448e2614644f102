//! From what policies say to the rules of a HostprotPol.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Block, Direction, Name, Peer, PolicyRule, PortMatch, PortRange, Protocol, Who};

use crate::{
    net,
    object::{FilterContainer, Rule, Subj},
    said::{PortName, Said},
    term::{Family, Found, Realm, Term},
};

/// What is in a rule that is not said.
pub(crate) const UNSPECIFIED: &str = "unspecified";

/// What compiling has to know about the cluster.
pub(crate) trait Cluster {
    /// Where the pods that a term means are.
    fn found(&self, term: &Term) -> &BTreeMap<Name, BTreeSet<Found>>;
    /// The addresses in a block of the pods that give a port the name, with the numbers.
    fn named_in(&self, block: &Block, port: &PortName) -> BTreeMap<(Protocol, u16), Vec<IpAddr>>;
    /// The families that pods have.
    fn families(&self) -> &[Family];
}

/// The numbers of the names in ingress rules, as the pods of one sort have them.
pub(crate) type Numbers = BTreeMap<PortName, BTreeSet<(Protocol, u16)>>;

/// The subjects of a policy: one for each direction that it speaks about, also without rules.
pub(crate) fn subjects(said: &Said, own: &Numbers, cluster: &impl Cluster) -> Vec<Subj> {
    let mut subjects = Vec::new();
    for direction in Direction::BOTH {
        let Some(rules) = said.rules(direction) else { continue };
        let side = Side { said, direction, own, cluster };
        let hostprot_rule =
            rules.iter().enumerate().flat_map(|(at, rule)| side.rule(at, rule)).collect();
        subjects.push(Subj { name: format!("networkpolicy-{direction}"), hostprot_rule });
    }
    subjects
}

/// The terms whose pods the rules of a policy have to know.
pub(crate) fn terms(said: &Said) -> BTreeSet<Term> {
    let mut terms = BTreeSet::new();
    for direction in Direction::BOTH {
        for rule in said.rules(direction).unwrap_or_default() {
            let Some(peers) = &rule.peers else {
                let names = names_of(rule, direction).into_iter();
                terms.extend(names.map(|port| everyone_with(port.clone())));
                continue;
            };
            for Peer { who, .. } in peers {
                let Who::Pods { scope, pods } = who else { continue };
                let realm = Realm::of(scope, &said.namespace);
                let term = |port| Term { realm: realm.clone(), pods: pods.clone(), port };
                let names = names_of(rule, direction);
                let numbers = rule.ports.as_ref().map_or(1, Vec::len) > names.len();
                if numbers || direction == Direction::Ingress {
                    terms.insert(term(None));
                }
                terms.extend(names.into_iter().map(|port| term(Some(port))));
            }
        }
    }
    terms
}

/// Whether a rule asks for the ports of pods in a block, which only their addresses tell.
pub(crate) fn asks_for_ports_in_blocks(said: &Said) -> bool {
    said.rules(Direction::Egress).unwrap_or_default().iter().any(|rule| {
        let is_block = |peer: &Peer| matches!(peer.who, Who::Block(_));
        !names_of(rule, Direction::Egress).is_empty() && rule.peers.iter().flatten().any(is_block)
    })
}

/// The names of ports at the other end.
fn names_of(rule: &PolicyRule, direction: Direction) -> Vec<PortName> {
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

fn everyone_with(port: PortName) -> Term {
    Term { realm: Realm::Every, pods: Default::default(), port: Some(port) }
}

/// One direction of a policy.
struct Side<'a, C> {
    said: &'a Said,
    direction: Direction,
    own: &'a Numbers,
    cluster: &'a C,
}

/// What a rule's name says about ports, and the ports.
type Entry = (String, Option<PortRange>);

impl<C: Cluster> Side<'_, C> {
    /// All that one rule of the policy allows, a rule for each peer, port and family; none for whom nobody is there.
    fn rule(&self, at: usize, rule: &PolicyRule) -> Vec<Rule> {
        let names = names_of(rule, self.direction);
        let mut entries: Vec<Entry> = match &rule.ports {
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
                    let term = everyone_with(port);
                    self.named(&mut entries, at, &term, &mut rules);
                }
            }
            Some(peers) => {
                // In an order of their own, so that all policies that share an object agree.
                let peers: BTreeSet<&Who> = peers.iter().map(|peer| &peer.who).collect();
                for (number, who) in peers.into_iter().enumerate() {
                    let from = rules.len();
                    self.peer(who, at, &names, &mut entries.clone(), &mut rules);
                    // One rule for each peer: filters hold for all containers of a rule, so peers cannot share one.
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
        entries: &mut Vec<Entry>,
        rules: &mut Vec<Rule>,
    ) {
        match who {
            Who::Pods { scope, pods } => {
                let realm = Realm::of(scope, &self.said.namespace);
                let term = |port| Term { realm: realm.clone(), pods: pods.clone(), port };
                for entry in entries.iter() {
                    self.pods(entry, &term(None), None, rules);
                }
                for port in names {
                    self.named(entries, at, &term(Some(port.clone())), rules);
                }
            }
            Who::Block(block) => {
                let nets: Vec<String> = net::without(block).iter().map(net::text).collect();
                for entry in entries.iter().filter(|_| !nets.is_empty()) {
                    let blank = self.blank(entry, Family::of(block.net.addr()));
                    rules.push(Rule { hostprot_service_remote_ips: nets.clone(), ..blank });
                }
                for port in names {
                    for ((protocol, number), addresses) in self.cluster.named_in(block, port) {
                        let range = PortRange::one(protocol, number);
                        let entry = next(entries, at, range);
                        let blank = self.blank(&entry, Family::of(block.net.addr()));
                        let list = addresses.iter().map(ToString::to_string).collect();
                        rules.push(Rule { hostprot_service_remote_ips: list, ..blank });
                    }
                }
            }
            // No NetworkPolicy has such peers.
            Who::Nodes(_) | Who::Domain(_) => (),
        }
    }

    /// The rules for pods at the numbers that they give a name.
    fn named(&self, entries: &mut Vec<Entry>, at: usize, term: &Term, rules: &mut Vec<Rule>) {
        let found = self.cluster.found(term).values().flatten();
        let numbers: BTreeSet<_> = found.filter_map(|(_, number)| *number).collect();
        for (protocol, number) in numbers {
            let entry = next(entries, at, PortRange::one(protocol, number));
            self.pods(&entry, term, Some((protocol, number)), rules);
        }
    }

    /// The rules for pods: one for each family that some of them have.
    fn pods(
        &self,
        entry: &Entry,
        term: &Term,
        number: Option<(Protocol, u16)>,
        rules: &mut Vec<Rule>,
    ) {
        let found = self.cluster.found(term);
        for family in [Family::V4, Family::V6] {
            let there = found.iter().filter(|(_, found)| found.contains(&(family, number)));
            let containers: Vec<String> = there.map(|(name, _)| name.to_string()).collect();
            if containers.is_empty() {
                continue;
            }
            rules.push(Rule {
                rs_remote_ip_container: containers,
                hostprot_filter_container: FilterContainer {
                    hostprot_filter: term.filters(number),
                },
                ..self.blank(entry, family)
            });
        }
    }

    /// The ports that are known by number: sorted, without repeats.
    fn ranges<'p>(&self, ports: impl Iterator<Item = &'p PortMatch>) -> BTreeSet<PortRange> {
        let mut ranges = BTreeSet::new();
        for port in ports {
            match (port, self.direction) {
                (PortMatch::Range(range), _) => drop(ranges.insert(*range)),
                (PortMatch::Named { name, protocol }, Direction::Ingress) => {
                    let numbers = self.own.get(&(name.clone(), *protocol)).into_iter().flatten();
                    ranges.extend(numbers.map(|(protocol, port)| PortRange::one(*protocol, *port)));
                }
                (PortMatch::Named { .. }, Direction::Egress) => (),
            }
        }
        ranges
    }

    /// The rule that allows everyone of a family at these ports.
    fn blank(&self, (name, ports): &Entry, family: Family) -> Rule {
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
        Rule {
            name: format!("{name}-{}", family.ethertype()),
            direction: self.direction.to_string(),
            ethertype: family.ethertype().into(),
            conn_track: "reflexive".into(),
            protocol,
            to_port: port(to),
            from_port: port(from),
            ..Rule::default()
        }
    }
}

/// One more entry, for ports that were not known by number.
fn next(entries: &mut Vec<Entry>, at: usize, range: PortRange) -> Entry {
    let entry = (format!("{at}_{}", entries.len()), Some(range));
    entries.push(entry.clone());
    entry
}
