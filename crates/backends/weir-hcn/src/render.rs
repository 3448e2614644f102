//! What one pod's endpoint gets, as a pure function of the compiled rules.
//!
//! | numbers   | what                                                                   |
//! | --------- | ---------------------------------------------------------------------- |
//! | 300       | Allow between a pod and its own node, and itself; neighbour discovery  |
//! | 400–1998  | admin tier, in order; 1999 closes one that is too long                 |
//! | 2000      | Allow of NetworkPolicies                                               |
//! | 2100–2998 | baseline tier, in order; 2999 closes one that is too long              |
//! | 3000      | Block of an isolated direction                                         |
//! | 3100      | Allow of a direction that is not isolated; 3200 Block after it, if some protocol must not pass |
//!
//! Rules with one action may share a number, and rules with different actions never do.

use std::{collections::BTreeSet, net::IpAddr};

use sha2::{Digest, Sha256};
use weir_datapath::Shortfall;
use weir_model::{Chain, Direction, Endpoint, PodId, PolicyId, Program, SetId, SetKey};

use crate::{
    Acl, Action, PREFIX, Way,
    addresses::{Addresses, Family},
    clause::{self, Clause, Service},
};

/// As many addresses as Microsoft says a list may have.
pub(crate) const LIST: usize = 4000;
/// Longer ids are cut, for they are shown as names of rules.
const ID: usize = 200;

const OWN: u16 = 300;
const ADMIN: (u16, u16) = (400, 1999);
const GRANTS: u16 = 2000;
const BASELINE: (u16, u16) = (2100, 2999);
const ISOLATED: u16 = 3000;
const OPEN: u16 = 3100;
const CLOSED: u16 = 3200;

/// The protocols that are named where SCTP must not pass: ICMP, IGMP, TCP, UDP, ICMPv6.
const ALL_BUT_SCTP: [&str; 5] = ["1", "2", "6", "17", "58"];

/// What one endpoint gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The rules, none if every connection passes.
    pub acls: Vec<Acl>,
    /// What cannot be said in ACLs, and was made stricter.
    pub shortfalls: Vec<Shortfall>,
}

/// The ACLs of one pod. `host` are the addresses of the machine it runs on, as far as the cluster does not know them.
pub fn render(
    pod: &PodId,
    endpoint: &Endpoint,
    program: &Program,
    host: &BTreeSet<IpAddr>,
) -> Rendered {
    if endpoint.rules.is_open() {
        return Rendered::default();
    }
    let families: Vec<Family> = Family::BOTH
        .into_iter()
        .filter(|family| endpoint.addresses.iter().any(|address| Family::of(*address) == *family))
        .collect();
    let mut all = Rendered::default();
    for direction in Direction::BOTH {
        let mut renderer = Renderer {
            pod,
            way: match direction {
                Direction::Ingress => Way::In,
                Direction::Egress => Way::Out,
            },
            families: &families,
            keeps_sctp_out: false,
            seen: BTreeSet::new(),
            acls: &mut all.acls,
            shortfalls: &mut all.shortfalls,
        };
        renderer.own(program, endpoint, host);
        renderer.chain(program, endpoint.rules.chain(direction));
    }
    all.shortfalls.sort();
    all.shortfalls.dedup();
    all
}

struct Renderer<'a> {
    pod: &'a PodId,
    way: Way,
    families: &'a [Family],
    /// Whether some SCTP is denied that cannot be told from other SCTP, so that none may pass.
    keeps_sctp_out: bool,
    /// The rules so far, without their ids: the same may be granted twice.
    seen: BTreeSet<Acl>,
    acls: &'a mut Vec<Acl>,
    shortfalls: &'a mut Vec<Shortfall>,
}

