use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
};

use weir_datapath::{
    ApplyError, ApplyErrorKind, ConntrackUse, Datapath, Diagnostics, Drift, EndingFlows,
    Established, FastLaneState, Guard, Mode, PacketPath, TerminateFlows,
};
use weir_model::{IpFamily, Protocol};
use weir_netfilter::{BlockedReply, Tuple};

use crate::{
    EbpfPlanner, Installed, MapPlan, MapStep, Tables, Write,
    counters::{cut_connections, denied_packets},
    digest::{Digest, digest},
    drift::Comparison,
    fast_lane::{self, FastLane},
    kernel::{Installation, Kernel, KernelError},
    layout::{Config, FlowEntry, Identity, MapId, PodEntry, flow_element},
    program,
    sys::Map,
};

/// eBPF programs in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Ebpf {
    kernel: Kernel,
    mode: Mode,
    established: Established,
    /// The installation that plans refer to, with its number.
    current: Option<(u32, Installation)>,
    /// The installations that lost names. Their programs run until they are detached.
    orphans: Vec<Installation>,
    /// The replies that a replaced datapath blocked, until the maps have their connections.
    inherited: BTreeSet<BlockedReply>,
    /// How far the elements of the maps were compared with the planned ones.
    comparison: Comparison,
    /// Whether the maps have elements that this agent did not write. Then new maps replace them.
    has_foreign: bool,
    /// Whether programs with unknown epochs remembered connections. Then new maps do not have them.
    has_unknown_flows: bool,
    cut: CutConnections,
    /// `None` if all packets go the normal way.
    lane: Option<FastLane>,
    conntrack: ConntrackUse,
}

/// The connections that changes cut.
#[derive(Debug, Default)]
struct CutConnections {
    /// The counter of the current programs as it was read last; `None` before it was read.
    counter: Option<u64>,
    /// The connections that were not reported yet.
    unreported: u64,
}

type Maps = BTreeMap<MapId, Map>;

fn failed(what: &'static str) -> impl Fn(KernelError) -> ApplyError {
    move |error| ApplyError {
        kind: ApplyErrorKind::Unavailable,
        what: what.into(),
        source: error.into(),
    }
}

fn failed_io(what: &'static str) -> impl Fn(io::Error) -> ApplyError {
    move |error| ApplyError {
        kind: ApplyErrorKind::Unavailable,
        what: what.into(),
        source: error.into(),
    }
}

impl Ebpf {
    /// Opens eBPF in the calling thread's network namespace, and checks that the kernel has what the
    /// programs need. It does not change installed rules.
    pub fn open(mode: Mode) -> Result<Self, ApplyError> {
        let kernel = Kernel::open().map_err(failed("cannot open eBPF"))?;
        kernel.check_features().map_err(failed("cannot open eBPF"))?;
        let (orphans, inherited) = (Vec::new(), BTreeSet::new());
        let established = Established::Cut;
        let (comparison, cut) = (Comparison::default(), CutConnections::default());
        let (current, has_foreign, has_unknown_flows, lane) = (None, false, false, None);
        Ok(Ebpf {
            kernel,
            mode,
            established,
            current,
            orphans,
            inherited,
            comparison,
            has_foreign,
            has_unknown_flows,
            cut,
            lane,
            conntrack: ConntrackUse::Unknown,
        })
    }

    /// Lets packets between pods of the node take the fast lane. The calling thread must be the one that
    /// opened the datapath.
    pub fn with_fast_lane(self) -> Result<Self, ApplyError> {
        let lane = FastLane::open().map_err(failed_io("cannot open the fast lane"))?;
        Ok(Ebpf { lane: Some(lane), ..self })
    }

    /// Keeps the fast lane equal to the rules and the links of the node, or removes it.
    fn maintain_lane(&mut self) -> Result<(), ApplyError> {
        let current = self.current.as_ref().map(|(number, rules)| (*number, &rules.maps));
        match (&mut self.lane, current) {
            (Some(lane), Some((number, maps))) => lane.maintain(&self.kernel, number, maps),
            (Some(_), None) => Ok(()),
            (None, _) => fast_lane::remove(&self.kernel),
        }
        .map_err(failed_io("cannot remove the fast lane"))
    }

    /// Sets what happens to connections that a change forbids.
    #[must_use]
    pub fn with_established(self, established: Established) -> Self {
        Ebpf { established, ..self }
    }

    /// Blocks replies of connections that a replaced datapath terminated.
    #[must_use]
    pub fn with_blocked_replies(self, inherited: BTreeSet<BlockedReply>) -> Self {
        Ebpf { inherited, ..self }
    }

