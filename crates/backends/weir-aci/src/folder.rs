use std::{
    collections::BTreeSet,
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The suffix of all policy files.
const SUFFIX: &str = ".netpol";

/// The folder that opflex-agent watches.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

/// An operation on the folder failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}", path.display())]
pub struct FolderError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FolderError {
    /// Whether the folder does not exist.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Whether an operation changed a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// The file was written or removed.
    Yes,
    /// The file was already up to date.
    No,
}

impl Folder {
    /// Opens an existing folder and removes the temporary files of an interrupted writer. It does
    /// not create the folder, because opflex-agent would not watch a new one.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let folder = Folder { path: path.into() };
        for name in folder.list()? {
            if is_half_written(&name) {
                folder.remove(&name)?;
            }
        }
        Ok(folder)
    }

    /// Writes a file atomically. A file with the same content is not touched, because opflex-agent
    /// would remove and recreate all its flows.
    pub fn write(&self, name: &str, text: &str) -> Result<Touched, FolderError> {
        let path = self.path.join(name);
        if is_plain_file(&path) && fs::read(&path).is_ok_and(|bytes| bytes == text.as_bytes()) {
            return Ok(Touched::No);
        }
        // opflex-agent ignores names that begin with a dot.
        let half = self.path.join(format!(".{name}.tmp"));
        let written = put(&half, text).and_then(|()| fs::rename(&half, &path));
        if let Err(e) = written {
            // The temporary file may itself be the cause of the error.
            let _ = fs::remove_file(&half);
            return Err(error("write", &path, e));
        }
        Ok(Touched::Yes)
    }

    /// Removes a file if it exists.
    pub fn remove(&self, name: &str) -> Result<Touched, FolderError> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(Touched::Yes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Touched::No),
            Err(e) => Err(error("remove", &path, e)),
        }
    }

    /// Removes all policy files except the needed ones, and returns the removed names. Files with
    /// another suffix stay.
    pub fn prune(&self, needed: &BTreeSet<String>) -> Result<Vec<String>, FolderError> {
        let mut removed = Vec::new();
        for name in self.list()? {
            let is_ours = name.ends_with(SUFFIX) && !name.starts_with('.');
            let goes = (is_ours && !needed.contains(&name)) || is_half_written(&name);
            if goes && self.remove(&name)? == Touched::Yes {
                removed.push(name);
            }
        }
        Ok(removed)
    }

    /// The size and modification time of a file, or `None` if it does not exist. Callers use it to
    /// detect foreign writes.
    pub fn stamp(&self, name: &str) -> Option<(u64, Option<SystemTime>)> {
        let about = fs::symlink_metadata(self.path.join(name)).ok()?;
        about.is_file().then(|| (about.len(), about.modified().ok()))
    }

    /// The names of the existing policy files.
    pub fn files(&self) -> Result<BTreeSet<String>, FolderError> {
        let names = self.list()?.into_iter();
        Ok(names.filter(|name| name.ends_with(SUFFIX) && !name.starts_with('.')).collect())
    }

    fn list(&self) -> Result<Vec<String>, FolderError> {
        let failed = |e| error("read the folder", &self.path, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            names.extend(entry.map_err(failed)?.file_name().into_string().ok());
        }
        Ok(names)
    }
}

fn is_half_written(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".netpol.tmp")
}

fn is_plain_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_file())
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    // Never write through a symbolic link that another process placed here.
    let _ = fs::remove_file(path);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())
}

fn error(verb: &'static str, path: &Path, source: io::Error) -> FolderError {
    FolderError { verb, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        (place, folder)
    }

    #[test]
    fn a_file_with_the_same_content_is_not_written_again() {
        let (place, folder) = folder();
        assert_eq!(folder.write("a.netpol", "[]").unwrap(), Touched::Yes);
        let path = place.path().join("a.netpol");
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(folder.write("a.netpol", "[]").unwrap(), Touched::No);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        assert_eq!(folder.write("a.netpol", "[1]").unwrap(), Touched::Yes);
        assert_eq!(fs::read_to_string(&path).unwrap(), "[1]");
        assert_eq!(folder.files().unwrap().len(), 1);
    }

    #[test]
    fn a_reader_of_the_old_file_is_not_disturbed() {
        let (place, folder) = folder();
        folder.write("a.netpol", "old").unwrap();
        let reader = fs::File::open(place.path().join("a.netpol")).unwrap();
        folder.write("a.netpol", "new").unwrap();
        assert_eq!(io::read_to_string(reader).unwrap(), "old");
    }

    #[test]
    fn prune_removes_only_policy_files_that_are_not_needed() {
        let (place, folder) = folder();
        folder.write("a.netpol", "a").unwrap();
        folder.write("b.netpol", "b").unwrap();
        fs::write(place.path().join("notes.txt"), "mine").unwrap();
        assert_eq!(folder.prune(&["a.netpol".to_owned()].into()).unwrap(), ["b.netpol"]);
        assert_eq!(folder.files().unwrap(), ["a.netpol".to_owned()].into());
        assert_eq!(folder.prune(&BTreeSet::new()).unwrap(), ["a.netpol"]);
        assert!(place.path().join("notes.txt").exists());
    }

    #[test]
    fn opening_the_folder_removes_temporary_files() {
        let (place, _) = folder();
        fs::write(place.path().join(".a.netpol.tmp"), "half").unwrap();
        Folder::open(place.path()).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let (place, folder) = folder();
        let target = place.path().join("target");
        fs::write(&target, "theirs").unwrap();
        std::os::unix::fs::symlink(&target, place.path().join("a.netpol")).unwrap();
        std::os::unix::fs::symlink(&target, place.path().join(".a.netpol.tmp")).unwrap();
        folder.write("a.netpol", "theirs").unwrap();
        folder.write("a.netpol", "ours").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
    }

    #[test]
    fn an_unusable_folder_is_named_in_the_error() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let error = Folder::open(place.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the folder /"), "{error}");
    }

    #[test]
    fn a_missing_folder_is_not_created() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("netpols");
        assert!(Folder::open(&path).unwrap_err().is_missing());
        assert!(!path.exists());
    }
}
