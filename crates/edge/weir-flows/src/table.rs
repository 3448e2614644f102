//! The flows of a node, aggregated within a fixed amount of memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::Arc,
};

use hashbrown::HashTable;
use jiff::Timestamp;

use crate::{
    DecidingRule, FlowRecord, FlowVerdict, RecordEnd, SCHEMA, Sampling, SamplingSource,
    uses::RuleUses,
};

/// The end of the list of slots.
const NONE: u32 = u32::MAX;
/// The number of slots by which the table grows. Doubling could take twice the memory.
const GROWTH: usize = 4096;

/// The flows of a node. The flow that changed last is the last one in order.
#[derive(Debug)]
pub struct FlowTable {
    node: Arc<str>,
    limits: FlowLimits,
    hasher: RandomState,
    /// The slot of each key.
    index: HashTable<u32>,
    slots: Vec<Slot>,
    /// The slots of the flows that changed first and last.
    oldest: u32,
    newest: u32,
    /// The number of the last change.
    last: u64,
    evicted: u64,
    /// The connections of all flows, by verdict.
    connections: [u64; FlowVerdict::ALL.len()],
    /// The number of flows of each workload of this node.
    counts: BTreeMap<Arc<WorkloadName>, usize>,
    /// Equal decisions, stored once.
    decisions: BTreeSet<Arc<Decision>>,
    uses: RuleUses,
}

/// The most that a table stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// The most flows. The flow that changed first makes room for a new one.
    pub flows: usize,
    /// The most flows of one workload of this node. Its further flows share one record per
    /// protocol, verdict and direction, so that a workload cannot displace the flows of others.
    pub per_workload: usize,
}

impl Default for FlowLimits {
    fn default() -> Self {
        FlowLimits { flows: 100_000, per_workload: 10_000 }
    }
}

/// The name of a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadName {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The kind, such as `Deployment`.
    pub kind: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

/// One end of an aggregated flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowPeer {
    /// Pods of a workload.
    Workload(Arc<WorkloadName>),
    /// An address of no pod.
    Address(IpAddr),
    /// All ends beyond the limit of a workload.
    Others,
}

/// Identifies an aggregated flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The source.
    pub from: FlowPeer,
    /// The destination.
    pub to: FlowPeer,
    /// The number of the IP protocol.
    pub protocol: u8,
    /// The destination port, if the protocol has ports.
    pub port: Option<u16>,
    /// What happened to the connections.
    pub verdict: FlowVerdict,
}

/// Connections of one flow.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The flow.
    pub key: FlowKey,
    /// Whether the rules of this node apply to the source; otherwise to the destination.
    pub is_from_here: bool,
    /// The pods of the last connection.
    pub pods: (Option<Arc<str>>, Option<Arc<str>>),
    /// The time, in milliseconds since 1970.
    pub time: u64,
    /// The number of new connections.
    pub connections: u64,
    /// The packets and bytes of connections that ended, if the kernel counts them.
    pub traffic: Option<Traffic>,
}

/// The packets and bytes of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The packets.
    pub packets: u64,
    /// The bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Adds the packets and bytes of another connection.
    pub fn add(&mut self, other: Traffic) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// The rules that decided about a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decision {
    /// The policies and rules.
    pub rules: Vec<DecidingRule>,
    /// The number of isolating policies that `rules` leaves out.
    pub more_policies: usize,
}

#[derive(Debug)]
struct Slot {
    key: FlowKey,
    is_from_here: bool,
    pods: (Option<Arc<str>>, Option<Arc<str>>),
    first: u64,
    last: u64,
    connections: u64,
    traffic: Option<Traffic>,
    /// Whether earlier connections may be missing: the flow may have made room for another one.
    is_partial: bool,
    decision: Arc<Decision>,
    /// The version of the rules that made the decision.
    rules: u64,
    /// The number of the last change.
    number: u64,
    older: u32,
    newer: u32,
}

/// Some flows in the order of their last change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowsSince {
    /// The flows.
    pub flows: Vec<FlowRecord>,
    /// The number to continue from.
    pub last: u64,
    /// Whether there are further flows.
    pub more: bool,
}

/// How the numbers of connections are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completeness {
    /// Whether the kernel reported all connections.
    pub connections: bool,
    /// Where allowed connections come from.
    pub source: SamplingSource,
    /// The most reports of denied packets per second and source address.
    pub denied_per_second: u32,
}

impl FlowTable {
    /// A table for the flows of a node.
    pub fn new(node: &str, limits: FlowLimits) -> Self {
        let limits = FlowLimits { flows: limits.flows.clamp(1, NONE as usize - 1), ..limits };
        FlowTable {
            node: node.into(),
            limits,
            hasher: RandomState::new(),
            index: HashTable::new(),
            slots: Vec::new(),
            oldest: NONE,
            newest: NONE,
            last: 0,
            evicted: 0,
            connections: [0; FlowVerdict::ALL.len()],
            counts: BTreeMap::new(),
            decisions: BTreeSet::new(),
            uses: RuleUses::default(),
        }
    }

