//! Names the ends of connections, and finds the rules that decided about them.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use weir_datapath::{Datapath, DropCause, Dropped, Mode};
use weir_flows::{FlowKey, FlowPeer, FlowVerdict, Observation, Traffic, WorkloadName};
use weir_model::{Direction, Flow, Name, PodId, PodOwner, Program, Protocol, Verdict};

use super::Agent;
use crate::{
    AgentOptions,
    drops::Drop,
    flows::{ConnectionBatch, Link, LinkCount, decide},
};

/// The interval at which the policies of the node and their metrics are updated.
const POLICIES_INTERVAL: Duration = Duration::from_secs(10);
/// The most connections of a batch that are reported because staged policies would deny them.
const MAX_STAGED_REPORTS: usize = 100;
/// The table of names is not searched for unused ones below this size.
const MIN_NAMES_LIMIT: usize = 1024;
/// The kind of a workload that is a single pod.
const POD: &str = "Pod";

/// The state of the loop about flows.
#[derive(Debug)]
pub(super) struct FlowState {
    is_on: bool,
    mode: Mode,
    /// The names of workloads that flows mention. Looking one up does not change the agent.
    names: RefCell<WorkloadNames>,
    pod_kind: Name,
    /// Grows whenever the rules change.
    rules: u64,
    /// The version of the rules whose policies were published.
    published: Option<u64>,
    due: Instant,
}

impl FlowState {
    pub(super) fn new(options: &AgentOptions, now: Instant) -> Self {
        FlowState {
            is_on: options.flows.is_some(),
            mode: options.mode,
            names: RefCell::default(),
            pod_kind: POD.into(),
            rules: 0,
            published: None,
            due: now,
        }
    }

    /// The rules of the program changed.
    pub(super) fn set_rules_changed(&mut self) {
        self.rules += 1;
    }

    /// The workload that stands for a pod: its owner, or the pod itself.
    fn workload(&self, pod: &PodId, owner: Option<&PodOwner>) -> Arc<WorkloadName> {
        let (kind, name) = match owner {
            Some(owner) => (owner.kind.clone(), owner.name.clone()),
            None => (self.pod_kind.clone(), pod.name.clone()),
        };
        let namespace = pod.namespace.clone();
        self.names.borrow_mut().intern(WorkloadName { namespace, kind, name })
    }
}

/// Equal names, stored once while a flow uses them.
#[derive(Debug, Default)]
struct WorkloadNames {
    known: BTreeSet<Arc<WorkloadName>>,
    /// The number of names at which unused ones are removed.
    limit: usize,
}

impl WorkloadNames {
    fn intern(&mut self, name: WorkloadName) -> Arc<WorkloadName> {
        if let Some(known) = self.known.get(&name) {
            return known.clone();
        }
        if self.known.len() >= self.limit {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.limit = (2 * self.known.len()).max(MIN_NAMES_LIMIT);
        }
        let name = Arc::new(name);
        self.known.insert(name.clone());
        name
    }
}

impl<D: Datapath> Agent<D> {
    /// Connections began or ended. Those of no pod of this node are left out.
    pub(super) fn observe_connections(&mut self, batch: ConnectionBatch) {
        let ConnectionBatch { links, time } = batch;
        self.report_staged(&links);
        let program = self.ledger.program();
        let observed = links.into_iter().filter_map(|(link, count)| {
            let denying = self.denying(&link);
            let verdict = if denying.is_some() { FlowVerdict::Audit } else { FlowVerdict::Allow };
            let deciding = denying.unwrap_or(program);
            Some((self.observation(&link, count, verdict, time)?, link, deciding))
        });
        let observed: Vec<(Observation, Link, &Program)> = observed.collect();
        let rules = self.flows.rules;
        self.reporter.observe_flows(|table| {
            for (observation, link, deciding) in observed {
                let verdict = observation.key.verdict;
                table.observe(observation, rules, || {
                    let decided = decide(deciding, (link.from, link.to), named_port(&link));
                    match verdict {
                        FlowVerdict::Allow => decided.allowing(),
                        FlowVerdict::Deny | FlowVerdict::Audit => decided.denying(None),
                    }
                });
            }
        });
    }

    /// Packets were denied. In audit mode they passed, and their connections are observed.
    pub(super) fn observe_denied(&mut self, packets: &[Dropped]) {
        if !self.flows.is_on || self.flows.mode == Mode::Audit {
            return;
        }
        let program = self.ledger.program();
        let observed = packets.iter().filter_map(|packet| {
            let DropCause::Rules(direction) = packet.cause else { return None };
            let port = packet.ports.map(|(_, port)| port);
            let link = Link { from: packet.from, to: packet.to, protocol: packet.protocol, port };
            let count = LinkCount { connections: 1, traffic: None };
            let time = packet.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            let time = u64::try_from(time).unwrap_or(u64::MAX);
            let observation = self.observation(&link, count, FlowVerdict::Deny, time)?;
            Some((observation, link, direction))
        });
        let observed: Vec<_> = observed.collect();
        let rules = self.flows.rules;
        self.reporter.observe_flows(|table| {
            for (observation, link, direction) in observed {
                table.observe(observation, rules, || {
                    let decided = decide(program, (link.from, link.to), named_port(&link));
                    decided.denying(Some(direction))
                });
            }
        });
    }

