//! The loaded programs, links and maps, for administrators.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::PathBuf,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use weir_datapath::{ApplyError, ApplyErrorKind};
use weir_model::{IpFamily, Protocol};

use crate::{
    Tables,
    apply::read_tables,
    counters::{cut_connections, denied_packets},
    fast_lane::LoadedLane,
    kernel::{Kernel, KernelError, Link},
    layout::{FlowEntry, MapId, MapType},
    program::TickClock,
    sys::{self, Map},
};

/// Everything that is loaded in a network namespace.
#[derive(Debug)]
pub struct Dump {
    /// The folder of the names.
    pub folder: PathBuf,
    /// Whether the kernel lets the programs read the connections of conntrack.
    pub reads_conntrack: bool,
    /// The installed rules. While they are replaced, there are two.
    pub rules: Vec<LoadedRules>,
    /// The maps that outlive a replacement of rules.
    pub maps: Vec<LoadedMap>,
    /// The connections that passed, with the time since their last packet.
    pub flows: Vec<(FlowEntry, Duration)>,
    /// The fast lane, if there is one.
    pub lane: Option<LoadedLane>,
}

/// Programs with their maps.
#[derive(Debug)]
pub struct LoadedRules {
    /// The number in the name of their folder.
    pub number: u32,
    /// Where the programs run.
    pub links: Vec<LoadedLink>,
    /// The programs.
    pub programs: Vec<LoadedProgram>,
    /// The maps.
    pub maps: Vec<LoadedMap>,
    /// The content of the maps; `None` if a part has another layout.
    pub tables: Option<Tables>,
    /// The denied packets: by ingress rules, by egress rules, and replies of cut connections.
    pub denied: Vec<u64>,
    /// The connections that changes cut.
    pub cut: u64,
}

/// A program at a hook.
#[derive(Debug)]
pub struct LoadedLink {
    /// The name: hook and family.
    pub name: String,
    /// The number in the kernel.
    pub id: u32,
    /// The number of the program in the kernel.
    pub program: u32,
    /// The priority at the hook.
    pub priority: i32,
}

/// A program.
#[derive(Debug)]
pub struct LoadedProgram {
    /// The name.
    pub name: String,
    /// The number in the kernel.
    pub id: u32,
    /// How many instructions the kernel runs.
    pub instructions: u32,
    /// The bytes of memory, if the kernel says so.
    pub memory: Option<u64>,
}

/// A map.
#[derive(Debug)]
pub struct LoadedMap {
    /// The name.
    pub name: String,
    /// The number in the kernel.
    pub id: u32,
    /// The type, as bpftool calls it.
    pub map_type: &'static str,
    /// The bytes of a key.
    pub key_size: u32,
    /// The bytes of a value.
    pub value_size: u32,
    /// The most elements.
    pub capacity: u32,
    /// The number of elements, if it varies.
    pub elements: Option<usize>,
    /// The bytes of memory, if the kernel says so.
    pub memory: Option<u64>,
}

impl Dump {
    /// Reads what is loaded in the network namespace of this thread; `None` if nothing is.
    pub fn read() -> Result<Option<Dump>, ApplyError> {
        let kernel = Kernel::open().map_err(failed)?;
        let numbers = kernel.installations().map_err(failed)?;
        if numbers.is_empty() {
            return Ok(None);
        }
        let mut dump = Dump {
            folder: kernel.folder().to_owned(),
            reads_conntrack: kernel.features().conntrack,
            rules: Vec::new(),
            maps: Vec::new(),
            flows: Vec::new(),
            lane: LoadedLane::read(&kernel).map_err(unreadable)?,
        };
        for number in numbers {
            let Some(maps) = kernel.maps(number) else { continue };
            let (own, shared) = loaded_maps(&maps).map_err(unreadable)?;
            dump.maps = shared;
            dump.flows = flows(&maps, kernel.features().clock).map_err(unreadable)?;
            let programs = kernel.programs(number).into_iter().map(|(name, fd)| {
                let [_, id, _, _, _, bytes, ..] = sys::object_info(fd.as_fd())?;
                let memory = memory(fd.as_fd());
                Ok(LoadedProgram { name, id, instructions: bytes / 8, memory })
            });
            let programs = programs.collect::<io::Result<_>>().map_err(unreadable)?;
            let links = kernel.links(number).iter().map(loaded_link).collect();
            let denied = denied_packets(&maps).map_err(unreadable)?;
            let cut = cut_connections(&maps).map_err(unreadable)?;
            let tables = read_tables(&maps).map_err(unreadable)?;
            let maps = own;
            dump.rules.push(LoadedRules { number, links, programs, maps, tables, denied, cut });
        }
        Ok(Some(dump))
    }
}

fn failed(error: KernelError) -> ApplyError {
    let (kind, what) = (ApplyErrorKind::Unavailable, "cannot read the loaded programs".into());
    ApplyError { kind, what, source: error.into() }
}

