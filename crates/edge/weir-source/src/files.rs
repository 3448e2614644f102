use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use weir_api::{
    ManifestReader,
    document::{MAX_BYTES, last_separator},
};
use weir_model::Name;

/// Why input could not be loaded. The content of a file is never a reason.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is nothing at the path.
    #[error("cannot find {}", path.display())]
    Missing {
        /// The path as given.
        path: PathBuf,
    },
    /// The path exists and cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The path as given.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Standard input cannot be read.
    #[error("cannot read standard input")]
    Stdin(#[source] io::Error),
    /// The path is a pipe, a socket or a device, whose content may never end.
    #[error("{} is not a regular file", path.display())]
    Special {
        /// The path as given.
        path: PathBuf,
    },
    /// The input exceeds the size limit.
    #[error("{} is larger than {} MiB", name(path), MAX_BYTES >> 20)]
    TooLarge {
        /// The path as given.
        path: PathBuf,
    },
    /// The input contains no document: the program that writes it may have failed.
    #[error("{} is empty", name(path))]
    NoDocument {
        /// The path as given.
        path: PathBuf,
    },
    /// The input contains text, but no Kubernetes object.
    #[error("there is no Kubernetes object in {}", name(path))]
    NoObject {
        /// The first path as given.
        path: PathBuf,
    },
    /// The path is a file.
    #[error("{} is not a folder", path.display())]
    NotAFolder {
        /// The path as given.
        path: PathBuf,
    },
    /// The folder contains no manifests.
    #[error("there is no .yaml, .yml or .json file in {}", path.display())]
    Empty {
        /// The path as given.
        path: PathBuf,
    },
}

impl LoadError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            LoadError::Missing { .. } => "check the path; it is relative to the current folder",
            LoadError::Read { .. } => {
                "check that it is a file or folder and that you have read permission"
            }
            LoadError::Stdin(_) => {
                "pipe manifests into the command, as in `kubectl get … -o yaml | weir … -f -`"
            }
            LoadError::Special { .. } => {
                "name a file or a folder, or pipe the content into the command with `-`"
            }
            LoadError::TooLarge { .. } => "split it into several files",
            LoadError::NoDocument { .. } => {
                "check the program that writes it; an empty list is `{apiVersion: v1, kind: List, items: []}`"
            }
            LoadError::NoObject { .. } => {
                "name manifests, in the format of `kubectl get … -o yaml`"
            }
            LoadError::NotAFolder { .. } => "name the folder that contains the file",
            LoadError::Empty { .. } => {
                "name a folder that contains manifests, or the files themselves"
            }
        }
    }
}

/// The name of an input, for messages.
fn name(path: &Path) -> std::borrow::Cow<'_, str> {
    match path.to_str() {
        Some("-") => "standard input".into(),
        _ => path.to_string_lossy(),
    }
}

/// The files of policy tests: the given files, and those in the given folders.
pub fn case_files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, LoadError> {
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    for path in paths {
        collect(path, &mut seen, &mut files)?;
    }
    Ok(files)
}

/// The bytes of a file within the size limit.
pub fn read_file(path: &Path) -> Result<Vec<u8>, LoadError> {
    let (file, size) = open(path)?;
    read_to_end(file, size, path).map_err(|source| unreadable(path, source))?
}

/// Reads manifests from a file, in parts, so that a large one is never completely in memory.
pub(crate) fn read_manifests(path: &Path, reader: &mut ManifestReader) -> Result<(), LoadError> {
    let name: Name = path.to_string_lossy().into();
    let (mut file, size) = open(path)?;
    if size <= PART_BYTES {
        let bytes = read_to_end(file, size, path).map_err(|source| unreadable(path, source))?;
        reader.read_file(name, &bytes?);
        return Ok(());
    }
    let (mut bytes, mut line, mut read) = (Vec::new(), 1_u32, 0);
    loop {
        // The longer the current document is, the larger is the next step.
        let more = PART_BYTES.max(bytes.len()) as u64;
        let new = file.by_ref().take(more).read_to_end(&mut bytes);
        let new = new.map_err(|source| unreadable(path, source))?;
        read += new;
        if read > MAX_BYTES {
            return Err(LoadError::TooLarge { path: path.into() });
        }
        let end = if new == 0 { Some(bytes.len()) } else { last_separator(&bytes) };
        if let Some(end) = end {
            reader.read_part(name.clone(), &bytes[..end], line);
            let breaks = bytes[..end].iter().filter(|byte| **byte == b'\n').count();
            line = line.saturating_add(u32::try_from(breaks).unwrap_or(u32::MAX));
            bytes.drain(..end);
        }
        if new == 0 {
            return Ok(());
        }
    }
}