    /// Publishes the policies of this node and their use, if it is time.
    pub(super) fn publish_policies(&mut self, now: Instant) {
        if !self.flows.is_on || now < self.flows.due {
            return;
        }
        self.flows.due = now + POLICIES_INTERVAL;
        let policies = (self.flows.published != Some(self.flows.rules)).then(|| {
            let policies = self.engine.policies_in_use();
            policies.iter().map(ToString::to_string).collect()
        });
        self.flows.published = Some(self.flows.rules);
        self.reporter.publish_flows(policies);
    }

    fn observation(
        &self,
        link: &Link,
        count: LinkCount,
        verdict: FlowVerdict,
        time: u64,
    ) -> Option<Observation> {
        let program = self.ledger.program();
        let is_from_here = program.owner(link.from).is_some();
        if !is_from_here && program.owner(link.to).is_none() {
            return None;
        }
        let LinkCount { connections, traffic } = count;
        if connections == 0 && traffic == Some(Traffic::default()) {
            return None;
        }
        let (from, from_pod) = self.peer(link.from);
        let (to, to_pod) = self.peer(link.to);
        Some(Observation {
            key: FlowKey { from, to, protocol: link.protocol, port: link.port, verdict },
            is_from_here,
            pods: (from_pod, to_pod),
            time,
            connections,
            traffic,
        })
    }

    /// The workload and the pod of an address.
    fn peer(&self, address: IpAddr) -> (FlowPeer, Option<Name>) {
        let local = self.ledger.program().owner(address).map(|(id, _)| id.clone());
        match local.or_else(|| self.engine.owner(address)) {
            None => (FlowPeer::Address(address), None),
            Some(pod) => {
                let workload = self.flows.workload(&pod, self.engine.workload(&pod));
                (FlowPeer::Workload(workload), Some(pod.name))
            }
        }
    }

    /// The rules that deny a connection which passed: those in force, in audit mode, or those with
    /// staged policies.
    fn denying(&self, link: &Link) -> Option<&Program> {
        let enforced = self.ledger.program();
        let in_force = match self.flows.mode {
            Mode::Enforce => None,
            Mode::Audit => Some(enforced),
        };
        let denies = |program: &&Program| verdict(program, link) == Verdict::Deny;
        // Connections that the rules in force forbid are being terminated.
        let is_allowed = || verdict(enforced, link) == Verdict::Allow;
        in_force
            .filter(denies)
            .or_else(|| self.engine.staged_program().filter(denies).filter(|_| is_allowed()))
    }

    /// Reports connections that staged policies would deny, as drops that passed.
    fn report_staged(&mut self, links: &BTreeMap<Link, LinkCount>) {
        let Some(staged) = self.engine.staged_program() else { return };
        let program = self.ledger.program();
        let is_new = |(_, count): &(&Link, &LinkCount)| count.connections > 0;
        let drops = links.iter().filter(is_new).filter_map(|(link, _)| {
            if verdict(program, link) == Verdict::Deny {
                return None;
            }
            let direction = denied_direction(staged, link)?;
            let packet = Dropped {
                time: SystemTime::now(),
                cause: DropCause::Rules(direction),
                from: link.from,
                to: link.to,
                protocol: link.protocol,
                // Many source ports are one link.
                ports: link.port.map(|port| (0, port)),
                link: None,
            };
            Some(Drop::new(&packet, None, &self.engine, staged).without_source_port())
        });
        let drops: Vec<Drop> = drops.take(MAX_STAGED_REPORTS).collect();
        if !drops.is_empty() {
            self.reporter.passed(drops);
        }
    }
}

/// The verdict of a program on a connection.
fn verdict(program: &Program, link: &Link) -> Verdict {
    let Link { from, to, .. } = *link;
    match named_port(link) {
        None => program.verdict_without_ports(from, to),
        Some((protocol, port)) => program.verdict(&Flow { from, to, protocol, port }),
    }
}

/// The direction whose rules deny a connection.
fn denied_direction(program: &Program, link: &Link) -> Option<Direction> {
    if verdict(program, link) == Verdict::Allow {
        return None;
    }
    let Link { from, to, .. } = *link;
    let Some((protocol, port)) = named_port(link) else { return Some(Direction::Ingress) };
    let flow = Flow { from, to, protocol, port };
    [Direction::Egress, Direction::Ingress]
        .into_iter()
        .find(|direction| program.side(&flow, *direction) == Verdict::Deny)
}

fn named_port(link: &Link) -> Option<(Protocol, u16)> {
    Protocol::from_number(link.protocol).zip(link.port)
}
