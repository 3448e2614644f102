//! The rules of one policy in one direction.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Action, Peer, PolicyRule, PortMatch, PortRange, PortSpec, Ports, Protocol, Who};

use crate::{Evidence, RecommendedRule, evidence, outside};

/// The peers of a policy in one direction, with their ports and evidence.
#[derive(Default)]
pub(crate) struct PeerDrafts {
    /// Pods and nodes.
    by_peer: BTreeMap<Who, Opened>,
    /// Addresses outside the cluster by port.
    outside: BTreeMap<(Protocol, u16), Outside>,
    /// DNS servers.
    dns: BTreeMap<Who, Opened>,
}

/// The ports that a peer needs.
#[derive(Default)]
struct Opened {
    ports: PortSet,
    evidence: Vec<Evidence>,
}

/// The addresses that use a port.
#[derive(Default)]
struct Outside {
    addresses: BTreeMap<IpAddr, Vec<Evidence>>,
    /// The port is published to clients outside the cluster.
    is_published: bool,
}

/// The ports of a rule.
type PortSet = BTreeSet<(Protocol, u16)>;

impl PeerDrafts {
    pub(crate) fn add(&mut self, who: Who, port: (Protocol, u16), evidence: Evidence) {
        let opened = self.by_peer.entry(who).or_default();
        opened.ports.insert(port);
        evidence::add(&mut opened.evidence, evidence);
    }

    pub(crate) fn add_dns(&mut self, who: Who, port: (Protocol, u16), evidence: Evidence) {
        let opened = self.dns.entry(who).or_default();
        opened.ports.insert(port);
        evidence::add(&mut opened.evidence, evidence);
    }

    pub(crate) fn add_outside(
        &mut self,
        address: IpAddr,
        port: (Protocol, u16),
        is_published: bool,
        evidence: Evidence,
    ) {
        let outside = self.outside.entry(port).or_default();
        outside.is_published |= is_published;
        evidence::add(outside.addresses.entry(address).or_default(), evidence);
    }

    /// The rules: peers with the same ports share one. `is_pod_network` says whether a network has
    /// addresses of pods.
    pub(crate) fn into_rules(
        mut self,
        is_pod_network: &dyn Fn(&ipnet::IpNet) -> bool,
    ) -> Vec<RecommendedRule> {
        for (port, outside) in std::mem::take(&mut self.outside) {
            let Outside { addresses, is_published } = outside;
            let all = addresses.keys().copied().collect();
            for block in outside::blocks(&all, is_published, is_pod_network) {
                let inside = addresses.iter().filter(|(address, _)| block.contains(**address));
                for one in inside.flat_map(|(_, evidence)| evidence) {
                    self.add(Who::Block(block.clone()), port, one.clone());
                }
            }
        }
        // A flow to a DNS server is evidence for the rule that already allows it.
        for (who, dns) in &mut self.dns {
            let Some(opened) = self.by_peer.get_mut(who) else { continue };
            if opened.ports.is_subset(&dns.ports) {
                let evidence = std::mem::take(&mut opened.evidence);
                evidence.into_iter().for_each(|one| evidence::add(&mut dns.evidence, one));
                self.by_peer.remove(who);
            }
        }
        let mut rules = merge(self.by_peer);
        rules.extend(merge(self.dns));
        for (index, rule) in (0_u32..).zip(&mut rules) {
            rule.rule.index = index;
        }
        rules
    }
}

fn merge(by_peer: BTreeMap<Who, Opened>) -> Vec<RecommendedRule> {
    let mut by_ports: BTreeMap<PortSet, (Vec<Who>, Vec<Evidence>)> = BTreeMap::new();
    for (who, opened) in by_peer {
        let (peers, all) = by_ports.entry(opened.ports).or_default();
        peers.push(who);
        opened.evidence.into_iter().for_each(|one| evidence::add(all, one));
    }
    by_ports.into_iter().map(|(ports, (peers, evidence))| rule(&ports, peers, evidence)).collect()
}

fn rule(ports: &PortSet, peers: Vec<Who>, evidence: Vec<Evidence>) -> RecommendedRule {
    let ranges = ports.iter().map(|(protocol, port)| PortRange::one(*protocol, *port));
    let ranges = Ports::from_ranges(ranges);
    let ranges = ranges.as_ref().and_then(Ports::list).map(|list| &**list).unwrap_or_default();
    let port = |range: &PortRange| PortSpec { line: 0, ports: PortMatch::Range(*range) };
    let peer = |(index, who)| Peer { index, line: 0, who };
    RecommendedRule {
        rule: PolicyRule {
            index: 0,
            name: None,
            line: 0,
            action: Action::Allow,
            peers: Some((0..).zip(peers).map(peer).collect()),
            ports: Some(ranges.iter().map(port).collect()),
        },
        evidence,
    }
}
