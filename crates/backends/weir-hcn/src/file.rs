//! The state file: written beside and renamed, and set aside if it is broken.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use crate::Tracker;

/// The name of the file, in a folder of its own.
const NAME: &str = "tracker.json";
/// What a broken one is called.
const BROKEN: &str = "tracker.json.broken";

/// Where what was written is remembered.
#[derive(Clone, Debug)]
pub struct StateFile {
    folder: PathBuf,
    /// What the file says.
    text: String,
}

impl StateFile {
    /// The file in a folder, which is made if it is not there.
    pub fn at(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(StateFile { folder: folder.to_owned(), text: String::new() })
    }

    /// Reads it. A missing file is an empty one; a broken one is set aside, and told.
    pub fn load(&mut self) -> (Tracker, Option<String>) {
        let path = self.folder.join(NAME);
        let why = match fs::read(&path) {
            Ok(bytes) => match Tracker::read(&bytes) {
                Ok(tracker) => return (tracker, None),
                Err(why) => why,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return (Tracker::default(), None);
            }
            Err(error) => error.to_string(),
        };
        let broken = self.folder.join(BROKEN);
        let aside = match fs::rename(&path, &broken) {
            Ok(()) => format!("it is now {}", broken.display()),
            Err(error) => format!("it cannot be set aside: {error}"),
        };
        let warning = format!(
            "the state file {} cannot be read ({why}); {aside}, and what is installed is read from HNS",
            path.display()
        );
        (Tracker::default(), Some(warning))
    }

    /// Writes it, if it says something else than before.
    pub fn save(&mut self, text: String) -> io::Result<()> {
        if text == self.text {
            return Ok(());
        }
        let (path, beside) = (self.folder.join(NAME), self.folder.join(format!("{NAME}.new")));
        let mut file = fs::File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, &path)?;
        self.text = text;
        Ok(())
    }

    /// Removes it.
    pub fn remove(&mut self) -> io::Result<()> {
        self.text.clear();
        match fs::remove_file(self.folder.join(NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_beside_and_renamed_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = StateFile::at(&folder.path().join("weir")).unwrap();
        assert_eq!(file.load(), (Tracker::default(), None), "there is none yet");
        let mut tracker = Tracker::default();
        tracker.put("e1", "shop/web", &[], &[]);
        file.save(tracker.text("1")).unwrap();
        assert_eq!(file.load(), (tracker, None));
        let names: Vec<_> = fs::read_dir(folder.path().join("weir")).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing is left beside it");
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.load(), (Tracker::default(), None));
    }

    #[test]
    fn a_broken_one_is_set_aside_and_told() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), "{ no").unwrap();
        let mut file = StateFile::at(folder.path()).unwrap();
        let (tracker, warning) = file.load();
        assert_eq!(tracker, Tracker::default());
        assert!(warning.unwrap().contains("cannot be read"));
        assert_eq!(fs::read_to_string(folder.path().join(BROKEN)).unwrap(), "{ no");
        assert_eq!(file.load(), (Tracker::default(), None));
        file.save(tracker.text("1")).unwrap();
        assert_eq!(file.load().1, None, "it is rebuilt");
    }
}
