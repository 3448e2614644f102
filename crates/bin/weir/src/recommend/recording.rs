//! Recorded flows and drops.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::Deserializer;
use weir_flows::{FlowRecord, FlowVerdict, RecordEnd};
use weir_model::{Name, PodId, Protocol};
use weir_recommend::{Evidence, EvidenceKind, ObservedEnd, ObservedFlow};

use super::{declared::DeclaredFlows, workloads};
use crate::{
    drops::{self, DropVerdict, Dropped},
    failure::Failure,
    observe::{ClusterAgents, ObserveFilter, Reading, read_cluster},
    present::plain::Plain,
    source::Loaded,
};

/// The flows of recordings, each once, and the records that are no evidence.
pub(crate) struct Recording {
    /// The flows.
    pub(crate) flows: Vec<ObservedFlow>,
    /// The number of connections that manifests declare.
    pub(crate) declared: usize,
    /// Remarks about connections that manifests or agents do not show.
    pub(crate) remarks: Vec<String>,
    /// The number of records that were used.
    pub(crate) used: usize,
    /// The number of records of denied packets.
    pub(crate) denied: usize,
    /// The number of records without a port, such as ICMP.
    pub(crate) without_port: usize,
    /// The number of records without both ends, because an agent reached its limits.
    pub(crate) incomplete: usize,
    /// The pods and workloads of records that the input does not have.
    pub(crate) unknown: BTreeMap<String, usize>,
}

impl Recording {
    /// Adds the connections that manifests declare.
    pub(super) fn add_declared(&mut self, declared: DeclaredFlows) {
        self.declared = declared.flows.len();
        self.flows.extend(declared.flows);
        self.remarks.extend(declared.notes);
    }
}

/// The flows so far, by their ends and port.
pub(super) struct Reader<'a> {
    loaded: &'a Loaded,
    pods: BTreeMap<IpAddr, PodId>,
    flows: BTreeMap<FlowKey, ObservedFlow>,
    recording: Recording,
}

type FlowKey = (EvidenceKind, ObservedEnd, ObservedEnd, Protocol, u16);

impl<'a> Reader<'a> {
    pub(super) fn new(loaded: &'a Loaded) -> Self {
        let mut pods = BTreeMap::new();
        for pod in loaded.world.pods.values() {
            // A synthetic address says nothing about recorded packets.
            let own = pod.own_addresses().iter();
            for address in own.filter(|address| !loaded.synthetic.contains(address)) {
                pods.insert(*address, pod.id.clone());
            }
        }
        let recording = Recording {
            flows: Vec::new(),
            declared: 0,
            remarks: Vec::new(),
            used: 0,
            denied: 0,
            without_port: 0,
            incomplete: 0,
            unknown: BTreeMap::new(),
        };
        Reader { loaded, pods, flows: BTreeMap::new(), recording }
    }

    /// Reads flow records, one per line.
    pub(super) fn read_flows(&mut self, file: &str, bytes: &[u8]) -> anyhow::Result<()> {
        for record in weir_flows::read_records(bytes) {
            let record = record.map_err(|error| {
                let error = anyhow::Error::new(error).context(format!("cannot read {file}"));
                Failure::new(error, "give a file that `weir flows -o json` has written")
            })?;
            self.add_record(&record);
        }
        Ok(())
    }

    /// Reads the flows of all agents of a cluster, and the packets that passed in audit mode.
    pub(super) fn read_agents(
        &mut self,
        agents: &ClusterAgents,
        filter: &ObserveFilter,
    ) -> anyhow::Result<()> {
        let Reading { flows, mut messages } = read_cluster(agents, filter, None)?;
        flows.iter().for_each(|record| self.add_record(record));
        let (drops, more) = drops::read_cluster(agents, filter, Some(DropVerdict::Audit))?;
        drops.iter().for_each(|drop| self.add_drop(drop));
        messages.extend(more);
        if !messages.is_empty() {
            messages.push(
                "the policies deny connections that agents did not report: repeat the command when \
                 all agents report them"
                    .to_owned(),
            );
        }
        for message in messages {
            if !self.recording.remarks.contains(&message) {
                self.recording.remarks.push(message);
            }
        }
        Ok(())
    }

