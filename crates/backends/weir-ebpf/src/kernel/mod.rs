//! Programs, maps and links in the kernel, and their names in the BPF file system.
//!
//! ```text
//!   /sys/fs/bpf/weir-<inode>-<cookie>/flows4, flows6          the connections
//!   /sys/fs/bpf/weir-<inode>-<cookie>/rules-<number>/…        the other maps, programs and links
//! ```
//!
//! The inode and the cookie are those of the network namespace. The kernel uses an inode again, but
//! not a cookie.
//!
//! The kernel cannot replace the program of a netfilter link. So other programs, or rules that do
//! not follow from the installed ones, are installed beside them, at another priority. Then the
//! old ones are removed. Meanwhile a packet passes only if both allow it.

mod errors;
mod hooks;
mod installation;
mod numbers;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::IpAddr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
};

use rustix::{fs::statfs, thread::LinkNameSpaceType};
use weir_datapath::ConntrackUse;
use weir_model::IpFamily;

pub(crate) use errors::KernelError;
use errors::failed;
pub(crate) use installation::{Installation, Link};
use installation::{link_name, link_points, own_maps, program_name};
use numbers::{KernelNumbers, Linked};

use crate::{
    Write, fast_lane,
    instruction::Instruction,
    layout::{MapId, address_key},
    program::{self, Features},
    sys::{self, Map, ProgramKind, RingBuffer},
};

/// Where the BPF file system is mounted.
const BPFFS: &str = "/sys/fs/bpf";
const BPFFS_MAGIC: i64 = 0xcafe_4a11;
/// The number of connections that conntrack follows in the network namespace of the reader.
const CONNTRACK_COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// The part of the kernel that belongs to one network namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    namespace: File,
    root: PathBuf,
    numbers: &'static KernelNumbers,
    /// A program that accepts every packet, once it is loaded.
    probe: OnceLock<OwnedFd>,
}

/// The folder of the calling thread's network namespace.
fn root() -> io::Result<PathBuf> {
    let inode = fs::metadata(NAMESPACE)?.ino();
    let cookie = sys::network_namespace()?;
    Ok(Path::new(BPFFS).join(format!("weir-{inode}-{cookie}")))
}

/// Whether rules of this datapath are installed in the calling thread's network namespace.
pub fn is_installed() -> bool {
    root().is_ok_and(|root| root.exists())
}

/// Opens the reports of the calling thread's network namespace.
pub(crate) fn reports() -> io::Result<RingBuffer> {
    let map = MapId::Reports;
    let path = root()?.join(map.to_string());
    RingBuffer::open(&path, map.declaration(0).max_entries as usize)
}

/// The path of the connections of the calling thread's network namespace.
pub(crate) fn flow_table(family: IpFamily) -> io::Result<PathBuf> {
    Ok(root()?.join(MapId::Flows(family).to_string()))
}

/// Whether an address belongs to a pod of this node, by the rules in the calling thread's network
/// namespace.
pub(crate) fn is_pod_of_node(address: IpAddr) -> bool {
    let map = MapId::Addresses(IpFamily::from(address));
    let find = || {
        let root = root().ok()?;
        let number = installations(&root).ok()?.pop()?;
        let path = root.join(format!("rules-{number}")).join(map.to_string());
        let value =
            Map::open(&path, map.declaration(1)).ok()?.lookup(&address_key(address)).ok()??;
        let Write::Address(_, identity) = Write::decode(map, &address_key(address), &value)? else {
            return None;
        };
        identity?.pod()
    };
    find().is_some()
}

/// The numbers of the installations in a folder, in order.
fn installations(root: &Path) -> io::Result<Vec<u32>> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let number = |entry: io::Result<fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.strip_prefix("rules-")?.parse::<u32>().ok()
    };
    let mut numbers: Vec<u32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

impl Kernel {
    /// Opens the kernel in the calling thread's network namespace. Writes nothing.
    pub(crate) fn open() -> Result<Self, KernelError> {
        static NUMBERS: OnceLock<KernelNumbers> = OnceLock::new();
        let file_system = statfs(BPFFS).map_err(|_| KernelError::NoFileSystem)?;
        if file_system.f_type as i64 != BPFFS_MAGIC {
            return Err(KernelError::NoFileSystem);
        }
        let numbers = match NUMBERS.get() {
            Some(numbers) => numbers,
            None => {
                let read = KernelNumbers::read()?;
                NUMBERS.get_or_init(|| read)
            }
        };
        let namespace = File::open(NAMESPACE);
        let namespace = namespace.map_err(failed("open the network namespace"))?;
        let root = root().map_err(failed("read the number of the network namespace"))?;
        Ok(Kernel { namespace, root, numbers, probe: OnceLock::new() })
    }

