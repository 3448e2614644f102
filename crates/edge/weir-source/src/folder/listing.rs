use std::{
    collections::BTreeSet,
    fs::{self, Metadata},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::files::{LoadError, is_manifest, unreadable};

/// The manifests in a folder.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The files in order. A file with several links is listed once.
    pub(crate) files: Vec<(PathBuf, Fingerprint)>,
    /// The paths that could not be read. Files known below such a path may still exist.
    pub(crate) problems: Vec<(PathBuf, LoadError)>,
}

impl Listing {
    /// Lists a folder recursively. Hidden entries, other extensions and special files are not
    /// manifests.
    pub(crate) fn scan(root: &Path) -> Self {
        let mut walk = Walk::default();
        walk.folder(root);
        let Listing { files, problems } = &mut walk.listing;
        if files.is_empty() && problems.is_empty() {
            problems.push((root.into(), LoadError::Empty { path: root.into() }));
        }
        walk.listing
    }
}

/// The metadata that changes with the content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    identity: FileIdentity,
    length: u64,
    modified: Option<SystemTime>,
    changed: (i64, i64),
}

impl Fingerprint {
    /// The fingerprint of the file at a path, links followed.
    pub(crate) fn from_path(path: &Path) -> io::Result<Self> {
        Ok(Fingerprint::new(path, &fs::metadata(path)?))
    }

    fn new(path: &Path, metadata: &Metadata) -> Self {
        Fingerprint {
            identity: FileIdentity::new(path, metadata),
            length: metadata.len(),
            modified: metadata.modified().ok(),
            changed: changed(metadata),
        }
    }

    /// Whether it is the same file, with any content.
    pub(crate) fn is_same_file(&self, other: &Fingerprint) -> bool {
        self.identity == other.identity
    }

    /// Whether the file was written less than `age` before `now`.
    pub(crate) fn is_fresh(&self, now: SystemTime, age: Duration) -> bool {
        let found = self.modified.and_then(|modified| now.duration_since(modified).ok());
        found.is_some_and(|found| found < age)
    }
}

/// The identity of a file or folder, independent of its path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileIdentity(#[cfg(unix)] (u64, u64), #[cfg(not(unix))] PathBuf);

impl FileIdentity {
    /// The identity of the file or folder at a path, links followed.
    pub(crate) fn from_path(path: &Path) -> io::Result<Self> {
        Ok(FileIdentity::new(path, &fs::metadata(path)?))
    }

    #[cfg(unix)]
    fn new(_: &Path, metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        FileIdentity((metadata.dev(), metadata.ino()))
    }

    #[cfg(not(unix))]
    fn new(path: &Path, _: &Metadata) -> Self {
        FileIdentity(fs::canonicalize(path).unwrap_or_else(|_| path.into()))
    }
}

/// When the file or its metadata, such as its permissions, last changed.
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
    files: BTreeSet<FileIdentity>,
    /// The folders entered so far, so that a cycle of links ends.
    folders: BTreeSet<FileIdentity>,
}

impl Walk {
    fn folder(&mut self, path: &Path) {
        let names = fs::read_dir(path).and_then(|entries| {
            self.folders.insert(FileIdentity::from_path(path)?);
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
            // A dangling link matters only if it has the name of a manifest.
            Err(source) if is_manifest(path) => return self.problem(path, source),
            Err(_) => return,
        };
        let identity = FileIdentity::new(path, &metadata);
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
