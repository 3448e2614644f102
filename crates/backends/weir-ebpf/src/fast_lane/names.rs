//! The names of the fast lane in the BPF file system.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use weir_model::IpFamily;

use crate::{
    kernel::Kernel,
    layout::MapId,
    sys::{self, Map},
};

/// The names of the fast lane.
pub(crate) struct LaneNames<'a> {
    kernel: &'a Kernel,
    folder: PathBuf,
}

/// A program at a link of the node.
#[derive(Debug)]
pub(crate) struct LaneLink {
    pub(super) fd: OwnedFd,
    pub(crate) name: String,
    /// The number in the kernel.
    pub(crate) id: u32,
    /// The number of the program in the kernel.
    pub(crate) program: u32,
    /// The index of the node's link; 0 if it is gone or the program was detached.
    pub(crate) index: u32,
}

impl<'a> LaneNames<'a> {
    pub(crate) fn new(kernel: &'a Kernel) -> Self {
        LaneNames { kernel, folder: kernel.folder().join("lane") }
    }

    /// Opens the maps, and creates those that do not exist. Returns whether it created one: no program
    /// uses that one yet.
    pub(super) fn maps(&self) -> io::Result<(BTreeMap<MapId, Map>, bool)> {
        fs::create_dir_all(&self.folder)?;
        let (mut maps, mut is_new) = (BTreeMap::new(), false);
        for id in MapId::LANE {
            let (path, declaration) = (self.folder.join(id.to_string()), id.declaration(0));
            let map = match Map::open(&path, declaration) {
                Ok(map) => map,
                Err(_) => {
                    let map = Map::create(&format!("weir_{id}"), declaration)?;
                    // First, so that no agent can find the new map beside a program with the old one.
                    self.remove_programs()?;
                    remove_file(&path)?;
                    sys::pin(map.as_fd(), &path)?;
                    is_new = true;
                    map
                }
            };
            maps.insert(id, map);
        }
        Ok((maps, is_new))
    }

    /// The name of the program for an installation of the rules.
    pub(super) fn program(&self, number: u32, family: IpFamily) -> PathBuf {
        self.kernel.path(number).join(format!("lane{}", family.digit()))
    }

    /// Removes the names of all programs, which use maps that are to be removed.
    fn remove_programs(&self) -> io::Result<()> {
        for number in self.kernel.installations().map_err(io::Error::other)? {
            for family in IpFamily::BOTH {
                remove_file(&self.program(number, family))?;
            }
        }
        Ok(())
    }

    /// The maps that exist.
    pub(crate) fn existing_maps(&self) -> BTreeMap<MapId, Map> {
        let open = |id: MapId| {
            Some((id, Map::open(&self.folder.join(id.to_string()), id.declaration(0)).ok()?))
        };
        MapId::LANE.into_iter().filter_map(open).collect()
    }

    fn path(&self, family: IpFamily, index: u32) -> PathBuf {
        self.folder.join(format!("link{}-{index}", family.digit()))
    }

    /// The program at a link.
    pub(super) fn link(&self, family: IpFamily, index: u32) -> Option<LaneLink> {
        open_link(self.path(family, index)).ok()
    }

    /// Keeps a program at a link while no agent runs.
    pub(super) fn keep(
        &self,
        family: IpFamily,
        index: u32,
        link: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let path = self.path(family, index);
        _ = fs::remove_file(&path);
        sys::pin(link, &path)
    }

    /// All programs at links.
    pub(crate) fn links(&self) -> io::Result<Vec<LaneLink>> {
        let paths = self.link_paths()?;
        Ok(paths.into_iter().filter_map(|(_, path)| open_link(path).ok()).collect())
    }

    /// Removes the programs from other links than these.
    pub(super) fn remove_other_links(&self, keep: &BTreeSet<u32>) -> io::Result<()> {
        for (index, path) in self.link_paths()? {
            if !keep.contains(&index) {
                if let Ok(link) = open_link(path.clone()) {
                    sys::detach(link.fd.as_fd())?;
                }
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// The names of links, with their indexes.
    fn link_paths(&self) -> io::Result<Vec<(u32, PathBuf)>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let index = name.strip_prefix("link").and_then(|rest| rest.split_once('-'));
            if let Some(index) = index.and_then(|(_, index)| index.parse().ok()) {
                paths.push((index, path));
            }
        }
        paths.sort();
        Ok(paths)
    }
}

fn open_link(path: PathBuf) -> io::Result<LaneLink> {
    let fd = sys::open_pinned(&path)?;
    // The type, the numbers, then the index of the link.
    let [_, id, program, _, index, ..] = sys::object_info(fd.as_fd())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(LaneLink { fd, name, id, program, index })
}

/// Removes the fast lane, if there is one. All packets go the normal way then.
pub(crate) fn remove(kernel: &Kernel) -> io::Result<()> {
    let names = LaneNames::new(kernel);
    names.remove_other_links(&BTreeSet::new())?;
    // Before the maps that they use.
    names.remove_programs()?;
    unless_missing(fs::remove_dir_all(&names.folder))
}

fn remove_file(path: &Path) -> io::Result<()> {
    unless_missing(fs::remove_file(path))
}

fn unless_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
