//! Renders the ACLs of one pod's endpoint. A pure function of the compiled rules.
//!
//! | priority  | ACLs                                                                   |
//! | --------- | ---------------------------------------------------------------------- |
//! | 300       | Allow from the node to its pod, and the pod itself; neighbour discovery |
//! | 400–1998  | admin tier, in order; 1999 blocks the rest of one that is too long     |
//! | 2000      | Allow of NetworkPolicies                                               |
//! | 2100–2998 | baseline tier, in order; 2999 blocks the rest of one that is too long  |
//! | 3000      | Block of an isolated direction                                         |
//! | 3100      | Allow of a direction that is not isolated                              |
//! | 3200      | Block after it, if SCTP must not pass                                  |
//! | none      | Allow of the host firewall, which filters packets too                  |
//!
//! ACLs with the same action can share a priority. ACLs with different actions never do.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use sha2::{Digest, Sha256};
use weir_datapath::Shortfall;
use weir_model::{
    Chain, Direction, Endpoint, IpFamily, Name, PodId, PolicyId, Program, SetId, SetKey,
};

use crate::{
    Acl, AclAction, AclDirection, PREFIX, RuleType,
    acl_ports::{AclPorts, AclProtocol},
    addresses::Addresses,
    clause::{self, Clause},
    limits::AclLimits,
};

/// The maximum length of an id. Windows shows ids as names of rules.
const MAX_ID_LENGTH: usize = 200;

const OWN: u16 = 300;
const ADMIN: (u16, u16) = (400, 1999);
const GRANTS: u16 = 2000;
const BASELINE: (u16, u16) = (2100, 2999);
const ISOLATED: u16 = 3000;
const OPEN: u16 = 3100;
const CLOSED: u16 = 3200;

/// The protocols to list where SCTP must be denied: ICMP, IGMP, TCP, UDP, ICMPv6.
const ALL_BUT_SCTP: [&str; 5] = ["1", "2", "6", "17", "58"];

/// The ACLs of one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The ACLs. Empty if the pod allows every connection.
    pub acls: Vec<Acl>,
    /// The conditions that ACLs cannot express, and that became stricter.
    pub shortfalls: Vec<Shortfall>,
}

/// Renders the ACLs of one pod. `host` has the addresses of its machine, including those that the
/// cluster does not report.
pub fn render(
    pod: &PodId,
    endpoint: &Endpoint,
    program: &Program,
    host: &BTreeSet<IpAddr>,
) -> Rendered {
    RenderedChains::new(program, AclLimits::default()).render(pod, endpoint, host)
}

/// The ACLs of the chains of a program. Pods with the same rules share them.
pub(crate) struct RenderedChains<'a> {
    pub(crate) program: &'a Program,
    limits: AclLimits,
    /// By the address of the rules in memory, the direction and the families of the pod.
    known: BTreeMap<(usize, Direction, Vec<IpFamily>), ChainAcls>,
}

/// The ACLs of a chain, and the policies of which it allows less.
struct ChainAcls {
    acls: Vec<Acl>,
    shortfalls: Vec<(Option<PolicyId>, &'static str)>,
}

impl<'a> RenderedChains<'a> {
    pub(crate) fn new(program: &'a Program, limits: AclLimits) -> Self {
        RenderedChains { program, limits, known: BTreeMap::new() }
    }

