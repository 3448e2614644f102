use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::Service;

/// How long whoever holds the file may hold it. Whoever was killed meanwhile does not hold it.
const HELD: Duration = Duration::from_secs(5);

/// A service whose state is in a file that others edit, too. A folder beside it is the lock: only one can make it.
#[derive(Clone, Debug)]
pub struct Store {
    file: PathBuf,
}

impl Store {
    /// The service whose state is in this file.
    pub fn at(file: impl Into<PathBuf>) -> Self {
        Store { file: file.into() }
    }

    /// Does something with the service while nobody else does. A file that is not there is a new service.
    pub fn with<T>(&self, act: impl FnOnce(&mut Service) -> T) -> io::Result<T> {
        let lock = beside(&self.file, "lock");
        let end = Instant::now() + HELD;
        while let Err(error) = fs::create_dir(&lock) {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
            if Instant::now() > end {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let done = self.locked(act);
        _ = fs::remove_dir(&lock);
        done
    }

    fn locked<T>(&self, act: impl FnOnce(&mut Service) -> T) -> io::Result<T> {
        let mut service = Service::new();
        match fs::read(&self.file) {
            Ok(bytes) => service.state = serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(error),
        }
        let before = service.state.clone();
        let done = act(&mut service);
        if service.state != before {
            let new = beside(&self.file, "new");
            fs::write(&new, serde_json::to_string_pretty(&service.state)?)?;
            fs::rename(&new, &self.file)?;
        }
        Ok(done)
    }
}

fn beside(file: &Path, extension: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}
