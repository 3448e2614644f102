//! Lowers compiled rules to lists of clauses. A clause matches addresses and ports, and has an
//! action.
//!
//! ACLs have no `Pass` action. A Pass rule of the admin tier is replaced by the clauses of the
//! lower tiers, restricted to the traffic that it passes.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Action, Chain, Peers, PolicyId, Ports, Program, Protocol, Rule, Section};

use crate::{AclAction, addresses::Addresses, render::id};

/// The maximum number of admin clauses. Without a limit, Pass rules could multiply them without
/// bound.
const MAX_ADMIN_CLAUSES: usize = 10_000;

/// A condition on the peer and the ports, and an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clause {
    pub(crate) addresses: Addresses,
    pub(crate) ports: AclPorts,
    pub(crate) action: AclAction,
    pub(crate) id: String,
}

/// Ports of one protocol, or all traffic. HNS does not filter SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AclPorts {
    Any,
    Tcp(u16, u16),
    Udp(u16, u16),
}

impl AclPorts {
    /// The intersection.
    fn and(self, other: AclPorts) -> Option<AclPorts> {
        let both = |(a, b): (u16, u16), (c, d): (u16, u16)| {
            (a.max(c) <= b.min(d)).then_some((a.max(c), b.min(d)))
        };
        match (self, other) {
            (AclPorts::Any, ports) | (ports, AclPorts::Any) => Some(ports),
            (AclPorts::Tcp(a, b), AclPorts::Tcp(c, d)) => {
                both((a, b), (c, d)).map(|(first, last)| AclPorts::Tcp(first, last))
            }
            (AclPorts::Udp(a, b), AclPorts::Udp(c, d)) => {
                both((a, b), (c, d)).map(|(first, last)| AclPorts::Udp(first, last))
            }
            _ => None,
        }
    }
}

/// The clauses of one direction of a pod.
#[derive(Debug, Default)]
pub(crate) struct Lowered {
    /// The clauses of the admin tier. The first match decides.
    pub(crate) admin: Vec<Clause>,
    /// Allow clauses of NetworkPolicies; other traffic is denied. `None` if the pod is not
    /// isolated.
    pub(crate) isolation: Option<Vec<Clause>>,
    /// The clauses of the baseline tier. The first match decides; other traffic is allowed.
    pub(crate) baseline: Vec<Clause>,
    /// The policies with rules about SCTP.
    pub(crate) without_sctp: BTreeSet<PolicyId>,
    /// Whether all SCTP must be denied, because some rule denies part of it.
    pub(crate) denies_sctp: bool,
    /// The policy at which the number of clauses exceeded the limit.
    pub(crate) exceeds_limit: Option<PolicyId>,
}

/// Lowers one direction of a pod.
pub(crate) fn lower(program: &Program, chain: &Chain, direction: &str) -> Lowered {
    let mut lowered = Lowered::default();
    let grants = chain.isolation.as_ref().map(|sections| {
        let mut grants = Vec::new();
        for section in sections {
            grants.extend(lowered.section(program, section, direction).map(|(clause, _)| clause));
        }
        grants
    });
    lowered.isolation = grants;
    for section in &chain.baseline {
        let clauses: Vec<_> = lowered.section(program, section, direction).collect();
        lowered.baseline.extend(clauses.into_iter().map(|(clause, _)| clause));
    }
    let after = lowered.after_admin();
    for section in &chain.admin {
        let clauses: Vec<_> = lowered.section(program, section, direction).collect();
        for (clause, action) in clauses {
            if lowered.admin.len() > MAX_ADMIN_CLAUSES {
                lowered.close(&section.policy);
                return lowered;
            }
            match action {
                Action::Pass => lowered.admin.extend(after.iter().filter_map(|then| {
                    let addresses = clause.addresses.and(&then.addresses);
                    let ports = clause.ports.and(then.ports)?;
                    let some = !addresses.is_empty();
                    some.then(|| Clause { addresses, ports, ..then.clone() })
                })),
                Action::Allow | Action::Deny => lowered.admin.push(clause),
            }
        }
    }
    lowered
}

