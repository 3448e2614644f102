//! The fast lane: packets between pods of the node, from one link into the other.
//!
//! ```text
//!   /sys/fs/bpf/weir-<inode>-<cookie>/lane/…                 its maps, and a link for each pod and family
//!   /sys/fs/bpf/weir-<inode>-<cookie>/rules-<number>/lane4   its programs, with the maps of the rules
//! ```
//!
//! The lane follows the links of the node, not the policies: its programs use the maps of the rules.
//! The kernel can replace the program of these links, so a packet meets the old rules or the new ones.
//!
//! *Invariant*: the named programs use the named maps. The names of the programs are removed before
//! those of the maps.
//!
//! *Invariant*: a packet that the lane does not handle goes the normal way. So removing a part of the
//! lane allows nothing and denies nothing.

mod dump;
mod names;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
};

use weir_datapath::{FastLaneState, Guard, Tunnel};
use weir_inspect::{PodLinks, TranslationWatch};
use weir_model::{IpFamily, Name};
use weir_netfilter::LinkWatch;

pub use dump::{LoadedLane, LoadedLaneLink};
pub(crate) use names::{LaneNames, remove};

use crate::{
    Tables, Write,
    kernel::Kernel,
    layout::{Identity, LaneSettings, MapId, address_key, lane_value},
    program,
    sys::{self, Map, ProgramKind},
};

type Maps = BTreeMap<MapId, Map>;

/// The fast lane of a node.
#[derive(Debug)]
pub(crate) struct FastLane {
    pod_links: PodLinks,
    node_links: LinkWatch,
    translation: TranslationWatch,
    /// The ports of the node's tunnels.
    tunnels: BTreeSet<u16>,
    /// The links of pairs, by name.
    pairs: BTreeMap<Name, u32>,
    /// The addresses that the guard allows at a link, for links that it checks.
    bound: BTreeMap<Name, BTreeSet<IpAddr>>,
    /// The addresses of pods of the node.
    pods: BTreeSet<IpAddr>,
    /// The programs, with the number of the rules that they use.
    programs: Option<(u32, Programs)>,
    state: LaneState,
}

/// Whether packets take the lane.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LaneState {
    /// Those of this number of links do.
    Open(usize),
    /// None does, until the cause is gone.
    Failed(String),
    /// None does until the agent starts again.
    Left(String),
}

/// A program for each family, with its number in the kernel.
type Programs = BTreeMap<IpFamily, (OwnedFd, u32)>;

