use std::{
    collections::BTreeSet,
    fs::{self, Metadata},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::files::{LoadError, is_manifest, unreadable};

/// The manifests of a folder, as they lie there.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The files in order, each once, however many links lead to it.
    pub(crate) files: Vec<(PathBuf, Fingerprint)>,
    /// What could not be looked at. Whatever is known beneath such a path may still be there.
    pub(crate) problems: Vec<(PathBuf, LoadError)>,
}

impl Listing {
    /// Looks at everything in a folder. Hidden entries, other endings and what is no regular file are not manifests.
    pub(crate) fn of(root: &Path) -> Self {
        let mut walk = Walk::default();
        walk.folder(root);
        let Listing { files, problems } = &mut walk.listing;
        if files.is_empty() && problems.is_empty() {
            problems.push((root.into(), LoadError::Empty { path: root.into() }));
        }
        walk.listing
    }
}

/// What tells one content of a file from another without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    identity: Identity,
    length: u64,
    modified: Option<SystemTime>,
    changed: (i64, i64),
}

impl Fingerprint {
    /// The fingerprint of the file that a path leads to.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Fingerprint::new(path, &fs::metadata(path)?))
    }

    fn new(path: &Path, metadata: &Metadata) -> Self {
        Fingerprint {
            identity: Identity::new(path, metadata),
            length: metadata.len(),
            modified: metadata.modified().ok(),
            changed: changed(metadata),
        }
    }

    /// Whether it is the same file, whatever is in it.
    pub(crate) fn is_same_file(&self, other: &Fingerprint) -> bool {
        self.identity == other.identity
    }

    /// Whether it was written so shortly before `now` that the writer may not have finished.
    pub(crate) fn is_fresh(&self, now: SystemTime, moment: Duration) -> bool {
        let age = self.modified.and_then(|modified| now.duration_since(modified).ok());
        age.is_some_and(|age| age < moment)
    }
}

/// Which file or folder, whatever it is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity(#[cfg(unix)] (u64, u64), #[cfg(not(unix))] PathBuf);

impl Identity {
    /// What a path leads to.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Identity::new(path, &fs::metadata(path)?))
    }

    #[cfg(unix)]
    fn new(_: &Path, metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Identity((metadata.dev(), metadata.ino()))
    }

    #[cfg(not(unix))]
    fn new(path: &Path, _: &Metadata) -> Self {
        Identity(fs::canonicalize(path).unwrap_or_else(|_| path.into()))
    }
}

/// When anything about the file changed, its rights among it.
#[cfg(unix)]
fn changed(metadata: &Metadata) -> (i64, i64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.ctime(), metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn changed(_: &Metadata) -> (i64, i64) {
    (0, 0)
}

#[derive(Default)]
struct Walk {
    listing: Listing,
    files: BTreeSet<Identity>,
    /// The folders that were entered, so that a circle of links ends.
    folders: BTreeSet<Identity>,
}

impl Walk {
    fn folder(&mut self, path: &Path) {
        let names = fs::read_dir(path).and_then(|entries| {
            self.folders.insert(Identity::of(path)?);
            entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()
        });
        let mut names = match names {
            Ok(names) => names,
            Err(source) => return self.problem(path, source),
        };
        names.retain(|name| !name.to_string_lossy().starts_with('.'));
        names.sort();
        names.iter().for_each(|name| self.entry(&path.join(name)));
    }

    fn entry(&mut self, path: &Path) {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            // A link that leads nowhere matters only if it should have been a manifest.
            Err(source) if is_manifest(path) => return self.problem(path, source),
            Err(_) => return,
        };
        let identity = Identity::new(path, &metadata);
        if metadata.is_dir() {
            if !self.folders.contains(&identity) {
                self.folder(path);
            }
        } else if is_manifest(path) && metadata.is_file() && self.files.insert(identity) {
            self.listing.files.push((path.into(), Fingerprint::new(path, &metadata)));
        }
    }

    fn problem(&mut self, path: &Path, source: io::Error) {
        self.listing.problems.push((path.into(), unreadable(path, source)));
    }
}
