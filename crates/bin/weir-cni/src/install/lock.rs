//! A lock between `install --watch` and `uninstall`. It is held on the folder itself, so no lock
//! file is left.

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::failed;
use crate::Failure;

/// The time between two attempts to lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A lock, held until it is dropped.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "it is held, not used")] File);

/// Locks the folder for watching. Several processes can hold this lock.
pub(super) fn shared(folder: &Path) -> Result<Lock, TryLockError> {
    let file = File::open(folder).map_err(TryLockError::Error)?;
    file.try_lock_shared()?;
    Ok(Lock(file))
}

/// Locks the folder for removal, once no process watches it; `None` if there is no folder.
pub(super) fn exclusive(folder: &Path, timeout: Duration) -> Result<Option<Lock>, Failure> {
    let file = match File::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| failed("open", folder, &error))?,
    };
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(Lock(file))),
            Err(TryLockError::Error(error)) => return Err(failed("lock", folder, &error)),
            Err(TryLockError::WouldBlock) if start.elapsed() < timeout => {
                thread::sleep(RETRY_INTERVAL)
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(
                    format!("`weir-cni install --watch` still runs for {}", folder.display()),
                    "stop it and run this again, or it would add the plugin again; nothing was changed",
                ));
            }
        }
    }
}