    /// The replies of connections that were cut, for a datapath that replaces this one.
    pub fn blocked_replies(&self) -> Result<BTreeSet<BlockedReply>, ApplyError> {
        let numbers = self.kernel.installations().map_err(failed("cannot list the rules"))?;
        let Some(maps) = numbers.last().and_then(|number| self.kernel.maps(*number)) else {
            return Ok(BTreeSet::new());
        };
        let read = || {
            let mut replies = BTreeSet::new();
            for family in IpFamily::BOTH {
                let Some(map) = maps.get(&MapId::Flows(family)) else { continue };
                let elements = map.elements()?;
                let flows = elements.iter();
                let flows = flows.filter_map(|(key, one)| FlowEntry::from_bytes(family, key, one));
                // A reply of ICMP never opens a connection.
                let has_ports = |flow: &FlowEntry| Protocol::from_number(flow.protocol).is_some();
                replies.extend(flows.filter(|one| one.is_cut && has_ports(one)).map(blocked_reply));
            }
            Ok(replies)
        };
        read().map_err(failed_io("cannot read the connections"))
    }

    /// Adds the connections whose replies a replaced datapath blocked. They are of an earlier epoch, so
    /// the program evaluates them with each packet, for the end that began them.
    fn add_inherited(&mut self, maps: &Maps, config: &Config) -> io::Result<()> {
        for BlockedReply { protocol, tuple } in mem::take(&mut self.inherited) {
            let (server, client) =
                ((tuple.source, tuple.source_port), (tuple.destination, tuple.destination_port));
            let epoch = config.epoch.wrapping_sub(1);
            // The time is far ahead, and its upper bit marks a cut connection: the program forgets it
            // only when the map is full.
            let (key, value) = flow_element(client, server, protocol, epoch, u64::MAX);
            let map = maps.get(&MapId::Flows(IpFamily::from(tuple.source)));
            map.ok_or(io::ErrorKind::NotFound)?.update(&key, &value)?;
        }
        Ok(())
    }

    /// The digest of the programs that this version of weir loads into this kernel.
    fn programs(&self) -> Digest {
        let programs = IpFamily::BOTH.map(|family| {
            let features = self.kernel.features();
            let program = program::program(family, features);
            let all = program.into_iter().chain(program::lane_program(family, features.clock));
            all.map(|instruction| instruction.to_string()).collect::<Vec<_>>()
        });
        digest(&programs)
    }

    fn replace(&mut self, tables: &Tables, capacity: u32) -> Result<(), ApplyError> {
        if self.has_unknown_flows {
            self.kernel.forget_flows().map_err(failed("cannot remove the connections"))?;
        }
        let maps = self.kernel.create_maps(capacity).map_err(failed("cannot create maps"))?;
        fill(&maps, tables).map_err(failed_io("cannot fill a map"))?;
        let added = self.add_inherited(&maps, &tables.config);
        added.map_err(failed_io("cannot block replies"))?;
        let list = || self.kernel.installations().map_err(failed("cannot list the rules"));
        let old = list()?;
        let number = old.last().map_or(1, |last| last.wrapping_add(1));
        let installed = self.kernel.install(number, maps);
        let installed = installed.map_err(failed("cannot install the programs"))?;
        // The counter of the replaced programs ends here.
        let counted = self.count_cut();
        self.current = Some((number, installed));
        self.cut.counter = Some(0);
        (self.has_foreign, self.has_unknown_flows) = (false, false);
        if let Some(lane) = &mut self.lane {
            lane.set_pods(tables);
        }
        // Before the old rules end, so that no packet of the lane meets them later.
        self.maintain_lane()?;
        counted.map_err(failed_io("cannot read counters"))?;
        for orphan in self.orphans.drain(..) {
            orphan.detach().map_err(failed("cannot remove the old programs"))?;
        }
        for number in old {
            let removed = self.kernel.remove_installation(number);
            removed.map_err(failed("cannot remove the old programs"))?;
        }
        Ok(())
    }

    /// Reads how many connections were cut. Those that were cut before this agent started do not count.
    fn count_cut(&mut self) -> io::Result<()> {
        let Some((_, installation)) = &self.current else { return Ok(()) };
        let counter = cut_connections(&installation.maps)?;
        if let Some(known) = self.cut.counter.replace(counter) {
            self.cut.unreported += counter.saturating_sub(known);
        }
        Ok(())
    }

