//! The maps and links of one installation of the rules, and their names.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use weir_model::IpFamily;

use super::{KernelError, failed};
use crate::{
    layout::MapId,
    program::HookPoint,
    sys::{self, Map},
};

/// The maps and links of one installation of the rules.
#[derive(Debug)]
pub(crate) struct Installation {
    pub(crate) maps: BTreeMap<MapId, Map>,
    /// They keep the programs attached even if their names are removed.
    pub(super) links: Vec<Link>,
    pub(super) path: PathBuf,
}

/// A program at a hook.
#[derive(Debug)]
pub(crate) struct Link {
    fd: OwnedFd,
    pub(crate) family: IpFamily,
    pub(crate) hook: HookPoint,
    pub(crate) priority: i32,
    /// The number of the link in the kernel.
    pub(crate) id: u32,
    /// The number of its program in the kernel.
    pub(crate) program: u32,
}

impl Link {
    pub(super) fn new(fd: OwnedFd, family: IpFamily, hook: HookPoint) -> io::Result<Self> {
        // The type, the numbers, then family, hook and priority.
        let [_, id, program, _, _, _, priority, ..] = sys::object_info(fd.as_fd())?;
        Ok(Link { fd, family, hook, priority: priority as i32, id, program })
    }

    pub(crate) fn name(&self) -> String {
        link_name(self.family, self.hook)
    }
}

impl Installation {
    /// Stops its programs, also if their names were removed.
    pub(crate) fn detach(&self) -> Result<(), KernelError> {
        for link in &self.links {
            sys::detach(link.fd.as_fd()).map_err(failed("detach a program"))?;
        }
        Ok(())
    }

    /// Whether its names still exist.
    pub(crate) fn has_names(&self) -> bool {
        let links = link_points().map(|(family, hook)| link_name(family, hook));
        links.chain(own_maps().map(|map| map.to_string())).all(|name| self.path.join(name).exists())
    }
}

pub(super) fn own_maps() -> impl Iterator<Item = MapId> {
    MapId::ALL.into_iter().filter(|map| !map.is_shared())
}

/// Where programs run, in the order in which they start: connections that the node begins are known
/// before their replies are filtered.
pub(super) fn link_points() -> impl Iterator<Item = (IpFamily, HookPoint)> {
    let hooks = [HookPoint::Output, HookPoint::Input, HookPoint::Forward];
    hooks.into_iter().flat_map(|hook| IpFamily::BOTH.map(|family| (family, hook)))
}

pub(super) fn link_name(family: IpFamily, hook: HookPoint) -> String {
    format!("{}{}", hook.name(), family.digit())
}

pub(super) fn program_name(family: IpFamily) -> String {
    format!("program{}", family.digit())
}