    /// The number of flows.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of the last change.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The number of flows that made room for others.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The connections of all flows with this verdict, also of those that made room for others.
    pub fn connections(&self, verdict: FlowVerdict) -> u64 {
        self.connections.get(verdict as usize).copied().unwrap_or_default()
    }

    /// The uses of policies and rules.
    pub fn uses(&self) -> &RuleUses {
        &self.uses
    }

    /// Forgets the uses of other policies.
    pub fn retain_uses(&mut self, is_kept: impl FnMut(&DecidingRule) -> bool) {
        self.uses.retain(is_kept);
    }

    /// Adds connections. `decide` computes the deciding rules of a flow that is new, or whose
    /// decision other rules made.
    pub fn observe(
        &mut self,
        mut observed: Observation,
        rules: u64,
        decide: impl FnOnce() -> Decision,
    ) {
        let mut hash = self.hasher.hash_one(&observed.key);
        let mut found = self.find(hash, &observed.key);
        if found.is_none() && self.is_at_limit(&observed) {
            observed.fold();
            self.uses.set_incomplete();
            hash = self.hasher.hash_one(&observed.key);
            found = self.find(hash, &observed.key);
        }
        let is_stale = |at: u32| self.slot(at).is_none_or(|slot| slot.rules != rules);
        let needs_decision = found.is_none_or(is_stale) && !observed.is_folded();
        let decision = needs_decision.then(|| self.intern(decide()));
        let at = match found {
            Some(at) => {
                self.unlink(at);
                at
            }
            None => self.insert(hash, &observed),
        };
        self.last += 1;
        let (number, older) = (self.last, self.newest);
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        slot.last = slot.last.max(observed.time);
        slot.first = slot.first.min(observed.time);
        slot.pods = observed.pods;
        slot.connections = slot.connections.saturating_add(observed.connections);
        if let Some(traffic) = observed.traffic {
            slot.traffic.get_or_insert_default().add(traffic);
        }
        if let Some(decision) = decision {
            (slot.decision, slot.rules) = (decision, rules);
        }
        (slot.number, slot.older, slot.newer) = (number, older, NONE);
        if let Some(sum) = self.connections.get_mut(slot.key.verdict as usize) {
            *sum = sum.saturating_add(observed.connections);
        }
        if observed.connections > 0 {
            self.uses.count(&slot.decision, observed.connections, observed.time);
        }
        match self.slots.get_mut(older as usize) {
            Some(older) => older.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    /// The flows that changed after a change, the first of them first.
    pub fn since(&self, number: u64, limit: usize, complete: Completeness) -> FlowsSince {
        // A number from the future belongs to an earlier agent.
        let number = if number > self.last { 0 } else { number };
        let mut changed = Vec::new();
        let mut at = self.newest;
        while let Some(slot) = self.slot(at).filter(|slot| slot.number > number) {
            changed.push(slot);
            at = slot.older;
        }
        let more = changed.len() > limit;
        let some: Vec<&Slot> = changed.into_iter().rev().take(limit).collect();
        let last = some.last().map_or(self.last, |slot| slot.number);
        let flows = some.into_iter().map(|slot| self.record(slot, complete)).collect();
        FlowsSince { flows, last, more }
    }

    fn record(&self, slot: &Slot, complete: Completeness) -> FlowRecord {
        let FlowKey { from, to, protocol, port, verdict } = &slot.key;
        let sampling = match verdict {
            FlowVerdict::Deny => Sampling {
                source: SamplingSource::Reports,
                complete: false,
                limit_per_second: Some(complete.denied_per_second),
            },
            FlowVerdict::Allow | FlowVerdict::Audit => Sampling {
                source: complete.source,
                complete: complete.connections && !slot.is_partial,
                limit_per_second: None,
            },
        };
        FlowRecord {
            schema_version: SCHEMA.into(),
            node: self.node.to_string(),
            verdict: *verdict,
            from: from.to_record(slot.pods.0.as_ref()),
            to: to.to_record(slot.pods.1.as_ref()),
            protocol: protocol_name(*protocol),
            port: *port,
            policies: slot.decision.rules.clone(),
            more_policies: slot.decision.more_policies,
            first_seen: rfc3339(slot.first),
            last_seen: rfc3339(slot.last),
            connections: slot.connections,
            packets: slot.traffic.map(|traffic| traffic.packets),
            bytes: slot.traffic.map(|traffic| traffic.bytes),
            sampling,
        }
    }

    fn slot(&self, at: u32) -> Option<&Slot> {
        self.slots.get(at as usize)
    }

    fn find(&self, hash: u64, key: &FlowKey) -> Option<u32> {
        let is_it = |at: &u32| self.slot(*at).is_some_and(|slot| slot.key == *key);
        self.index.find(hash, is_it).copied()
    }

    /// Whether the workload of this node has as many flows as it may have.
    fn is_at_limit(&self, observed: &Observation) -> bool {
        let count = observed.account().and_then(|workload| self.counts.get(workload));
        count.is_some_and(|count| *count >= self.limits.per_workload)
    }

    fn intern(&mut self, decision: Decision) -> Arc<Decision> {
        if let Some(known) = self.decisions.get(&decision) {
            return known.clone();
        }
        // Decisions that no flow has any more are removed whenever there are many of them.
        if self.decisions.len() > 2 * self.slots.len() + GROWTH {
            self.decisions.retain(|decision| Arc::strong_count(decision) > 1);
        }
        let decision = Arc::new(decision);
        self.decisions.insert(decision.clone());
        decision
    }

    /// Takes a slot for a new flow: the one of the oldest flow if the table is full.
    fn insert(&mut self, hash: u64, observed: &Observation) -> u32 {
        if let Some(workload) = observed.account() {
            *self.counts.entry(workload.clone()).or_default() += 1;
        }
        let slot = Slot {
            key: observed.key.clone(),
            is_from_here: observed.is_from_here,
            pods: (None, None),
            first: observed.time,
            last: observed.time,
            connections: 0,
            traffic: None,
            is_partial: self.evicted > 0,
            decision: Arc::default(),
            rules: u64::MAX,
            number: 0,
            older: NONE,
            newer: NONE,
        };
        let at = if self.slots.len() < self.limits.flows {
            if self.slots.len() == self.slots.capacity() {
                self.slots.reserve_exact(GROWTH.min(self.limits.flows - self.slots.len()));
            }
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
        } else {
            let at = self.oldest;
            self.remove(at);
            if let Some(place) = self.slots.get_mut(at as usize) {
                *place = slot;
            }
            at
        };
        let FlowTable { index, slots, hasher, .. } = self;
        index.insert_unique(hash, at, |at| match slots.get(*at as usize) {
            Some(slot) => hasher.hash_one(&slot.key),
            None => 0,
        });
        at
    }

    /// Takes a flow out of the order and of the index. Its slot stays.
    fn remove(&mut self, at: u32) {
        self.unlink(at);
        self.evicted += 1;
        let Some(slot) = self.slots.get(at as usize) else { return };
        let hash = self.hasher.hash_one(&slot.key);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == at) {
            entry.remove();
        }
        let (from, to) = (&slot.key.from, &slot.key.to);
        if let FlowPeer::Workload(workload) = if slot.is_from_here { from } else { to }
            && let Some(count) = self.counts.get_mut(workload)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(workload);
            }
        }
    }

    fn unlink(&mut self, at: u32) {
        let Some(slot) = self.slot(at) else { return };
        let (older, newer) = (slot.older, slot.newer);
        match self.slots.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
    }
}

