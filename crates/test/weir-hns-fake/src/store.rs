use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::HnsService;

/// A lock older than this belongs to a killed process and is ignored.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A service with its state in a file that several processes edit. A folder beside the file is the lock,
/// because creating a folder is atomic.
#[derive(Clone, Debug)]
pub struct Store {
    file: PathBuf,
}

impl Store {
    /// The service with its state in this file.
    pub fn at(file: impl Into<PathBuf>) -> Self {
        Store { file: file.into() }
    }

    /// Runs `act` with the service while holding the lock. A missing file is a new service.
    pub fn with<T>(&self, act: impl FnOnce(&mut HnsService) -> T) -> io::Result<T> {
        let lock = beside(&self.file, "lock");
        let end = Instant::now() + LOCK_TIMEOUT;
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

    fn locked<T>(&self, act: impl FnOnce(&mut HnsService) -> T) -> io::Result<T> {
        let mut service = HnsService::new();
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
