use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use weir_datapath::{
    ApplyError, ApplyErrorKind, Datapath, Drift, EndingFlows, Established, Mode, TerminateFlows,
};
use weir_model::{IpFamily, Protocol};
use weir_netfilter::BlockedReply;

use crate::{
    EbpfPlanner, Installed, MapPlan, MapStep, Tables, Write,
    digest::{Digest, digest},
    kernel::{Installation, Kernel, KernelError},
    layout::{
        CAUSES, Config, Decision, Identity, MapId, PodEntry, PortPrefix, TierAction, flow_element,
    },
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
    /// Opens eBPF in the calling thread's network namespace. It reads and writes nothing.
    pub fn open(mode: Mode) -> Result<Self, ApplyError> {
        let kernel = Kernel::open().map_err(failed("cannot open eBPF"))?;
        let (orphans, inherited) = (Vec::new(), BTreeSet::new());
        let established = Established::Cut;
        Ok(Ebpf { kernel, mode, established, current: None, orphans, inherited })
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

    /// Adds the connections whose replies a replaced datapath blocked. They are of an earlier epoch, so
    /// the program evaluates them with each packet, for the end that began them.
    fn add_inherited(&mut self, maps: &Maps, config: &Config) -> io::Result<()> {
        for BlockedReply { protocol, tuple } in mem::take(&mut self.inherited) {
            let (server, client) =
                ((tuple.source, tuple.source_port), (tuple.destination, tuple.destination_port));
            let epoch = config.epoch.wrapping_sub(1);
            // The time is far ahead: the program forgets it only when the map is full.
            let (key, value) = flow_element(client, server, protocol, epoch, u64::MAX >> 1);
            let map = maps.get(&MapId::Flows(IpFamily::from(tuple.source)));
            map.ok_or(io::ErrorKind::NotFound)?.update(&key, &value)?;
        }
        Ok(())
    }

    /// The digest of the programs that this version of weir loads into this kernel.
    fn programs(&self) -> Digest {
        let programs = IpFamily::BOTH.map(|family| {
            let program = program::program(family, self.kernel.features());
            program.iter().map(ToString::to_string).collect::<Vec<_>>()
        });
        digest(&programs)
    }

    fn replace(&mut self, tables: &Tables, capacity: u32) -> Result<(), ApplyError> {
        let maps = self.kernel.create_maps(capacity).map_err(failed("cannot create maps"))?;
        for write in tables.writes() {
            perform(&maps, &write).map_err(failed_io("cannot fill a map"))?;
        }
        let added = self.add_inherited(&maps, &tables.config);
        added.map_err(failed_io("cannot block replies"))?;
        let list = || self.kernel.installations().map_err(failed("cannot list the rules"));
        let old = list()?;
        let number = old.last().map_or(1, |last| last.wrapping_add(1));
        let installed = self.kernel.install(number, maps);
        let installed = installed.map_err(failed("cannot install the programs"))?;
        self.current = Some((number, installed));
        for orphan in self.orphans.drain(..) {
            orphan.detach().map_err(failed("cannot remove the old programs"))?;
        }
        for number in old {
            let removed = self.kernel.remove_installation(number);
            removed.map_err(failed("cannot remove the old programs"))?;
        }
        Ok(())
    }

    fn write(&self, write: &Write) -> Result<(), ApplyError> {
        let Some((_, installation)) = &self.current else {
            return Err(failed_io("cannot write a map")(io::ErrorKind::NotFound.into()));
        };
        perform(&installation.maps, write).map_err(failed_io("cannot write a map"))
    }
}

fn perform(maps: &Maps, write: &Write) -> io::Result<()> {
    let (map, key, value) = write.encode();
    let map = maps.get(&map).ok_or(io::ErrorKind::NotFound)?;
    match value {
        Some(value) => map.update(&key, &value),
        None => map.delete(&key),
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
        let Some((number, maps, tables)) = readable else {
            // Nothing is known about the epochs of the connections.
            self.kernel.forget_flows().map_err(failed("cannot remove the connections"))?;
            return Ok(Installed { tables: Some(Tables::default()), ..Installed::default() });
        };
        let capacity = maps.get(&MapId::Decisions).map_or(0, Map::capacity);
        self.current = self.kernel.with_links(number, maps).map(|one| (number, one));
        let is_intact = numbers.len() == 1 && self.current.is_some();
        Ok(Installed { tables: Some(tables), is_intact, capacity })
    }

    fn apply(&mut self, plan: &MapPlan) -> Result<(), ApplyError> {
        for step in &plan.steps {
            match step {
                MapStep::Replace(tables, capacity) => self.replace(tables, *capacity)?,
                MapStep::Write(write) => self.write(write)?,
                MapStep::Wait => weir_netfilter::wait_for_packets(),
            }
        }
        Ok(())
    }

    fn drift(&mut self, planner: &EbpfPlanner) -> Result<Drift, ApplyError> {
        let Some((number, installation)) = &self.current else { return Ok(Drift::Changed) };
        let numbers = self.kernel.installations().map_err(failed("cannot list the rules"))?;
        if numbers != [*number] || !installation.has_names() {
            return Ok(Drift::Changed);
        }
        // The settings, and the addresses and rules of the pods of this node.
        let tables = planner.tables();
        let pods = tables.addresses.iter().filter_map(|(address, identity)| match identity {
            Identity::Kind(_) => None,
            Identity::Pod(number) => Some([
                Write::Address(*address, Some(*identity)),
                Write::Pod(*number, *tables.pods.get(number)?),
            ]),
        });
        for write in pods.flatten().chain([Write::Config(tables.config)]) {
            let (map, key, value) = write.encode();
            let found = installation.maps.get(&map).map(|map| map.lookup(&key));
            let found = found.transpose().map_err(failed_io("cannot read a map"))?.flatten();
            if found != value {
                return Ok(Drift::Changed);
            }
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
        let Some(map) = installation.maps.get(&MapId::Denied) else { return Ok(Vec::new()) };
        let count = |cause: u32| {
            let value = map.lookup(&cause.to_ne_bytes())?.unwrap_or_default();
            let counts = value
                .chunks_exact(8)
                .filter_map(|count| Some(u64::from_ne_bytes(count.try_into().ok()?)));
            Ok(counts.sum())
        };
        (0..CAUSES).map(count).collect::<io::Result<_>>().map_err(failed_io("cannot read counters"))
    }

    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<EbpfPlanner>> {
        Some(self)
    }
}

impl TerminateFlows<EbpfPlanner> for Ebpf {
    /// Starts a new epoch. The program evaluates each connection again with its next packet, so the
    /// number of connections that end is not known.
    fn terminate(
        &mut self,
        planner: &mut EbpfPlanner,
        _: &EndingFlows<'_>,
    ) -> Result<usize, ApplyError> {
        let write = planner.next_epoch();
        self.write(&write)?;
        Ok(0)
    }
}

/// Reads the content of the maps; `None` if a part has another layout.
fn read_tables(maps: &Maps) -> io::Result<Option<Tables>> {
    let mut tables = Tables::default();
    for (id, map) in maps {
        if matches!(id, MapId::Flows(_) | MapId::Denied) {
            continue;
        }
        for (key, value) in map.elements()? {
            if read_element(&mut tables, *id, &key, &value).is_none() {
                return Ok(None);
            }
        }
    }
    // The map of pods is an array: numbers that no address has are empty or unused.
    let is_used =
        |number: &u32| tables.addresses.values().any(|one| *one == Identity::Pod(*number));
    let used: Vec<u32> = tables.pods.keys().copied().filter(is_used).collect();
    tables.pods.retain(|number, _| used.contains(number));
    Ok(Some(tables))
}

fn read_element(tables: &mut Tables, map: MapId, key: &[u8], value: &[u8]) -> Option<()> {
    let word =
        |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let double = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    let address = |bytes: &[u8]| -> Option<IpAddr> {
        match bytes.len() {
            4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
            _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        }
    };
    match map {
        MapId::Config => tables.config = Config::from_bytes(value)?,
        MapId::Addresses(_) => {
            let identity = Identity::from_number(double(value)? as u32);
            tables.addresses.insert(address(key)?, identity);
        }
        MapId::Networks(_) => {
            let length = u8::try_from(word(key, 0)?).ok()?;
            let net = IpNet::new(address(key.get(4..)?)?, length).ok()?;
            tables.networks.insert(net, word(value, 0)?);
        }
        MapId::Pods => {
            tables.pods.insert(word(key, 0)?, PodEntry::from_bytes(value)?);
        }
        MapId::Decisions => {
            let (key, value) = (double(key)?, double(value)?);
            let decision = Decision::from_number((value & 0xff_ffff) as u32);
            tables.decisions.insert(((key >> 24) as u32, (key & 0xff_ffff) as u32), decision);
        }
        MapId::Ports => {
            let protocol = u16::from_ne_bytes(key.get(8..10)?.try_into().ok()?);
            let protocol = Protocol::from_number(u8::try_from(protocol).ok()?)?;
            let first = u16::from_be_bytes(key.get(10..12)?.try_into().ok()?);
            let bits = u8::try_from(word(key, 0)?.checked_sub(48)?).ok()?;
            let prefix = PortPrefix { list: word(key, 4)?, protocol, first, bits };
            tables.ports.insert(prefix, TierAction::from_number(word(value, 0)?));
        }
        MapId::Kinds => _ = tables.kinds.insert(word(key, 0)?, value.try_into().ok()?),
        MapId::Tiers => _ = tables.tiers.insert(word(key, 0)?, value.try_into().ok()?),
        MapId::Flows(_) | MapId::Denied => (),
    }
    Some(())
}
