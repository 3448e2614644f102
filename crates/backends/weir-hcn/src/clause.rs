//! Compiled rules as lists that are asked from the top: a product of addresses and ports, and what happens.
//!
//! ACLs know no `Pass`. Where a rule of the admin tier passes, what comes after that tier is said there, for what passes alone.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Action as Deed, Chain, Peers, PolicyId, Ports, Program, Protocol, Rule, Section};

use crate::{Action, addresses::Addresses, render::id};

/// More clauses than this are not said: policies that pass could multiply without end.
const CLAUSES: usize = 10_000;

/// Who, at which ports, and what happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clause {
    pub(crate) addresses: Addresses,
    pub(crate) service: Service,
    pub(crate) action: Action,
    pub(crate) id: String,
}

/// Ports of one protocol, or everything. HNS does not filter SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    Any,
    Tcp(u16, u16),
    Udp(u16, u16),
}

impl Service {
    /// What is in both.
    fn and(self, other: Service) -> Option<Service> {
        let both = |(a, b): (u16, u16), (c, d): (u16, u16)| {
            (a.max(c) <= b.min(d)).then_some((a.max(c), b.min(d)))
        };
        match (self, other) {
            (Service::Any, service) | (service, Service::Any) => Some(service),
            (Service::Tcp(a, b), Service::Tcp(c, d)) => {
                both((a, b), (c, d)).map(|(first, last)| Service::Tcp(first, last))
            }
            (Service::Udp(a, b), Service::Udp(c, d)) => {
                both((a, b), (c, d)).map(|(first, last)| Service::Udp(first, last))
            }
            _ => None,
        }
    }
}

/// One direction of a pod.
#[derive(Debug, Default)]
pub(crate) struct Lowered {
    /// The first that fits decides.
    pub(crate) admin: Vec<Clause>,
    /// All allow; nothing else passes. `None` if the pod is not isolated.
    pub(crate) isolation: Option<Vec<Clause>>,
    /// The first that fits decides; what none fits passes.
    pub(crate) baseline: Vec<Clause>,
    /// Policies that speak about SCTP.
    pub(crate) without_sctp: BTreeSet<PolicyId>,
    /// Whether some SCTP must not pass that nothing else keeps out.
    pub(crate) keeps_sctp_out: bool,
    /// The policy at which there was too much to say.
    pub(crate) endless: Option<PolicyId>,
}

/// One direction of a pod, as clauses.
pub(crate) fn lower(program: &Program, chain: &Chain, way: &str) -> Lowered {
    let mut lowered = Lowered::default();
    let grants = chain.isolation.as_ref().map(|sections| {
        let mut grants = Vec::new();
        for section in sections {
            grants.extend(lowered.section(program, section, way).map(|(clause, _)| clause));
        }
        grants
    });
    lowered.isolation = grants;
    for section in &chain.baseline {
        let clauses: Vec<_> = lowered.section(program, section, way).collect();
        lowered.baseline.extend(clauses.into_iter().map(|(clause, _)| clause));
    }
    let after = lowered.after_admin();
    for section in &chain.admin {
        let clauses: Vec<_> = lowered.section(program, section, way).collect();
        for (clause, deed) in clauses {
            if lowered.admin.len() > CLAUSES {
                lowered.close(&section.policy);
                return lowered;
            }
            match deed {
                Deed::Pass => lowered.admin.extend(after.iter().filter_map(|then| {
                    let addresses = clause.addresses.and(&then.addresses);
                    let service = clause.service.and(then.service)?;
                    let some = !addresses.is_empty();
                    some.then(|| Clause { addresses, service, ..then.clone() })
                })),
                Deed::Allow | Deed::Deny => lowered.admin.push(clause),
            }
        }
    }
    lowered
}

impl Lowered {
    /// What happens to a connection that the admin tier does not decide.
    fn after_admin(&self) -> Vec<Clause> {
        let tail = |action| Clause {
            addresses: Addresses::Everyone,
            service: Service::Any,
            action,
            id: "weir:pass".into(),
        };
        match &self.isolation {
            Some(grants) => grants.iter().cloned().chain([tail(Action::Block)]).collect(),
            None => self.baseline.iter().cloned().chain([tail(Action::Allow)]).collect(),
        }
    }

    fn close(&mut self, policy: &PolicyId) {
        self.endless = Some(policy.clone());
        self.admin.push(Clause {
            addresses: Addresses::Everyone,
            service: Service::Any,
            action: Action::Block,
            id: "weir:endless".into(),
        });
    }

    /// What a policy says, in order. The peers of one rule are said together.
    fn section(
        &mut self,
        program: &Program,
        section: &Section,
        way: &str,
    ) -> impl Iterator<Item = (Clause, Deed)> + use<> {
        let mut clauses: Vec<(Clause, Deed, u32)> = Vec::new();
        for rule in &section.rules {
            let (parts, has_sctp) = products(program, rule);
            if has_sctp {
                self.without_sctp.insert(section.policy.clone());
                self.keeps_sctp_out |= rule.action != Deed::Allow;
            }
            for (addresses, service) in parts {
                let number = rule.origin.rule;
                let same = clauses.iter_mut().find(|(clause, deed, other)| {
                    (clause.service, *deed, *other) == (service, rule.action, number)
                });
                match same {
                    Some((clause, ..)) => {
                        let before = std::mem::replace(&mut clause.addresses, Addresses::Everyone);
                        clause.addresses = before.or(addresses);
                    }
                    None => {
                        let action = match rule.action {
                            Deed::Deny => Action::Block,
                            Deed::Allow | Deed::Pass => Action::Allow,
                        };
                        let id = id(&section.policy, way, number);
                        let clause = Clause { addresses, service, action, id };
                        clauses.push((clause, rule.action, number));
                    }
                }
            }
        }
        clauses.into_iter().map(|(clause, deed, _)| (clause, deed))
    }
}

/// What a rule is about, as products of addresses and ports; and whether it is about SCTP, too.
fn products(program: &Program, rule: &Rule) -> (Vec<(Addresses, Service)>, bool) {
    let mut has_sctp = false;
    let mut service = |protocol, first, last| match protocol {
        Protocol::Tcp => Some(Service::Tcp(first, last)),
        Protocol::Udp => Some(Service::Udp(first, last)),
        Protocol::Sctp => {
            has_sctp = true;
            None
        }
    };
    let members = |set| program.sets.get(set).into_iter().flatten();
    if let Peers::PortSet(set) = &rule.peers {
        let mut by_port: BTreeMap<Service, Vec<_>> = BTreeMap::new();
        for member in members(set) {
            let Some((protocol, port)) = member.port else { continue };
            if let Some(service) = service(protocol, port, port) {
                by_port.entry(service).or_default().push(member.address);
            }
        }
        let parts = by_port.into_iter();
        let parts = parts.map(|(service, hosts)| (Addresses::hosts(hosts), service)).collect();
        return (parts, has_sctp);
    }
    let addresses = match &rule.peers {
        Peers::Any => Addresses::Everyone,
        Peers::Block(block) => Addresses::block(block),
        Peers::Set(set) | Peers::PortSet(set) => {
            Addresses::hosts(members(set).map(|member| member.address))
        }
    };
    let services: Vec<Service> = match &rule.ports {
        Ports::Any => vec![Service::Any],
        Ports::Of(ranges) => {
            ranges.iter().filter_map(|r| service(r.protocol, r.first, r.last)).collect()
        }
    };
    if addresses.is_empty() {
        return (Vec::new(), has_sctp);
    }
    (services.into_iter().map(|service| (addresses.clone(), service)).collect(), has_sctp)
}
