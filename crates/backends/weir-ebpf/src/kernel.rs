//! Programs, maps and links in the kernel, and their names in the BPF file system.
//!
//! ```text
//!   /sys/fs/bpf/weir-<inode>-<cookie>/flows4, flows6          the connections
//!   /sys/fs/bpf/weir-<inode>-<cookie>/rules-<number>/…        the other maps, and the links
//! ```
//!
//! The inode and the cookie are those of the network namespace. The kernel uses an inode again, but
//! not a cookie.
//!
//! The kernel cannot replace the program of a netfilter link. So other programs, or rules that do
//! not follow from the installed ones, are installed beside them, at another priority. Then the
//! old ones are removed. Meanwhile a packet passes only if both allow it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
};

use rustix::{fs::statfs, thread::LinkNameSpaceType};
use thiserror::Error;
use weir_model::IpFamily;

use crate::{
    btf::{Btf, BtfError},
    instruction::{Field, Kfunc, Resolve},
    layout::MapId,
    program::{self, Features, HookPoint},
    sys::{self, Map},
};

/// Where the BPF file system is mounted.
const BPFFS: &str = "/sys/fs/bpf";
const BPFFS_MAGIC: i64 = 0xcafe_4a11;
const NAMESPACE: &str = "/proc/thread-self/ns/net";
const BTF: &str = "/sys/kernel/btf/vmlinux";

const KFUNCS: [Kfunc; 3] = [Kfunc::DynptrFromSkb, Kfunc::DynptrSlice, Kfunc::ReadOnlyCast];
const FIELDS: [Field; 4] =
    [Field::Hook, Field::PacketType, Field::Conntrack, Field::ConntrackStatus];

/// Why the kernel cannot run the datapath, or rejected a part of it.
#[derive(Debug, Error)]
pub(crate) enum KernelError {
    #[error("no BPF file system is mounted at {BPFFS}: mount it, or use `--datapath nftables`")]
    NoFileSystem,
    #[error("this kernel has no type information ({BTF}): use `--datapath nftables`")]
    NoBtf(#[source] io::Error),
    #[error("this kernel lacks a feature (Linux 6.4 has all): use `--datapath nftables`")]
    Feature(#[from] BtfError),
    #[error("cannot use eBPF: run as root, or use `--datapath nftables`")]
    Permission(#[source] io::Error),
    #[error("the kernel rejects the program for {family}: {error}; the end of its log:\n{log}")]
    Program { family: IpFamily, error: io::Error, log: String },
    #[error("cannot {action}")]
    Io { action: String, source: io::Error },
}

fn failed(action: impl Into<String>) -> impl FnOnce(io::Error) -> KernelError {
    move |source| {
        if source.kind() == io::ErrorKind::PermissionDenied {
            return KernelError::Permission(source);
        }
        KernelError::Io { action: action.into(), source }
    }
}

/// The numbers of this kernel that programs need.
#[derive(Debug)]
struct KernelNumbers {
    kfuncs: BTreeMap<Kfunc, i32>,
    offsets: BTreeMap<Field, (i32, i16)>,
}

impl KernelNumbers {
    fn read() -> Result<Self, KernelError> {
        let bytes = fs::read(BTF).map_err(KernelError::NoBtf)?;
        let functions = KFUNCS.map(Kfunc::name);
        let btf = Btf::parse(&bytes, &functions, &FIELDS.map(Field::path))?;
        let mut kfuncs = BTreeMap::new();
        for kfunc in KFUNCS {
            kfuncs.insert(kfunc, btf.function(kfunc.name())?);
        }
        let number = |field: Field| {
            let (structure, member) = field.path();
            Ok::<_, BtfError>((btf.structure(structure)?, btf.member(structure, member)?))
        };
        let mut offsets = BTreeMap::new();
        for field in [Field::Hook, Field::PacketType] {
            offsets.insert(field, number(field)?);
        }
        // A kernel without conntrack has no services to translate.
        if let (Ok(packet), Ok(status)) = (number(Field::Conntrack), number(Field::ConntrackStatus))
        {
            offsets.extend([(Field::Conntrack, packet), (Field::ConntrackStatus, status)]);
        }
        Ok(KernelNumbers { kfuncs, offsets })
    }

    fn features(&self) -> Features {
        Features { conntrack: self.offsets.contains_key(&Field::Conntrack) }
    }
}

struct Linked<'a> {
    numbers: &'a KernelNumbers,
    maps: &'a BTreeMap<MapId, Map>,
}

impl Resolve<MapId> for Linked<'_> {
    fn map(&self, map: MapId) -> i32 {
        self.maps.get(&map).map_or(-1, |map| map.as_fd().as_raw_fd())
    }

    fn kfunc(&self, kfunc: Kfunc) -> i32 {
        self.numbers.kfuncs.get(&kfunc).copied().unwrap_or_default()
    }

    fn offset(&self, field: Field) -> i16 {
        self.numbers.offsets.get(&field).map_or(0, |(_, offset)| *offset)
    }

    fn struct_id(&self, field: Field) -> i32 {
        self.numbers.offsets.get(&field).map_or(0, |(id, _)| *id)
    }
}

/// The maps and links of one installation of the rules.
#[derive(Debug)]
pub(crate) struct Installation {
    pub(crate) maps: BTreeMap<MapId, Map>,
    /// They keep the programs attached even if their names are removed.
    links: Vec<OwnedFd>,
    path: PathBuf,
}

impl Installation {
    /// Stops its programs, also if their names were removed.
    pub(crate) fn detach(&self) -> Result<(), KernelError> {
        for link in &self.links {
            sys::detach(link.as_fd()).map_err(failed("detach a program"))?;
        }
        Ok(())
    }