    pub(crate) fn features(&self) -> Features {
        self.numbers.features()
    }

    /// The numbers of the installations, in order.
    pub(crate) fn installations(&self) -> Result<Vec<u32>, KernelError> {
        installations(&self.root).map_err(failed("read the names of the rules"))
    }

    /// The folder of an installation.
    pub(crate) fn path(&self, number: u32) -> PathBuf {
        self.root.join(format!("rules-{number}"))
    }

    /// Opens the maps of an installation; `None` if one of them is missing.
    pub(crate) fn maps(&self, number: u32) -> Option<BTreeMap<MapId, Map>> {
        let path = self.path(number);
        let mut maps = BTreeMap::new();
        for map in MapId::ALL {
            let folder = if map.is_shared() { &self.root } else { &path };
            maps.insert(map, Map::open(&folder.join(map.to_string()), map.declaration(1)).ok()?);
        }
        Some(maps)
    }

    /// The folder of the names.
    pub(crate) fn folder(&self) -> &Path {
        &self.root
    }

    /// The links of an installation that can be opened.
    pub(crate) fn links(&self, number: u32) -> Vec<Link> {
        let path = self.path(number);
        let link = |(family, hook)| {
            let fd = sys::open_pinned(&path.join(link_name(family, hook))).ok()?;
            Link::new(fd, family, hook).ok()
        };
        link_points().filter_map(link).collect()
    }

    /// The programs of an installation that can be opened, with their names.
    pub(crate) fn programs(&self, number: u32) -> Vec<(String, OwnedFd)> {
        let path = self.path(number);
        let names = IpFamily::BOTH.map(program_name).into_iter();
        names
            .filter_map(|name| Some((name.clone(), sys::open_pinned(&path.join(name)).ok()?)))
            .collect()
    }

    /// An installation with its links; `None` if one of them is missing.
    pub(crate) fn with_links(
        &self,
        number: u32,
        maps: BTreeMap<MapId, Map>,
    ) -> Option<Installation> {
        let links = self.links(number);
        let is_complete = links.len() == link_points().count();
        is_complete.then(|| Installation { maps, links, path: self.path(number) })
    }

    /// Creates the maps of a new installation.
    pub(crate) fn create_maps(&self, capacity: u32) -> Result<BTreeMap<MapId, Map>, KernelError> {
        fs::create_dir_all(&self.root).map_err(failed("create a folder in the BPF file system"))?;
        let mut maps = BTreeMap::new();
        for map in MapId::ALL {
            let declaration = map.declaration(capacity);
            let path = self.root.join(map.to_string());
            let existing = map.is_shared().then(|| Map::open(&path, declaration).ok()).flatten();
            let opened = match existing {
                Some(existing) => existing,
                None => {
                    let created = Map::create(&format!("weir_{map}"), declaration);
                    let created = created.map_err(failed(format!("create the map {map}")))?;
                    if map.is_shared() {
                        _ = fs::remove_file(&path);
                        sys::pin(created.as_fd(), &path)
                            .map_err(failed(format!("name the map {map}")))?;
                    }
                    created
                }
            };
            maps.insert(map, opened);
        }
        Ok(maps)
    }

    fn load(
        &self,
        family: IpFamily,
        program: &[Instruction<MapId>],
        maps: &BTreeMap<MapId, Map>,
    ) -> Result<OwnedFd, KernelError> {
        self.load_with(ProgramKind::Netfilter, family, program, [maps, &BTreeMap::new()])
    }

    /// Loads a program that uses the maps of the rules and those of the fast lane.
    pub(crate) fn load_with(
        &self,
        kind: ProgramKind,
        family: IpFamily,
        program: &[Instruction<MapId>],
        [maps, lane]: [&BTreeMap<MapId, Map>; 2],
    ) -> Result<OwnedFd, KernelError> {
        let linked = Linked { numbers: self.numbers, maps, lane };
        let code: Vec<u64> = program.iter().flat_map(|one| one.encode(&linked)).collect();
        let name = match kind {
            ProgramKind::Netfilter => format!("weir_{}", family.digit()),
            ProgramKind::LinkIngress => format!("weir_lane{}", family.digit()),
        };
        sys::load_program(kind, &name, &code, program::LICENSE)
            .map_err(|rejected| errors::load_failed(kind, family, rejected))
    }

