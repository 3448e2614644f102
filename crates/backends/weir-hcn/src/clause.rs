//! Lowers compiled rules to lists of clauses. A clause matches addresses and ports, and has an
//! action.
//!
//! ACLs have no `Pass` action. A Pass rule of the admin tier is replaced by the clauses of the
//! lower tiers, restricted to the traffic that it passes.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Action, Chain, Peers, PolicyId, Ports, Program, Protocol, Rule, Section};

use crate::{
    AclAction,
    acl_ports::{AclPorts, AclProtocol},
    addresses::Addresses,
    limits::AclLimits,
    render::id,
};

/// A condition on the peer and the ports, and an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clause {
    pub(crate) addresses: Addresses,
    pub(crate) ports: AclPorts,
    pub(crate) action: AclAction,
    pub(crate) id: String,
    /// The policy, unless every pod has the clause.
    pub(crate) policy: Option<PolicyId>,
}

impl Clause {
    /// A clause for all traffic.
    pub(crate) fn everything(action: AclAction, id: String) -> Self {
        Clause { addresses: Addresses::All, ports: AclPorts::Any, action, id, policy: None }
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
pub(crate) fn lower(
    program: &Program,
    chain: &Chain,
    direction: &str,
    limits: &AclLimits,
) -> Lowered {
    let mut lowered = Lowered::default();
    let context = ChainContext { program, direction, limits };
    let grants = chain.isolation.as_ref().map(|sections| {
        let mut grants = Vec::new();
        for section in sections {
            let clauses = lowered.section(&context, section).into_iter();
            grants.extend(clauses.map(|(clause, _)| clause));
        }
        grants
    });
    lowered.isolation = grants;
    for section in &chain.baseline {
        let clauses = lowered.section(&context, section).into_iter();
        lowered.baseline.extend(clauses.map(|(clause, _)| clause));
    }
    let after = lowered.after_admin();
    let mut size = 0;
    for section in &chain.admin {
        for (clause, action) in lowered.section(&context, section) {
            let passed = match action {
                Action::Pass => &after[..],
                Action::Allow | Action::Deny => &[],
            };
            for then in passed {
                let Some(ports) = clause.ports.and(&then.ports) else { continue };
                let addresses = clause.addresses.and(&then.addresses);
                if addresses.is_empty() {
                    continue;
                }
                size += 1 + addresses.len() + ports.len();
                if size > limits.admin_size {
                    lowered.close(&section.policy);
                    return lowered;
                }
                lowered.admin.push(Clause { addresses, ports, ..then.clone() });
            }
            if action != Action::Pass {
                lowered.admin.push(clause);
            }
        }
    }
    lowered
}

/// The input for the clauses of a chain.
struct ChainContext<'a> {
    program: &'a Program,
    direction: &'a str,
    limits: &'a AclLimits,
}

impl Lowered {
    /// The clauses for a connection that the admin tier does not decide.
    fn after_admin(&self) -> Vec<Clause> {
        let tail = |action| Clause::everything(action, "weir:pass".into());
        match &self.isolation {
            Some(grants) => grants.iter().cloned().chain([tail(AclAction::Block)]).collect(),
            None => self.baseline.iter().cloned().chain([tail(AclAction::Allow)]).collect(),
        }
    }

    fn close(&mut self, policy: &PolicyId) {
        self.exceeds_limit = Some(policy.clone());
        self.admin.push(Clause::everything(AclAction::Block, "weir:endless".into()));
    }

    /// The clauses of a policy, in order. Peers of one rule share a clause.
    fn section(&mut self, context: &ChainContext<'_>, section: &Section) -> Vec<(Clause, Action)> {
        let mut clauses = Vec::new();
        let one_rule = |one: &Rule, next: &Rule| {
            (one.origin.rule, one.action) == (next.origin.rule, next.action)
        };
        for rules in section.rules.chunk_by(one_rule) {
            let Some(first) = rules.first() else { continue };
            let (parts, has_sctp) = products(context, rules);
            if has_sctp {
                self.without_sctp.insert(section.policy.clone());
                self.denies_sctp |= first.action != Action::Allow;
            }
            let action = match first.action {
                Action::Deny => AclAction::Block,
                Action::Allow | Action::Pass => AclAction::Allow,
            };
            let id = id(&section.policy, context.direction, first.origin.rule);
            clauses.extend(parts.into_iter().map(|(ports, addresses)| {
                let (id, policy) = (id.clone(), Some(section.policy.clone()));
                (Clause { addresses, ports, action, id, policy }, first.action)
            }));
        }
        clauses
    }
}

/// The traffic that the rules of one policy rule match, as products of addresses and ports. The
/// flag is true if they also match SCTP.
fn products(context: &ChainContext<'_>, rules: &[Rule]) -> (Vec<(AclPorts, Addresses)>, bool) {
    let members = |set| context.program.sets.get(set).into_iter().flatten();
    let mut has_sctp = false;
    // The peers of one rule have one list of ports. Comparing a list with itself is cheap.
    let mut by_list: Vec<(&Ports, Vec<Addresses>)> = Vec::new();
    let mut by_port: BTreeMap<AclPorts, Vec<_>> = BTreeMap::new();
    for rule in rules {
        let addresses = match &rule.peers {
            Peers::Any => Addresses::All,
            Peers::Block(block) => Addresses::block(block),
            Peers::Set(set) => Addresses::hosts(members(set).map(|member| member.address)),
            Peers::PortSet(set) => {
                for member in members(set) {
                    let Some((protocol, port)) = member.port else { continue };
                    match AclProtocol::new(protocol) {
                        Some(protocol) => by_port
                            .entry(AclPorts::range(protocol, port, port))
                            .or_default()
                            .push(member.address),
                        None => has_sctp = true,
                    }
                }
                continue;
            }
        };
        match by_list.iter_mut().find(|(list, _)| *list == &rule.ports) {
            Some((_, all)) => all.push(addresses),
            None => by_list.push((&rule.ports, vec![addresses])),
        }
    }
    let mut parts: Vec<(AclPorts, Addresses)> = Vec::new();
    for (ports, all) in by_list {
        has_sctp |= ports.list().into_iter().flatten().any(|r| r.protocol == Protocol::Sctp);
        let addresses = Addresses::union(all);
        if !addresses.is_empty() {
            let lists = context.limits.port_lists(ports, addresses.len());
            parts.extend(lists.into_iter().map(|ports| (ports, addresses.clone())));
        }
    }
    for (ports, hosts) in by_port {
        let hosts = Addresses::hosts(hosts);
        match parts.iter_mut().find(|(same, _)| *same == ports) {
            Some((_, addresses)) => {
                let others = std::mem::replace(addresses, Addresses::All);
                *addresses = Addresses::union([others, hosts]);
            }
            None => parts.push((ports, hosts)),
        }
    }
    (parts, has_sctp)
}