    fn write(&self, writes: &[&Write]) -> Result<(), ApplyError> {
        if writes.is_empty() {
            return Ok(());
        }
        let Some((_, installation)) = &self.current else {
            return Err(failed_io("cannot write a map")(io::ErrorKind::NotFound.into()));
        };
        perform(&installation.maps, writes).map_err(failed_io("cannot write a map"))
    }
}

impl Datapath for Ebpf {
    type Planner = EbpfPlanner;

    fn planner(&self) -> EbpfPlanner {
        let planner = EbpfPlanner::new(self.mode, self.programs());
        match self.established {
            Established::Cut => planner,
            Established::Keep => planner.keeping_established(),
        }
    }

    fn installed(&mut self) -> Result<Installed, ApplyError> {
        self.conntrack = self.kernel.conntrack_use();
        self.count_cut().map_err(failed_io("cannot read counters"))?;
        let current = self.current.take().map(|(_, installation)| installation);
        self.orphans.extend(current.filter(|installation| !installation.has_names()));
        let numbers = self.kernel.installations().map_err(failed("cannot list the rules"))?;
        if numbers.is_empty() && self.orphans.is_empty() {
            return Ok(Installed::default());
        }
        let readable = numbers.iter().rev().find_map(|number| {
            let maps = self.kernel.maps(*number)?;
            let tables = read_tables(&maps).ok()??;
            Some((*number, maps, tables))
        });
        // The programs of maps that cannot be read may have remembered connections in any epoch.
        let newest = numbers.last().copied();
        self.has_unknown_flows =
            readable.as_ref().is_none_or(|(number, ..)| Some(*number) != newest);
        let Some((number, maps, tables)) = readable else {
            return Ok(Installed { tables: Some(Tables::default()), ..Installed::default() });
        };
        let capacity = maps.get(&MapId::Decisions).map_or(0, |map| map.declaration().max_entries);
        let current = self.kernel.with_links(number, maps);
        let is_attached = current.as_ref().map(|one| self.kernel.is_attached(one)).transpose();
        let is_attached = is_attached.map_err(failed("cannot check the programs"))?;
        let is_intact = numbers.len() == 1 && is_attached == Some(true) && !self.has_foreign;
        self.current = current.map(|one| (number, one));
        if let Some(lane) = &mut self.lane {
            lane.set_pods(&tables);
        }
        self.comparison = Comparison::default();
        self.cut.counter = None;
        self.count_cut().map_err(failed_io("cannot read counters"))?;
        Ok(Installed { tables: Some(tables), is_intact, capacity })
    }

    fn apply(&mut self, plan: &MapPlan) -> Result<(), ApplyError> {
        let mut writes = Vec::new();
        let mut has_pods = false;
        for step in &plan.steps {
            if let (Some(lane), MapStep::Write(write)) = (&mut self.lane, step) {
                has_pods |= lane.observe(write);
            }
            if let MapStep::Write(write) = step {
                writes.push(write);
                continue;
            }
            self.write(&mem::take(&mut writes))?;
            match step {
                MapStep::Replace(tables, capacity) => self.replace(tables, *capacity)?,
                MapStep::Wait => weir_netfilter::wait_for_packets(),
                MapStep::Write(_) => (),
            }
        }
        self.write(&writes)?;
        if has_pods { self.maintain_lane() } else { Ok(()) }
    }

    fn drift(&mut self, planner: &EbpfPlanner) -> Result<Drift, ApplyError> {
        self.conntrack = self.kernel.conntrack_use();
        self.maintain_lane()?;
        let Some((number, installation)) = &self.current else { return Ok(Drift::Changed) };
        let numbers = self.kernel.installations().map_err(failed("cannot list the rules"))?;
        if numbers != [*number] || !installation.has_names() {
            return Ok(Drift::Changed);
        }
        let is_attached = self.kernel.is_attached(installation);
        if !is_attached.map_err(failed("cannot check the programs"))? {
            return Ok(Drift::Changed);
        }
        let compared = self.comparison.next_are_equal(&installation.maps, planner.tables());
        if !compared.map_err(failed_io("cannot read a map"))? {
            self.has_foreign = true;
            return Ok(Drift::Changed);
        }
        Ok(Drift::None)
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        let current = self.current.take().map(|(_, installation)| installation);
        for installation in current.into_iter().chain(self.orphans.drain(..)) {
            installation.detach().map_err(failed("cannot remove the programs"))?;
        }
        self.kernel.remove().map_err(failed("cannot remove the programs"))
    }

    fn denied(&mut self) -> Result<Vec<u64>, ApplyError> {
        let Some((_, installation)) = &self.current else { return Ok(Vec::new()) };
        denied_packets(&installation.maps).map_err(failed_io("cannot read counters"))
    }

    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<EbpfPlanner>> {
        Some(self)
    }