    /// Runs the programs with these maps. The maps must have their content.
    pub(crate) fn install(
        &self,
        number: u32,
        maps: BTreeMap<MapId, Map>,
    ) -> Result<Installation, KernelError> {
        let mut programs = BTreeMap::new();
        for family in IpFamily::BOTH {
            let program = program::program(family, self.features());
            programs.insert(family, self.load(family, &program, &maps)?);
        }
        let path = self.path(number);
        let result = self.attach(&path, &maps, &programs);
        match result {
            Ok(links) => Ok(Installation { maps, links, path }),
            Err(error) => {
                self.remove_installation(number)?;
                Err(error)
            }
        }
    }

    fn attach(
        &self,
        path: &Path,
        maps: &BTreeMap<MapId, Map>,
        programs: &BTreeMap<IpFamily, OwnedFd>,
    ) -> Result<Vec<Link>, KernelError> {
        fs::create_dir_all(path).map_err(failed("create a folder in the BPF file system"))?;
        for map in own_maps() {
            if let Some(opened) = maps.get(&map) {
                let named = sys::pin(opened.as_fd(), &path.join(map.to_string()));
                named.map_err(failed(format!("name the map {map}")))?;
            }
        }
        for (family, program) in programs {
            let named = sys::pin(program.as_fd(), &path.join(program_name(*family)));
            named.map_err(failed("name a program"))?;
        }
        let mut links = Vec::new();
        for (family, hook) in link_points() {
            let program = programs.get(&family).expect("there is a program for each family");
            let fd = self.attach_one(program.as_fd(), family, hook)?;
            sys::pin(fd.as_fd(), &path.join(link_name(family, hook)))
                .map_err(failed("name a link"))?;
            links.push(Link::new(fd, family, hook).map_err(failed("read a link"))?);
        }
        Ok(links)
    }

    /// Whether conntrack follows connections in the network namespace. The programs themselves never
    /// need it.
    pub(crate) fn conntrack_use(&self) -> ConntrackUse {
        match self.in_namespace(|| fs::read_to_string(CONNTRACK_COUNT)) {
            Ok(count) => match count.trim().parse::<u64>() {
                Ok(0) => ConntrackUse::Idle,
                Ok(_) => ConntrackUse::Active,
                Err(_) => ConntrackUse::Unknown,
            },
            // Conntrack is not loaded.
            Err(error) if error.kind() == io::ErrorKind::NotFound => ConntrackUse::Idle,
            Err(_) => ConntrackUse::Unknown,
        }
    }

    /// Calls a function in the network namespace of this datapath, on a thread of its own.
    pub(crate) fn in_namespace<T: Send>(
        &self,
        call: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let enter = || {
            // CAP_SYS_ADMIN is needed to enter even the namespace that the thread is in.
            if fs::metadata(NAMESPACE)?.ino() != self.namespace.metadata()?.ino() {
                rustix::thread::move_into_link_name_space(
                    self.namespace.as_fd(),
                    Some(LinkNameSpaceType::Network),
                )?;
            }
            call()
        };
        let panicked = |_| io::Error::other("a thread panicked");
        thread::scope(|scope| scope.spawn(enter).join().map_err(panicked)?)
    }

    /// Detaches the programs of an installation and removes its names.
    pub(crate) fn remove_installation(&self, number: u32) -> Result<(), KernelError> {
        let path = self.path(number);
        for (family, hook) in link_points() {
            if let Ok(link) = sys::open_pinned(&path.join(link_name(family, hook))) {
                sys::detach(link.as_fd()).map_err(failed("detach a program"))?;
            }
        }
        remove_folder(&path)
    }

    /// Forgets the connections. Programs that still use the old map keep it.
    pub(crate) fn forget_flows(&self) -> Result<(), KernelError> {
        for map in IpFamily::BOTH.map(MapId::Flows) {
            match fs::remove_file(self.root.join(map.to_string())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("forget the connections")(error));
                }
                _ => (),
            }
        }
        Ok(())
    }

    /// Removes everything.
    pub(crate) fn remove(&self) -> Result<(), KernelError> {
        fast_lane::remove(self).map_err(failed("remove the fast lane"))?;
        for number in self.installations()? {
            self.remove_installation(number)?;
        }
        remove_folder(&self.root)
    }
}

/// Removes a folder of the BPF file system with its objects.
pub(crate) fn remove_folder(path: &Path) -> Result<(), KernelError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("remove names from the BPF file system")(error))
        }
        _ => Ok(()),
    }
}