    /// Reads drops: pages, or one drop per line.
    pub(super) fn read_drops(&mut self, file: &str, bytes: &[u8]) -> anyhow::Result<()> {
        for value in Deserializer::from_slice(bytes).into_iter::<DropsInput>() {
            let value = value.map_err(|error| {
                let error = anyhow::Error::new(error).context(format!("cannot read {file}"));
                Failure::new(error, "give a file that `weir drops -o json` has written")
            })?;
            match value {
                DropsInput::Page { drops } => drops.iter().for_each(|drop| self.add_drop(drop)),
                DropsInput::Drop(drop) => self.add_drop(&drop),
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Recording {
        self.recording.flows = self.flows.into_values().collect();
        self.recording
    }

    fn add_record(&mut self, record: &FlowRecord) {
        let kind = match record.verdict {
            FlowVerdict::Allow => EvidenceKind::Flow,
            FlowVerdict::Audit => EvidenceKind::AuditDrop,
            FlowVerdict::Deny => {
                self.recording.denied += 1;
                return;
            }
        };
        let (Some(port), Some(protocol)) = (record.port, protocol(&record.protocol)) else {
            self.recording.without_port += 1;
            return;
        };
        let (Some(from), Some(to)) = (self.end(&record.from), self.end(&record.to)) else {
            return;
        };
        let count = (record.connections, record.last_seen.as_str());
        self.add(kind, (from, to), protocol, port, count);
    }

    fn add_drop(&mut self, drop: &Dropped) {
        if !drop.passed {
            self.recording.denied += 1;
            return;
        }
        let (Some(port), Some(protocol)) = (drop.to_port, protocol(&drop.protocol)) else {
            self.recording.without_port += 1;
            return;
        };
        let from = self.dropped_end(drop.from_pod.as_deref(), &drop.from);
        let to = self.dropped_end(drop.to_pod.as_deref(), &drop.to);
        let (Some(from), Some(to)) = (from, to) else { return };
        self.add(EvidenceKind::AuditDrop, (from, to), protocol, port, (1, &drop.time));
    }

    fn add(
        &mut self,
        kind: EvidenceKind,
        (from, to): (ObservedEnd, ObservedEnd),
        protocol: Protocol,
        port: u16,
        (connections, last_seen): (u64, &str),
    ) {
        self.recording.used += 1;
        for (to, port) in self.after_translation(to, protocol, port) {
            let names = [&from, &to].map(|end| self.name_of(end));
            let what = format!("{} to {}, port {port}/{protocol}", names[0], names[1]);
            // Only a time can be printed: the text is not trusted.
            let last_seen = last_seen.parse::<jiff::Timestamp>().ok();
            let evidence = Evidence {
                kind,
                what: what.into(),
                connections,
                last_seen: last_seen.map(|time| time.to_string().into()),
                location: None,
            };
            let key = (kind, from.clone(), to.clone(), protocol, port);
            let entry = self.flows.entry(key).or_insert_with(|| ObservedFlow {
                from: from.clone(),
                to,
                protocol,
                port,
                evidence: evidence.clone(),
            });
            entry.evidence.connections = entry.evidence.connections.max(connections);
            entry.evidence.last_seen = entry.evidence.last_seen.take().max(evidence.last_seen);
        }
    }

    /// The destination behind an address of a Service.
    fn after_translation(
        &self,
        to: ObservedEnd,
        protocol: Protocol,
        port: u16,
    ) -> Vec<(ObservedEnd, u16)> {
        let ObservedEnd::Address(address) = to else { return vec![(to, port)] };
        let world = &self.loaded.world;
        let service = world.services.values().find(|one| one.addresses.contains(&address));
        let is_this = |one: &&weir_model::ServicePort| one.protocol == protocol && one.port == port;
        let Some((service, found)) =
            service.and_then(|service| Some((service, service.ports.iter().find(is_this)?)))
        else {
            return vec![(to, port)];
        };
        let backends = service.backends(found, world).into_iter();
        let behind = backends.filter_map(|backend| match backend.pod {
            Some(pod) => Some((ObservedEnd::Pod(pod), backend.port?)),
            None => Some((ObservedEnd::Address(*backend.addresses.first()?), backend.port?)),
        });
        behind.collect()
    }

    fn end(&mut self, end: &RecordEnd) -> Option<ObservedEnd> {
        match end {
            RecordEnd::Workload { namespace, kind, name, pod } => {
                let id = PodId::new(namespace.as_str(), pod.as_str());
                let workload = format!("{namespace}/{}/{name}", kind.to_lowercase());
                let pods = self.loaded.workloads.get(&workload);
                let known = pods.and_then(|pods| pods.first().cloned());
                let found = if self.loaded.world.pods.contains_key(&id) { Some(id) } else { known };
                self.found(found, &workload)
            }
            RecordEnd::Address { address } => self.address(address),
            RecordEnd::Others { .. } => {
                self.recording.incomplete += 1;
                None
            }
        }
    }

    fn dropped_end(&mut self, pod: Option<&str>, address: &str) -> Option<ObservedEnd> {
        let Some(pod) = pod else { return self.address(address) };
        let id = pod.split_once('/').map(|(namespace, name)| PodId::new(namespace, name));
        let found = id.filter(|id| self.loaded.world.pods.contains_key(id));
        self.found(found, pod)
    }

    fn found(&mut self, pod: Option<PodId>, name: &str) -> Option<ObservedEnd> {
        if pod.is_none() {
            *self.recording.unknown.entry(Plain(name).to_string()).or_default() += 1;
        }
        pod.map(ObservedEnd::Pod)
    }

    fn address(&mut self, text: &str) -> Option<ObservedEnd> {
        let Ok(address) = text.parse::<IpAddr>() else {
            *self.recording.unknown.entry(Plain(text).to_string()).or_default() += 1;
            return None;
        };
        let pod = self.pods.get(&address).cloned();
        Some(pod.map_or(ObservedEnd::Address(address), ObservedEnd::Pod))
    }

    fn name_of(&self, end: &ObservedEnd) -> Name {
        match end {
            ObservedEnd::Pod(id) => workloads::name_of(self.loaded, id),
            ObservedEnd::Address(address) => address.to_string().into(),
        }
    }
}

fn protocol(name: &str) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol.to_string() == name)
}

/// A page of drops, or one drop.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "expected drops, as `weir drops -o json` prints them")]
enum DropsInput {
    Page { drops: Vec<Dropped> },
    Drop(Box<Dropped>),
}