fn unreadable(error: io::Error) -> ApplyError {
    failed(KernelError::Io { action: "read a map".into(), source: error })
}

fn loaded_link(link: &Link) -> LoadedLink {
    LoadedLink { name: link.name(), id: link.id, program: link.program, priority: link.priority }
}

/// The maps of rules, and the shared ones.
fn loaded_maps(maps: &BTreeMap<MapId, Map>) -> io::Result<(Vec<LoadedMap>, Vec<LoadedMap>)> {
    let (mut own, mut shared) = (Vec::new(), Vec::new());
    for (id, map) in maps {
        let declaration = map.declaration();
        let map_type = match declaration.map_type {
            MapType::Hash => "hash",
            MapType::Array => "array",
            MapType::PercpuArray => "percpu_array",
            MapType::LruHash => "lru_hash",
            MapType::LpmTrie => "lpm_trie",
            MapType::RingBuffer => "ringbuf",
        };
        let varies =
            matches!(declaration.map_type, MapType::Hash | MapType::LruHash | MapType::LpmTrie);
        let [_, number, ..] = sys::object_info(map.as_fd())?;
        let loaded = LoadedMap {
            name: id.to_string(),
            id: number,
            map_type,
            key_size: declaration.key_size,
            value_size: declaration.value_size,
            capacity: declaration.max_entries,
            elements: varies.then(|| map.elements()).transpose()?.map(|all| all.iter().count()),
            memory: memory(map.as_fd()),
        };
        if id.is_shared() { shared.push(loaded) } else { own.push(loaded) }
    }
    Ok((own, shared))
}

/// The connections, sorted.
fn flows(maps: &BTreeMap<MapId, Map>, clock: TickClock) -> io::Result<Vec<(FlowEntry, Duration)>> {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    );
    let mut flows = Vec::new();
    for family in IpFamily::BOTH {
        let Some(map) = maps.get(&MapId::Flows(family)) else { continue };
        for (key, value) in map.elements()?.iter() {
            let flow = FlowEntry::from_bytes(family, key, value);
            flows.extend(flow.map(|flow| (flow, clock.age(now, flow.time))));
        }
    }
    flows.sort_unstable();
    Ok(flows)
}

/// The memory of an object, from its entry in /proc.
fn memory(object: BorrowedFd<'_>) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", object.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.folder.display())?;
        let reads = if self.reads_conntrack { "read if present" } else { "not readable" };
        writeln!(f, "  conntrack: {reads}")?;
        for map in &self.maps {
            writeln!(f, "  {map}")?;
        }
        for rules in &self.rules {
            writeln!(f, "\nrules-{}", rules.number)?;
            for link in &rules.links {
                let LoadedLink { name, id, program, priority } = link;
                writeln!(f, "  link {name}: id {id}, program {program}, priority {priority}")?;
            }
            for LoadedProgram { name, id, instructions, memory } in &rules.programs {
                write!(f, "  {name}: id {id}, {instructions} instructions")?;
                writeln!(f, "{}", Memory(*memory))?;
            }
            for map in &rules.maps {
                writeln!(f, "  {map}")?;
            }
            let causes = ["ingress", "egress", "replies"].into_iter().zip(&rules.denied);
            let causes: Vec<String> =
                causes.map(|(cause, count)| format!("{cause} {count}")).collect();
            writeln!(f, "  denied packets: {}", causes.join(", "))?;
            writeln!(f, "  cut connections: {}", rules.cut)?;
            match &rules.tables {
                None => writeln!(f, "  the content of the maps is of another version of weir")?,
                Some(tables) => {
                    for write in tables.writes() {
                        writeln!(f, "  {write}")?;
                    }
                }
            }
        }
        self.lane.as_ref().map_or(Ok(()), |lane| lane.fmt(f))
    }
}

struct Memory(Option<u64>);

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(bytes) => write!(f, ", {} KiB", bytes.div_ceil(1024)),
        }
    }
}

impl fmt::Display for LoadedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoadedMap { name, id, map_type, capacity, elements, memory, .. } = self;
        write!(f, "map {name}: id {id}, {map_type}, ")?;
        match elements {
            Some(elements) => write!(f, "{elements} of {capacity} elements")?,
            None => write!(
                f,
                "{capacity} {}",
                if *map_type == "ringbuf" { "bytes" } else { "elements" }
            )?,
        }
        write!(f, "{}", Memory(*memory))
    }
}

impl fmt::Display for FlowEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlowEntry { client, server, protocol, epoch, is_cut, .. } = self;
        let end =
            |(address, port): (std::net::IpAddr, u16)| std::net::SocketAddr::new(address, port);
        write!(f, "{} -> {}, ", end(*client), end(*server))?;
        match Protocol::from_number(*protocol) {
            Some(protocol) => write!(f, "{protocol}")?,
            None => write!(f, "protocol {protocol}")?,
        }
        write!(f, ", epoch {epoch}")?;
        if *is_cut {
            f.write_str(", cut")?;
        }
        Ok(())
    }
}