impl FastLane {
    /// Opens the lane in the network namespace of the calling thread. It writes nothing.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(FastLane {
            pod_links: PodLinks::open()?,
            node_links: LinkWatch::open().map_err(io::Error::other)?,
            translation: TranslationWatch::open()?,
            tunnels: BTreeSet::new(),
            pairs: BTreeMap::new(),
            bound: BTreeMap::new(),
            pods: BTreeSet::new(),
            programs: None,
            state: LaneState::Open(0),
        })
    }

    /// Whether packets take the lane, for the status of the agent.
    pub(crate) fn state(&self) -> FastLaneState {
        match &self.state {
            LaneState::Open(links) => FastLaneState::On { links: *links },
            LaneState::Failed(_) => FastLaneState::Failed,
            LaneState::Left(_) => FastLaneState::Refused,
        }
    }

    /// Why packets do not take the lane, for the status of the agent.
    pub(crate) fn warning(&self) -> Option<String> {
        match &self.state {
            LaneState::Open(0) if self.pods.len() > 1 => {
                Some("the fast lane is empty: no pod of this node has a routed veth link".into())
            }
            LaneState::Open(_) => None,
            LaneState::Failed(cause) | LaneState::Left(cause) => {
                Some(format!("the fast lane is off, all packets go the normal way: {cause}"))
            }
        }
    }

    /// Takes over the pods of installed rules.
    pub(crate) fn set_pods(&mut self, tables: &Tables) {
        let pods = tables.addresses.iter().filter(|(_, identity)| identity.pod().is_some());
        self.pods = pods.map(|(address, _)| *address).collect();
    }

    /// Takes over a change of the rules. Returns whether it concerns a pod of the node.
    pub(crate) fn observe(&mut self, write: &Write) -> bool {
        match write {
            Write::Address(address, Some(Identity::Pod(_))) => self.pods.insert(*address),
            Write::Address(address, _) => self.pods.remove(address),
            _ => false,
        }
    }

    /// Takes over the links that the guard checks. Returns whether they changed.
    pub(crate) fn bind(&mut self, guard: &Guard) -> bool {
        let is_new = self.bound != guard.links;
        self.bound.clone_from(&guard.links);
        is_new
    }

    /// Makes the lane equal to the links of the node and the installed rules. Fails only if the lane
    /// cannot be removed after another failure.
    pub(crate) fn maintain(
        &mut self,
        kernel: &Kernel,
        number: u32,
        rules: &Maps,
    ) -> io::Result<()> {
        if let LaneState::Left(_) = self.state {
            return remove(kernel);
        }
        let translation = &mut self.translation;
        self.state = match kernel.in_namespace(|| translation.find()) {
            Ok(Some(found)) => LaneState::Left(format!(
                "{found} can translate addresses of Services, whose replies must not skip it; remove kube-proxy and restart the agent, or leave out --fast-lane"
            )),
            Ok(None) => match self.reconcile(kernel, number, rules) {
                Ok(count) => LaneState::Open(count),
                Err(error) => LaneState::Failed(error.to_string()),
            },
            Err(error) => LaneState::Failed(format!("cannot search for translations: {error}")),
        };
        match &self.state {
            LaneState::Open(_) => Ok(()),
            LaneState::Failed(_) | LaneState::Left(_) => {
                self.programs = None;
                remove(kernel)
            }
        }
    }

    /// Returns the number of links.
    fn reconcile(&mut self, kernel: &Kernel, number: u32, rules: &Maps) -> io::Result<usize> {
        let mut addresses = self.pod_links.find(self.pods.iter().copied())?;
        if let Some(links) = self.node_links.read_changed().map_err(io::Error::other)? {
            let port = |tunnel: &Tunnel| match tunnel {
                Tunnel::Udp(port) => Some(*port),
                // The lane has no packets of other protocols.
                Tunnel::Protocol(_) => None,
            };
            self.tunnels = links.tunnels.iter().filter_map(port).collect();
            self.pairs = links.pairs;
        }
        // The guard drops other addresses, so they go the normal way.
        for (link, own) in &self.bound {
            let Some(index) = self.pairs.get(link) else { continue };
            addresses.retain(|address, link| link != index || own.contains(address));
        }
        let names = LaneNames::new(kernel);
        let (maps, is_new) = names.maps()?;
        if is_new {
            self.programs = None;
        }
        write_settings(&maps, &LaneSettings::for_tunnels(&self.tunnels))?;
        write_addresses(&maps, &addresses)?;
        if self.programs.as_ref().is_none_or(|(known, _)| *known != number) {
            let loaded = programs(kernel, &names, number, [rules, &maps])?;
            self.programs = Some((number, loaded));
        }
        let Some((_, programs)) = &self.programs else { return Ok(0) };
        let links: BTreeSet<u32> = addresses.values().copied().collect();
        for index in &links {
            for (family, (program, id)) in programs {
                let existing = names.link(*family, *index).filter(|link| link.index == *index);
                match existing {
                    Some(link) if link.program == *id => (),
                    Some(link) => sys::update_link(link.fd.as_fd(), program.as_fd())?,
                    None => {
                        let attach = || sys::attach_to_link(program.as_fd(), *index);
                        match kernel.in_namespace(attach) {
                            Ok(fd) => names.keep(*family, *index, fd.as_fd())?,
                            // The link has just gone.
                            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => (),
                            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                                return Err(io::Error::other("it needs Linux 6.6 (tcx links)"));
                            }
                            Err(error) => return Err(error),
                        }
                    }
                }
            }
        }
        names.remove_other_links(&links)?;
        Ok(links.len())
    }
}

/// The programs that use the maps of an installation. An earlier agent may have loaded them.
fn programs(
    kernel: &Kernel,
    names: &LaneNames<'_>,
    number: u32,
    maps: [&Maps; 2],
) -> io::Result<Programs> {
    let mut programs = Programs::new();
    for family in IpFamily::BOTH {
        let path = names.program(number, family);
        let fd = match sys::open_pinned(&path) {
            Ok(fd) => fd,
            Err(_) => {
                let code = program::lane_program(family, kernel.features().clock);
                let loaded = kernel.load_with(ProgramKind::LinkIngress, family, &code, maps);
                let loaded = loaded.map_err(io::Error::other)?;
                sys::pin(loaded.as_fd(), &path)?;
                loaded
            }
        };
        let [_, id, ..] = sys::object_info(fd.as_fd())?;
        programs.insert(family, (fd, id));
    }
    Ok(programs)
}

fn map(maps: &Maps, id: MapId) -> io::Result<&Map> {
    maps.get(&id).ok_or(io::ErrorKind::NotFound.into())
}

fn write_settings(maps: &Maps, settings: &LaneSettings) -> io::Result<()> {
    let (map, key, value) =
        (map(maps, MapId::LaneSettings)?, 0_u32.to_ne_bytes(), settings.to_bytes());
    if map.lookup(&key)?.as_ref() == Some(&value) { Ok(()) } else { map.update(&key, &value) }
}

/// Makes the maps contain exactly these addresses with their links.
fn write_addresses(maps: &Maps, addresses: &BTreeMap<IpAddr, u32>) -> io::Result<()> {
    for family in IpFamily::BOTH {
        let map = map(maps, MapId::Lane(family))?;
        let ours = addresses.iter().filter(|(address, _)| IpFamily::from(**address) == family);
        let mut desired: BTreeMap<Vec<u8>, Vec<u8>> = ours
            .map(|(address, link)| {
                (address_key(*address), lane_value(*address, *link).to_ne_bytes().to_vec())
            })
            .collect();
        for (key, value) in map.elements()?.iter() {
            match desired.get(key) {
                None => map.delete(key)?,
                Some(other) if other == value => _ = desired.remove(key),
                Some(_) => (),
            }
        }
        for (key, value) in desired {
            map.update(&key, &value)?;
        }
    }
    Ok(())
}