    fn respect_guard(&mut self, guard: &Guard) -> Result<(), ApplyError> {
        let is_new = self.lane.as_mut().is_some_and(|lane| lane.bind(guard));
        if is_new { self.maintain_lane() } else { Ok(()) }
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics<EbpfPlanner>> {
        Some(self)
    }
}

impl Diagnostics<EbpfPlanner> for Ebpf {
    fn warnings(&self, _: &EbpfPlanner) -> Vec<String> {
        self.lane.iter().filter_map(FastLane::warning).collect()
    }

    fn rule_count(&self) -> Option<usize> {
        None
    }

    fn packet_path(&self) -> Option<PacketPath> {
        let fast_lane = self.lane.as_ref().map_or(FastLaneState::Off, FastLane::state);
        Some(PacketPath { conntrack: self.conntrack, fast_lane })
    }
}

impl TerminateFlows<EbpfPlanner> for Ebpf {
    /// Starts a new epoch. The program evaluates each connection again with its next packet.
    fn terminate(
        &mut self,
        planner: &mut EbpfPlanner,
        _: &EndingFlows<'_>,
    ) -> Result<usize, ApplyError> {
        let write = planner.next_epoch();
        self.write(&[&write])?;
        Ok(0)
    }

    fn ended_since(&mut self) -> Result<usize, ApplyError> {
        self.count_cut().map_err(failed_io("cannot read counters"))?;
        Ok(usize::try_from(mem::take(&mut self.cut.unreported)).unwrap_or(usize::MAX))
    }
}

/// The replies of a connection.
fn blocked_reply(flow: FlowEntry) -> BlockedReply {
    let FlowEntry { client, server, protocol, .. } = flow;
    let (source, source_port) = server;
    let (destination, destination_port) = client;
    BlockedReply { protocol, tuple: Tuple { source, destination, source_port, destination_port } }
}

/// Reads the content of the maps; `None` if a part has another layout.
pub(crate) fn read_tables(maps: &Maps) -> io::Result<Option<Tables>> {
    let mut tables = Tables::default();
    for (id, map) in maps.iter().filter(|(id, _)| id.is_table() && **id != MapId::Pods) {
        for (key, value) in map.elements()?.iter() {
            let Some(write) = Write::decode(*id, key, value) else { return Ok(None) };
            tables.apply(&write);
        }
    }
    // The map of pods is an array, and most of its elements are unused.
    let used: BTreeSet<u32> = tables.addresses.values().filter_map(Identity::pod).collect();
    let pods = maps.get(&MapId::Pods).ok_or(io::ErrorKind::NotFound)?;
    for number in used {
        let entry = pods.lookup(&number.to_ne_bytes())?;
        let Some(entry) = entry.and_then(|bytes| PodEntry::from_bytes(&bytes)) else {
            return Ok(None);
        };
        tables.pods.insert(number, entry);
    }
    Ok(Some(tables))
}

/// Writes all elements to maps that no program reads yet.
fn fill(maps: &Maps, tables: &Tables) -> io::Result<()> {
    let mut elements: BTreeMap<MapId, (Vec<u8>, Vec<u8>)> = BTreeMap::new();
    for write in tables.writes() {
        let (map, key, value) = write.encode();
        let (keys, values) = elements.entry(map).or_default();
        keys.extend(key);
        values.extend(value.unwrap_or_default());
    }
    for (map, (keys, values)) in elements {
        maps.get(&map).ok_or(io::ErrorKind::NotFound)?.update_all(&keys, &values)?;
    }
    Ok(())
}

/// Performs writes in order. Adjacent writes that give elements of one map a value share a call.
fn perform(maps: &Maps, mut writes: &[&Write]) -> io::Result<()> {
    while let [first, rest @ ..] = writes {
        let (map, mut keys, value) = first.encode();
        let opened = maps.get(&map).ok_or(io::ErrorKind::NotFound)?;
        writes = rest;
        let Some(mut values) = value else {
            opened.delete(&keys)?;
            continue;
        };
        let mut count = 1;
        while let [next, rest @ ..] = writes
            && next.has_value()
            && next.map() == map
        {
            let (_, key, value) = next.encode();
            keys.extend(key);
            values.extend(value.unwrap_or_default());
            (writes, count) = (rest, count + 1);
        }
        match count {
            1 => opened.update(&keys, &values)?,
            _ => opened.update_all(&keys, &values)?,
        }
    }
    Ok(())
}
