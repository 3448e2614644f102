//! Who watches a configuration, and who removes us from it, take turns: a lock on the folder itself, which leaves no trace.

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::failed;
use crate::Failure;

/// How often to look whether those who watch have ended.
const LOOK: Duration = Duration::from_millis(50);

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code, reason = "it is held, not used")] File);

/// The turn of one who watches, of whom there may be several.
pub(super) fn to_watch(folder: &Path) -> Result<Turn, TryLockError> {
    let file = File::open(folder).map_err(TryLockError::Error)?;
    file.try_lock_shared()?;
    Ok(Turn(file))
}

/// The turn of one who removes, when nobody watches any more; `None` if there is no folder.
pub(super) fn to_remove(folder: &Path, patience: Duration) -> Result<Option<Turn>, Failure> {
    let file = match File::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| failed("open", folder, &error))?,
    };
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(Turn(file))),
            Err(TryLockError::Error(error)) => return Err(failed("lock", folder, &error)),
            Err(TryLockError::WouldBlock) if begun.elapsed() < patience => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(
                    format!("`weir-cni install --watch` still runs for {}", folder.display()),
                    "it would add the plugin again: stop it, then run this again; nothing was changed",
                ));
            }
        }
    }
}