impl Lowered {
    /// The clauses for a connection that the admin tier does not decide.
    fn after_admin(&self) -> Vec<Clause> {
        let tail = |action| Clause {
            addresses: Addresses::All,
            ports: AclPorts::Any,
            action,
            id: "weir:pass".into(),
        };
        match &self.isolation {
            Some(grants) => grants.iter().cloned().chain([tail(AclAction::Block)]).collect(),
            None => self.baseline.iter().cloned().chain([tail(AclAction::Allow)]).collect(),
        }
    }

    fn close(&mut self, policy: &PolicyId) {
        self.exceeds_limit = Some(policy.clone());
        self.admin.push(Clause {
            addresses: Addresses::All,
            ports: AclPorts::Any,
            action: AclAction::Block,
            id: "weir:endless".into(),
        });
    }

    /// The clauses of a policy, in order. Peers of one rule share a clause.
    fn section(
        &mut self,
        program: &Program,
        section: &Section,
        direction: &str,
    ) -> impl Iterator<Item = (Clause, Action)> + use<> {
        let mut clauses: Vec<(Clause, Action, u32)> = Vec::new();
        for rule in &section.rules {
            let (parts, has_sctp) = products(program, rule);
            if has_sctp {
                self.without_sctp.insert(section.policy.clone());
                self.denies_sctp |= rule.action != Action::Allow;
            }
            for (addresses, ports) in parts {
                let number = rule.origin.rule;
                let same = clauses.iter_mut().find(|(clause, action, other)| {
                    (clause.ports, *action, *other) == (ports, rule.action, number)
                });
                match same {
                    Some((clause, ..)) => {
                        let before = std::mem::replace(&mut clause.addresses, Addresses::All);
                        clause.addresses = before.or(addresses);
                    }
                    None => {
                        let action = match rule.action {
                            Action::Deny => AclAction::Block,
                            Action::Allow | Action::Pass => AclAction::Allow,
                        };
                        let id = id(&section.policy, direction, number);
                        let clause = Clause { addresses, ports, action, id };
                        clauses.push((clause, rule.action, number));
                    }
                }
            }
        }
        clauses.into_iter().map(|(clause, action, _)| (clause, action))
    }
}

/// The traffic that a rule matches, as products of addresses and ports. The flag is true if the
/// rule also matches SCTP.
fn products(program: &Program, rule: &Rule) -> (Vec<(Addresses, AclPorts)>, bool) {
    let mut has_sctp = false;
    let mut ports = |protocol, first, last| match protocol {
        Protocol::Tcp => Some(AclPorts::Tcp(first, last)),
        Protocol::Udp => Some(AclPorts::Udp(first, last)),
        Protocol::Sctp => {
            has_sctp = true;
            None
        }
    };
    let members = |set| program.sets.get(set).into_iter().flatten();
    if let Peers::PortSet(set) = &rule.peers {
        let mut by_port: BTreeMap<AclPorts, Vec<_>> = BTreeMap::new();
        for member in members(set) {
            let Some((protocol, port)) = member.port else { continue };
            if let Some(ports) = ports(protocol, port, port) {
                by_port.entry(ports).or_default().push(member.address);
            }
        }
        let parts = by_port.into_iter();
        let parts = parts.map(|(ports, hosts)| (Addresses::hosts(hosts), ports)).collect();
        return (parts, has_sctp);
    }
    let addresses = match &rule.peers {
        Peers::Any => Addresses::All,
        Peers::Block(block) => Addresses::block(block),
        Peers::Set(set) | Peers::PortSet(set) => {
            Addresses::hosts(members(set).map(|member| member.address))
        }
    };
    let port_lists: Vec<AclPorts> = match &rule.ports {
        Ports::Any => vec![AclPorts::Any],
        Ports::Of(ranges) => {
            ranges.iter().filter_map(|r| ports(r.protocol, r.first, r.last)).collect()
        }
    };
    if addresses.is_empty() {
        return (Vec::new(), has_sctp);
    }
    (port_lists.into_iter().map(|ports| (addresses.clone(), ports)).collect(), has_sctp)
}