impl Observation {
    /// The workload of this node that the flow counts for.
    fn account(&self) -> Option<&Arc<WorkloadName>> {
        let FlowKey { from, to, .. } = &self.key;
        match if self.is_from_here { from } else { to } {
            FlowPeer::Workload(workload) => Some(workload),
            FlowPeer::Address(_) | FlowPeer::Others => None,
        }
    }

    /// Whether the connections count for a flow that unites several, about which different rules
    /// decide.
    fn is_folded(&self) -> bool {
        [&self.key.from, &self.key.to].contains(&&FlowPeer::Others)
    }

    /// Counts the connections for the flow that unites all others of its workload.
    fn fold(&mut self) {
        let FlowKey { from, to, port, .. } = &mut self.key;
        let (other, pod) =
            if self.is_from_here { (to, &mut self.pods.1) } else { (from, &mut self.pods.0) };
        (*other, *pod, *port) = (FlowPeer::Others, None, None);
    }
}

impl FlowPeer {
    fn to_record(&self, pod: Option<&Arc<str>>) -> RecordEnd {
        match self {
            FlowPeer::Workload(workload) => RecordEnd::Workload {
                namespace: workload.namespace.to_string(),
                kind: workload.kind.to_string(),
                name: workload.name.to_string(),
                pod: pod.map(ToString::to_string).unwrap_or_default(),
            },
            FlowPeer::Address(address) => RecordEnd::Address { address: address.to_string() },
            FlowPeer::Others => RecordEnd::Others { others: true },
        }
    }
}

/// The name of a protocol number, or the number.
fn protocol_name(number: u8) -> String {
    match number {
        1 => "ICMP".into(),
        6 => "TCP".into(),
        17 => "UDP".into(),
        58 => "ICMPv6".into(),
        132 => "SCTP".into(),
        other => other.to_string(),
    }
}

/// A time in milliseconds since 1970 in RFC 3339, in UTC.
pub(crate) fn rfc3339(millis: u64) -> String {
    let millis = i64::try_from(millis).unwrap_or_default();
    format!("{:.3}", Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests;
