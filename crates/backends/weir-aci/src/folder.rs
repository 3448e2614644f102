use std::{
    collections::BTreeSet,
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// What the names of all files end with.
const SUFFIX: &str = ".netpol";

/// The folder that opflex-agent watches.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

/// Why the folder is not as it should be.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}", path.display())]
pub struct FolderError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FolderError {
    /// Whether there is no such folder.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Whether a file was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// It is another one now, or gone.
    Yes,
    /// It was already so.
    No,
}

impl Folder {
    /// Uses a folder, which must be there, because nobody watches one that we would make; clears it of what an interrupted writer left.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let folder = Folder { path: path.into() };
        for name in folder.list()? {
            if is_half_written(&name) {
                folder.remove(&name)?;
            }
        }
        Ok(folder)
    }

    /// Makes a file say this. One that already does is not touched: opflex-agent would take all its flows away and make them anew.
    pub fn write(&self, name: &str, text: &str) -> Result<Touched, FolderError> {
        let path = self.path.join(name);
        if is_plain_file(&path) && fs::read(&path).is_ok_and(|bytes| bytes == text.as_bytes()) {
            return Ok(Touched::No);
        }
        // opflex-agent reads no name that begins with a dot.
        let half = self.path.join(format!(".{name}.tmp"));
        let written = put(&half, text).and_then(|()| fs::rename(&half, &path));
        if let Err(e) = written {
            // It may be what is wrong.
            let _ = fs::remove_file(&half);
            return Err(error("write", &path, e));
        }
        Ok(Touched::Yes)
    }

    /// Removes a file, if it is there.
    pub fn remove(&self, name: &str) -> Result<Touched, FolderError> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(Touched::Yes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Touched::No),
            Err(e) => Err(error("remove", &path, e)),
        }
    }

    /// Removes all files but these, and tells which. Files of others are left alone.
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

    /// What changes when somebody writes to a file; nothing if it is not there.
    pub fn stamp(&self, name: &str) -> Option<(u64, Option<SystemTime>)> {
        let about = fs::symlink_metadata(self.path.join(name)).ok()?;
        about.is_file().then(|| (about.len(), about.modified().ok()))
    }

    /// The files that are there.
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
    // Never through a link that somebody else has put there.
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
    fn what_is_already_so_is_not_written_again() {
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
    fn only_what_is_not_needed_goes_and_others_keep_their_files() {
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
    fn what_an_interrupted_writer_left_is_cleared() {
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
    fn a_folder_that_cannot_be_is_named() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let error = Folder::open(place.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the folder /"), "{error}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_not_made() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("netpols");
        assert!(Folder::open(&path).unwrap_err().is_missing());
        assert!(!path.exists());
    }
}