/// The amount of a file that is read in one step.
const PART_BYTES: usize = 8 << 20;

/// Opens a regular file within the size limit, and returns its size.
fn open(path: &Path) -> Result<(fs::File, usize), LoadError> {
    let fail = |source: io::Error| unreadable(path, source);
    // Check before opening: opening a pipe blocks until a process writes into it.
    if is_special(path).map_err(fail)? {
        return Err(LoadError::Special { path: path.into() });
    }
    let file = fs::File::open(path).map_err(fail)?;
    match usize::try_from(file.metadata().map_err(fail)?.len()) {
        Ok(size) if size <= MAX_BYTES => Ok((file, size)),
        _ => Err(LoadError::TooLarge { path: path.into() }),
    }
}

/// Reads to the end, or fails beyond the size limit: the size of a pipe is unknown, and a file can
/// grow. The expected size saves memory.
pub(crate) fn read_to_end(
    from: impl Read,
    expected: usize,
    path: &Path,
) -> io::Result<Result<Vec<u8>, LoadError>> {
    let mut bytes = Vec::with_capacity(expected);
    from.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(if bytes.len() > MAX_BYTES {
        Err(LoadError::TooLarge { path: path.into() })
    } else {
        Ok(bytes)
    })
}

/// Adds the file at a path, or the files of the folder there. `seen` holds the real paths of the
/// files added so far.
pub(crate) fn collect(
    path: &Path,
    seen: &mut BTreeSet<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Result<(), LoadError> {
    if is_inherited(path) {
        files.push(path.into());
        return Ok(());
    }
    let real = fs::canonicalize(path).map_err(|source| unreadable(path, source))?;
    if is_special(&real).map_err(|source| unreadable(path, source))? {
        return Err(LoadError::Special { path: path.into() });
    }
    if !real.is_dir() {
        if seen.insert(real) {
            files.push(path.into());
        }
        return Ok(());
    }
    let mut within = FolderSearch { seen, files, open: BTreeSet::new(), manifests: 0 };
    within.walk(path, real)?;
    match within.manifests {
        0 => Err(LoadError::Empty { path: path.into() }),
        _ => Ok(()),
    }
}

/// The search of a folder.
struct FolderSearch<'a> {
    seen: &'a mut BTreeSet<PathBuf>,
    files: &'a mut Vec<PathBuf>,
    /// The real paths of the folders entered so far, so that a cycle of links ends.
    open: BTreeSet<PathBuf>,
    manifests: usize,
}

impl FolderSearch<'_> {
    fn walk(&mut self, path: &Path, real: PathBuf) -> Result<(), LoadError> {
        if !self.open.insert(real) {
            return Ok(());
        }
        let fail = |source: io::Error| unreadable(path, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(fail)? {
            names.push(entry.map_err(fail)?.file_name());
        }
        names.sort();
        for name in names {
            if name.to_string_lossy().starts_with('.') {
                continue;
            }
            let inner = path.join(&name);
            let real = match fs::canonicalize(&inner) {
                Ok(real) => real,
                // A dangling link matters only if it has the name of a manifest.
                Err(_) if !is_manifest(&inner) => continue,
                Err(source) => return Err(unreadable(&inner, source)),
            };
            if real.is_dir() {
                self.walk(&inner, real)?;
            } else if is_manifest(&inner) && real.is_file() {
                self.manifests += 1;
                if self.seen.insert(real) {
                    self.files.push(inner);
                }
            }
        }
        Ok(())
    }
}

/// Whether it is a pipe, a socket or a device, and not an inherited one.
fn is_special(path: &Path) -> io::Result<bool> {
    let kind = fs::metadata(path)?.file_type();
    Ok(!(kind.is_file() || kind.is_dir() || is_inherited(path)))
}

/// Whether it is standard input or a shell's `<(…)`: the parent process writes into such a pipe and
/// closes it.
fn is_inherited(path: &Path) -> bool {
    path == Path::new("/dev/stdin") || path.parent() == Some(Path::new("/dev/fd"))
}

/// Whether the file has the extension of a manifest.
pub fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    matches!(extension.as_deref(), Some("yaml" | "yml" | "json"))
}

/// The error of a path that cannot be read.
pub(crate) fn unreadable(path: &Path, source: io::Error) -> LoadError {
    match source.kind() {
        io::ErrorKind::NotFound => LoadError::Missing { path: path.into() },
        io::ErrorKind::NotADirectory if path.is_file() => {
            LoadError::NotAFolder { path: path.into() }
        }
        _ => LoadError::Read { path: path.into(), source },
    }
}
