//! The state file. Writes are atomic, and an invalid file is renamed.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use crate::Tracker;

/// The name of the file.
const NAME: &str = "tracker.json";
/// The name of an invalid file.
const BROKEN: &str = "tracker.json.broken";

/// The file that persists the tracker.
#[derive(Clone, Debug)]
pub struct StateFile {
    folder: PathBuf,
    /// The current content of the file.
    text: String,
}

impl StateFile {
    /// The file in a folder. Creates the folder if it does not exist.
    pub fn at(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(StateFile { folder: folder.to_owned(), text: String::new() })
    }

    /// Reads the file in a folder without changing anything. A missing or invalid file gives an
    /// empty tracker, as for an agent that starts.
    pub fn peek(folder: &Path) -> Tracker {
        let bytes = fs::read(folder.join(NAME)).unwrap_or_default();
        Tracker::parse(&bytes).unwrap_or_default()
    }

    /// Loads the file. A missing file gives an empty tracker. An invalid file is renamed and
    /// reported.
    pub fn load(&mut self) -> (Tracker, Option<String>) {
        let path = self.folder.join(NAME);
        let why = match fs::read(&path) {
            Ok(bytes) => match Tracker::parse(&bytes) {
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
            Ok(()) => format!("it was renamed to {}", broken.display()),
            Err(error) => format!("it cannot be renamed: {error}"),
        };
        let warning = format!(
            "the state file {} cannot be read ({why}); {aside}; weir reads the installed state from HNS",
            path.display()
        );
        (Tracker::default(), Some(warning))
    }

    /// Writes the file if the text differs from the last one.
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

    /// Removes the file.
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
    fn the_file_is_replaced_atomically_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = StateFile::at(&folder.path().join("weir")).unwrap();
        assert_eq!(file.load(), (Tracker::default(), None), "no file yet");
        let mut tracker = Tracker::default();
        tracker.put("e1", "shop/web", &[], &[]);
        file.save(tracker.text("1")).unwrap();
        assert_eq!(StateFile::peek(&folder.path().join("weir")), tracker);
        assert_eq!(file.load(), (tracker, None));
        let names: Vec<_> = fs::read_dir(folder.path().join("weir")).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file remains");
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.load(), (Tracker::default(), None));
    }

    #[test]
    fn an_invalid_file_is_renamed_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), "{ no").unwrap();
        let mut file = StateFile::at(folder.path()).unwrap();
        assert_eq!(StateFile::peek(folder.path()), Tracker::default());
        assert_eq!(fs::read_to_string(folder.path().join(NAME)).unwrap(), "{ no", "only read");
        let (tracker, warning) = file.load();
        assert_eq!(tracker, Tracker::default());
        assert!(warning.unwrap().contains("cannot be read"));
        assert_eq!(fs::read_to_string(folder.path().join(BROKEN)).unwrap(), "{ no");
        assert_eq!(file.load(), (Tracker::default(), None));
        file.save(tracker.text("1")).unwrap();
        assert_eq!(file.load().1, None, "the file is valid again");
    }
}