    /// Whether its names still exist.
    pub(crate) fn has_names(&self) -> bool {
        let links = link_points().map(|(family, hook)| link_name(family, hook));
        links.chain(own_maps().map(|map| map.to_string())).all(|name| self.path.join(name).exists())
    }
}

/// The part of the kernel that belongs to one network namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    namespace: File,
    root: PathBuf,
    numbers: &'static KernelNumbers,
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

fn own_maps() -> impl Iterator<Item = MapId> {
    MapId::ALL.into_iter().filter(|map| !map.is_shared())
}

/// Where programs run, in the order in which they start: connections that the node begins are known
/// before their replies are filtered.
fn link_points() -> impl Iterator<Item = (IpFamily, HookPoint)> {
    let hooks = [HookPoint::Output, HookPoint::Input, HookPoint::Forward];
    hooks.into_iter().flat_map(|hook| IpFamily::BOTH.map(|family| (family, hook)))
}

fn link_name(family: IpFamily, hook: HookPoint) -> String {
    format!("{}{}", hook.name(), family.digit())
}

/// The priorities to try. Netfilter gives each number to one program only, and other programs use
/// round ones. Packets for the node come after IPVS, as in the nftables datapath.
fn priorities(hook: HookPoint) -> impl Iterator<Item = i32> {
    let first = match hook {
        HookPoint::Input => 101,
        HookPoint::Forward | HookPoint::Output => -31,
    };
    (0..8).map(move |number| first + 2 * number)
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
        Ok(Kernel { namespace, root, numbers })
    }

    pub(crate) fn features(&self) -> Features {
        self.numbers.features()
    }

    /// The numbers of the installations, in order.
    pub(crate) fn installations(&self) -> Result<Vec<u32>, KernelError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("read the names of the rules")(error)),
        };
        let number = |entry: io::Result<fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.strip_prefix("rules-")?.parse::<u32>().ok()
        };
        let mut numbers: Vec<u32> = entries.filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn path(&self, number: u32) -> PathBuf {
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

    /// An installation with its links; `None` if one of them is missing.
    pub(crate) fn with_links(
        &self,
        number: u32,
        maps: BTreeMap<MapId, Map>,
    ) -> Option<Installation> {
        let path = self.path(number);
        let links = link_points()
            .map(|(family, hook)| sys::open_pinned(&path.join(link_name(family, hook))).ok());
        Some(Installation { maps, links: links.collect::<Option<_>>()?, path })
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

    fn load(&self, family: IpFamily, maps: &BTreeMap<MapId, Map>) -> Result<OwnedFd, KernelError> {
        let linked = Linked { numbers: self.numbers, maps };
        let program = program::program(family, self.features());
        let code: Vec<u64> = program.iter().flat_map(|one| one.encode(&linked)).collect();
        let name = format!("weir_{}", family.digit());
        sys::load_program(&name, &code, program::LICENSE).map_err(|rejected| {
            if rejected.error.kind() == io::ErrorKind::PermissionDenied && rejected.log.is_empty() {
                return KernelError::Permission(rejected.error);
            }
            let lines: Vec<&str> = rejected.log.lines().collect();
            let log = lines[lines.len().saturating_sub(40)..].join("\n");
            KernelError::Program { family, error: rejected.error, log }
        })
    }

    /// Runs the programs with these maps. The maps must have their content.
    pub(crate) fn install(
        &self,
        number: u32,
        maps: BTreeMap<MapId, Map>,
    ) -> Result<Installation, KernelError> {
        let mut programs = BTreeMap::new();
        for family in IpFamily::BOTH {
            programs.insert(family, self.load(family, &maps)?);
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
    ) -> Result<Vec<OwnedFd>, KernelError> {
        fs::create_dir_all(path).map_err(failed("create a folder in the BPF file system"))?;
        for map in own_maps() {
            if let Some(opened) = maps.get(&map) {
                let named = sys::pin(opened.as_fd(), &path.join(map.to_string()));
                named.map_err(failed(format!("name the map {map}")))?;
            }
        }
        let mut links = Vec::new();
        for (family, hook) in link_points() {
            let program = programs.get(&family).expect("there is a program for each family");
            let link = self.attach_one(program.as_fd(), family, hook);
            let link = link
                .map_err(failed(format!("attach the program for {family} at {}", hook.name())))?;
            sys::pin(link.as_fd(), &path.join(link_name(family, hook)))
                .map_err(failed("name a link"))?;
            links.push(link);
        }
        Ok(links)
    }

    /// Attaches a program at the first free priority.
    fn attach_one(
        &self,
        program: BorrowedFd<'_>,
        family: IpFamily,
        hook: HookPoint,
    ) -> io::Result<OwnedFd> {
        let family = match family {
            IpFamily::V4 => 2,
            IpFamily::V6 => 10,
        };
        self.in_namespace(|| {
            let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
            for priority in priorities(hook) {
                match sys::attach(program, family, hook as u32, priority) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = error,
                    attached => return attached,
                }
            }
            Err(last)
        })
    }

    /// Calls a function in the network namespace of this datapath, on a thread of its own.
    fn in_namespace<T: Send>(&self, call: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let enter = || {
            rustix::thread::move_into_link_name_space(
                self.namespace.as_fd(),
                Some(LinkNameSpaceType::Network),
            )?;
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
        for map in MapId::ALL.into_iter().filter(|map| map.is_shared()) {
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
        for number in self.installations()? {
            self.remove_installation(number)?;
        }
        remove_folder(&self.root)
    }
}

/// Removes a folder of the BPF file system with its objects.
fn remove_folder(path: &Path) -> Result<(), KernelError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("remove names from the BPF file system")(error))
        }
        _ => Ok(()),
    }
}