    /// Renders the ACLs of one pod.
    pub(crate) fn render(
        &mut self,
        pod: &PodId,
        endpoint: &Endpoint,
        host: &BTreeSet<IpAddr>,
    ) -> Rendered {
        if endpoint.rules.is_open() {
            return Rendered::default();
        }
        let has = |family: &IpFamily| {
            endpoint.addresses.iter().any(|address| IpFamily::from(*address) == *family)
        };
        let families: Vec<IpFamily> = IpFamily::BOTH.into_iter().filter(has).collect();
        let mut all = Rendered::default();
        for direction in Direction::BOTH {
            let mut own = Renderer::new(direction, &families, &self.limits);
            own.always_allowed(self.program, endpoint, host);
            all.acls.append(&mut own.acls);
            let key = (Arc::as_ptr(&endpoint.rules).addr(), direction, families.clone());
            let chain = self.known.entry(key).or_insert_with(|| {
                let mut renderer = Renderer::new(direction, &families, &self.limits);
                renderer.chain(self.program, endpoint.rules.chain(direction));
                ChainAcls { acls: renderer.acls, shortfalls: renderer.shortfalls }
            });
            all.acls.extend(chain.acls.iter().cloned());
            all.shortfalls.extend(chain.shortfalls.iter().map(|(policy, what)| Shortfall {
                pod: pod.clone(),
                policy: policy.clone(),
                what: (*what).into(),
            }));
        }
        all.acls.extend([AclDirection::In, AclDirection::Out].map(Acl::host));
        all.shortfalls.sort();
        all.shortfalls.dedup();
        all
    }
}

/// The ACLs of a pod that denies all traffic, except traffic with its node and itself.
pub(crate) fn deny_all(acls: &[Acl]) -> Vec<Acl> {
    let is_own = |acl: &Acl| !acl.id.contains('#') && acl.priority == Some(OWN);
    let own = acls.iter().filter(|acl| is_own(acl) || acl.rule_type == RuleType::Host);
    let tail = |direction: AclDirection| {
        let id = format!("{PREFIX}tail-{}", lower_case(direction));
        Acl::new(id.into(), direction, AclAction::Block, ISOLATED)
    };
    own.cloned().chain([tail(AclDirection::In), tail(AclDirection::Out)]).collect()
}

struct Renderer<'a> {
    direction: AclDirection,
    families: &'a [IpFamily],
    /// Whether some SCTP is denied. HNS cannot filter by SCTP port, so all SCTP must be denied.
    denies_sctp: bool,
    limits: &'a AclLimits,
    /// The number of addresses that further ACLs of this direction can have.
    addresses_left: usize,
    /// The digests of the ACLs so far without their ids, to skip duplicates.
    seen: BTreeSet<[u8; 32]>,
    acls: Vec<Acl>,
    shortfalls: Vec<(Option<PolicyId>, &'static str)>,
}

impl<'a> Renderer<'a> {
    fn new(direction: Direction, families: &'a [IpFamily], limits: &'a AclLimits) -> Self {
        Renderer {
            direction: match direction {
                Direction::Ingress => AclDirection::In,
                Direction::Egress => AclDirection::Out,
            },
            families,
            denies_sctp: false,
            limits,
            addresses_left: limits.addresses,
            seen: BTreeSet::new(),
            acls: Vec::new(),
            shortfalls: Vec::new(),
        }
    }

    /// Adds the ACLs that no policy overrides: traffic from the pod's node, traffic with the pod
    /// itself, and IPv6 neighbour discovery.
    fn always_allowed(&mut self, program: &Program, endpoint: &Endpoint, host: &BTreeSet<IpAddr>) {
        let node = endpoint.node.as_ref().map(|node| SetId::new(SetKey::Node(node.clone())));
        let node = node.and_then(|set| program.sets.get(&set)).into_iter().flatten();
        let node = node.map(|member| member.address).chain(host.iter().copied());
        // HNS tracks connections, so that replies to the node need no ACL.
        let node = node.filter(|_| self.direction == AclDirection::In);
        let own = Addresses::hosts(node.chain(endpoint.addresses.iter().copied()));
        let clause = |name: &str, addresses| {
            let id = format!("{PREFIX}{name}-{}", lower_case(self.direction));
            Clause { addresses, ..Clause::everything(AclAction::Allow, id) }
        };
        let nets = ["fe80::/10", "ff02::/16"].into_iter().filter_map(|net| net.parse().ok());
        let nets = nets.map(|net| Addresses::block(&weir_model::Block::new(net, [])));
        let (own, neighbours) = (clause("own", own), clause("neighbours", Addresses::union(nets)));
        self.emit(&own, OWN, &[""]);
        self.emit(&neighbours, OWN, &["58"]);
    }

    fn chain(&mut self, program: &Program, chain: &Chain) {
        let lowered = clause::lower(program, chain, lower_case(self.direction), self.limits);
        self.denies_sctp = lowered.denies_sctp;
        for policy in lowered.without_sctp {
            self.add_shortfall(
                policy,
                "HNS cannot filter SCTP by port: SCTP that its rules match is denied",
            );
        }
        if let Some(policy) = lowered.exceeds_limit {
            self.add_shortfall(
                policy,
                "the policies need too many ACLs: traffic that later rules match is denied",
            );
        }
        let mut is_closed = self.add_ordered(&lowered.admin, ADMIN);
        match &lowered.isolation {
            Some(grants) => {
                for grant in grants {
                    if let (Err(TooLong), Some(policy)) = (self.add(grant, GRANTS), &grant.policy) {
                        self.add_shortfall(
                            policy.clone(),
                            "the addresses of the policies do not fit into ACLs: traffic that some of its rules allow is denied",
                        );
                    }
                }
                self.add_default(AclAction::Block, ISOLATED);
            }
            None => {
                is_closed |= self.add_ordered(&lowered.baseline, BASELINE);
                if !is_closed {
                    self.add_default(AclAction::Allow, OPEN);
                }
                if self.denies_sctp {
                    self.add_default(AclAction::Block, CLOSED);
                }
            }
        }
    }