impl Renderer<'_> {
    /// What is never judged: the pod's own node and the pod itself; and what IPv6 needs to find anybody at all.
    fn own(&mut self, program: &Program, endpoint: &Endpoint, host: &BTreeSet<IpAddr>) {
        let node = endpoint.node.as_ref().map(|node| SetId::new(SetKey::Node(node.clone())));
        let node = node.and_then(|set| program.sets.get(&set)).into_iter().flatten();
        let own = node.map(|member| member.address).chain(host.iter().copied());
        let own = Addresses::hosts(own.chain(endpoint.addresses.iter().copied()));
        let clause = |name: &str, addresses, service| Clause {
            addresses,
            service,
            action: Action::Allow,
            id: format!("{PREFIX}{name}-{}", word(self.way)),
        };
        let own = clause("own", own, Service::Any);
        let nets = ["fe80::/10", "ff02::/16"].into_iter().filter_map(|net| net.parse().ok());
        let nets = nets.map(|net| Addresses::block(&weir_model::Block::new(net, [])));
        let nets = nets.reduce(Addresses::or);
        let neighbours = nets.map(|nets| clause("neighbours", nets, Service::Any));
        self.emit(&own, OWN, &[""]);
        if let Some(neighbours) = neighbours {
            self.emit(&neighbours, OWN, &["58"]);
        }
    }

    fn chain(&mut self, program: &Program, chain: &Chain) {
        let lowered = clause::lower(program, chain, word(self.way));
        self.keeps_sctp_out = lowered.keeps_sctp_out;
        for policy in lowered.without_sctp {
            self.lacks(policy, "HNS does not filter SCTP: what its ports would decide is denied");
        }
        if let Some(policy) = lowered.endless {
            self.lacks(policy, "too much to say in ACLs: what follows is denied");
        }
        let mut is_closed = self.ordered(&lowered.admin, ADMIN);
        match &lowered.isolation {
            Some(grants) => {
                grants.iter().for_each(|grant| self.all(grant, GRANTS));
                self.tail(Action::Block, ISOLATED);
            }
            None => {
                is_closed |= self.ordered(&lowered.baseline, BASELINE);
                if !is_closed {
                    self.tail(Action::Allow, OPEN);
                }
                if self.keeps_sctp_out {
                    self.tail(Action::Block, CLOSED);
                }
            }
        }
    }

    /// Rules of which the first that fits decides. Returns whether there were too many, and nothing passes after them.
    fn ordered(&mut self, clauses: &[Clause], (first, last): (u16, u16)) -> bool {
        let mut number = first;
        let mut before: Option<Action> = None;
        for clause in clauses {
            if before.is_some_and(|action| action != clause.action) {
                number += 1;
            }
            if number == last {
                let what = "too many turns between allow and deny: what follows is denied";
                self.shortfalls.push(Shortfall {
                    pod: self.pod.clone(),
                    policy: None,
                    what: what.into(),
                });
                self.tail(Action::Block, last);
                return true;
            }
            before = Some(clause.action);
            self.all(clause, number);
        }
        false
    }

    fn tail(&mut self, action: Action, number: u16) {
        let id = format!("{PREFIX}tail-{}", word(self.way));
        let tail = Clause { addresses: Addresses::Everyone, service: Service::Any, action, id };
        self.all(&tail, number);
    }

    /// A clause for every protocol it is about.
    fn all(&mut self, clause: &Clause, number: u16) {
        match clause.service {
            Service::Any if self.keeps_sctp_out && clause.action == Action::Allow => {
                self.emit(clause, number, &ALL_BUT_SCTP);
            }
            Service::Any => self.emit(clause, number, &[""]),
            Service::Tcp(..) => self.emit(clause, number, &["6"]),
            Service::Udp(..) => self.emit(clause, number, &["17"]),
        }
    }

    /// The rules for a clause: one for each protocol, family and part of a long list.
    fn emit(&mut self, clause: &Clause, number: u16, protocols: &[&str]) {
        let ports = match clause.service {
            Service::Any | Service::Tcp(0, u16::MAX) | Service::Udp(0, u16::MAX) => String::new(),
            Service::Tcp(first, last) | Service::Udp(first, last) if first == last => {
                first.to_string()
            }
            Service::Tcp(first, last) | Service::Udp(first, last) => format!("{first}-{last}"),
        };
        let lists: Vec<String> = match clause.addresses {
            Addresses::Everyone => vec![String::new()],
            _ => {
                let families = self.families.iter();
                let texts = families.map(|family| clause.addresses.texts(*family));
                let lists = texts.flat_map(|texts| {
                    texts.chunks(LIST).map(|part| part.join(",")).collect::<Vec<_>>()
                });
                lists.collect()
            }
        };
        for protocol in protocols {
            for list in &lists {
                let mut acl = Acl::new(clause.id.clone(), self.way, clause.action, number);
                acl.protocols = (*protocol).to_owned();
                acl.remote_addresses = list.clone();
                match self.way {
                    Way::In => acl.local_ports.clone_from(&ports),
                    Way::Out => acl.remote_ports.clone_from(&ports),
                }
                if self.seen.insert(Acl { id: String::new(), ..acl.clone() }) {
                    self.acls.push(acl);
                }
            }
        }
    }

    fn lacks(&mut self, policy: PolicyId, what: &str) {
        let (pod, policy) = (self.pod.clone(), Some(policy));
        self.shortfalls.push(Shortfall { pod, policy, what: what.into() });
    }
}

/// How ids call a direction.
fn word(way: Way) -> &'static str {
    match way {
        Way::In => "in",
        Way::Out => "out",
    }
}

/// The id of the rules that one rule of a policy leads to: readable, and not too long.
pub(crate) fn id(policy: &PolicyId, way: &str, rule: u32) -> String {
    let PolicyId { kind, namespace, name } = policy;
    let slash = if namespace.is_empty() { "" } else { "/" };
    let whole = format!("{PREFIX}{kind}/{namespace}{slash}{name}#{way}.{rule}");
    if whole.len() <= ID {
        return whole;
    }
    let hash = Sha256::digest(whole.as_bytes());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let cut = whole.chars().take(ID - hash.len() - 1);
    format!("{}~{hash}", cut.collect::<String>())
}