    /// Adds clauses of which the first match decides. Returns whether there were too many, in which
    /// case all other traffic is denied.
    fn add_ordered(&mut self, clauses: &[Clause], (first, last): (u16, u16)) -> bool {
        let mut number = first;
        let mut before: Option<AclAction> = None;
        for clause in clauses {
            if before.is_some_and(|action| action != clause.action) {
                number += 1;
            }
            if number == last {
                let what =
                    "the rules alternate too often between allow and deny: later rules are denied";
                return self.close(None, what, last);
            }
            before = Some(clause.action);
            if self.add(clause, number).is_err() {
                let what = "the addresses of the policies do not fit into ACLs: traffic that later rules match is denied";
                return self.close(clause.policy.clone(), what, last);
            }
        }
        false
    }

    /// Denies the traffic that the rest of a tier would decide, and reports it.
    fn close(&mut self, policy: Option<PolicyId>, what: &'static str, last: u16) -> bool {
        self.shortfalls.push((policy, what));
        self.add_default(AclAction::Block, last);
        true
    }

    fn add_default(&mut self, action: AclAction, number: u16) {
        let id = format!("{PREFIX}tail-{}", lower_case(self.direction));
        self.emit(&Clause::everything(action, id), number, self.protocols(&AclPorts::Any, action));
    }

    /// The protocols of the ACLs that match these ports.
    fn protocols(&self, ports: &AclPorts, action: AclAction) -> &'static [&'static str] {
        match ports {
            AclPorts::Any if self.denies_sctp && action == AclAction::Allow => &ALL_BUT_SCTP,
            AclPorts::Any => &[""],
            AclPorts::Of(AclProtocol::Tcp, _) => &["6"],
            AclPorts::Of(AclProtocol::Udp, _) => &["17"],
        }
    }

    /// Adds a clause for every protocol that it matches, if its addresses fit into the limit.
    fn add(&mut self, clause: &Clause, number: u16) -> Result<(), TooLong> {
        let protocols = self.protocols(&clause.ports, clause.action);
        let repeats = protocols.len() * clause.ports.texts(self.limits.list_length).len();
        let families = self.families.iter();
        let nets = families.flat_map(|family| clause.addresses.nets(*family));
        // Count no more than fit: exceptions can need millions of networks.
        let count = nets.take(self.addresses_left / repeats.max(1) + 1).count() * repeats;
        self.addresses_left = self.addresses_left.checked_sub(count).ok_or(TooLong)?;
        self.emit(clause, number, protocols);
        Ok(())
    }

    /// Adds the ACLs of a clause: one per protocol, family and part of a long list.
    fn emit(&mut self, clause: &Clause, number: u16, protocols: &[&str]) {
        let max_length = self.limits.list_length.max(1);
        let lists: Vec<Name> = match clause.addresses {
            Addresses::All => vec![Name::default()],
            _ => {
                let families = self.families.iter();
                let texts = families.map(|family| clause.addresses.texts(*family));
                let lists = texts.flat_map(|texts| {
                    texts
                        .chunks(max_length)
                        .map(|part| part.join(",").into())
                        .collect::<Vec<Name>>()
                });
                lists.collect()
            }
        };
        let id = Name::from(&*clause.id);
        for ports in clause.ports.texts(max_length) {
            let ports = Name::from(ports);
            for protocol in protocols {
                for list in &lists {
                    let mut acl = Acl::new(id.clone(), self.direction, clause.action, number);
                    acl.protocols = (*protocol).into();
                    acl.remote_addresses = list.clone();
                    match self.direction {
                        AclDirection::In => acl.local_ports.clone_from(&ports),
                        AclDirection::Out => acl.remote_ports.clone_from(&ports),
                    }
                    let content = format!("{number} {} {protocol} {ports} {list}", acl.action);
                    if self.seen.insert(Sha256::digest(content).into()) {
                        self.acls.push(acl);
                    }
                }
            }
        }
    }

    fn add_shortfall(&mut self, policy: PolicyId, what: &'static str) {
        self.shortfalls.push((Some(policy), what));
    }
}

/// The addresses of a clause exceed the limit.
struct TooLong;

/// The direction as in ids.
fn lower_case(direction: AclDirection) -> &'static str {
    match direction {
        AclDirection::In => "in",
        AclDirection::Out => "out",
    }
}

/// The id of the ACLs of one policy rule. A hash replaces the end of a long one.
pub(crate) fn id(policy: &PolicyId, direction: &str, rule: u32) -> String {
    let PolicyId { kind, namespace, name } = policy;
    let slash = if namespace.is_empty() { "" } else { "/" };
    let whole = format!("{PREFIX}{kind}/{namespace}{slash}{name}#{direction}.{rule}");
    if whole.len() <= MAX_ID_LENGTH {
        return whole;
    }
    let hash = Sha256::digest(whole.as_bytes());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let cut = whole.chars().take(MAX_ID_LENGTH - hash.len() - 1);
    format!("{}~{hash}", cut.collect::<String>())
}
