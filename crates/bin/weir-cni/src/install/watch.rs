//! Keeps the plugin in the CNI configuration. Network plugins rewrite that configuration when they
//! start, which removes the plugin from the chain, so this process checks it periodically.

use std::{
    fs::TryLockError,
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use signal_hook::consts::{SIGINT, SIGTERM};

use super::{NAME, add_plugin, lock, options::Options, place_program, remove_everything};
use crate::Failure;

/// The time between two checks. A check reads a few small files.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Whether the plugin stays installed when this process exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnExit {
    /// It stays: another process, such as the next version of the DaemonSet, takes over.
    Keep,
    /// This process removes it.
    Remove,
}

/// Installs the plugin, and repairs the installation until SIGTERM or SIGINT arrives.
pub(crate) fn watch(
    options: &Options,
    on_exit: OnExit,
    messages: &mut dyn Write,
) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    watch_until(options, on_exit, messages, &stop)
}

/// Installs and repairs until `stop` is set.
pub(super) fn watch_until(
    options: &Options,
    on_exit: OnExit,
    messages: &mut dyn Write,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    place_program(options, messages)?;
    let mut last_message = String::new();
    let mut lock = None;
    while !stop.load(Ordering::Relaxed) {
        if lock.is_none() {
            match lock::shared(&options.conf_dir) {
                Ok(shared) => lock = Some(shared),
                // `weir-cni uninstall` holds the lock. Installing now would undo its work.
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(CHECK_INTERVAL);
                    continue;
                }
                // Continue without a lock: the folder may not exist yet, or its file system may
                // not support locks.
                Err(TryLockError::Error(_)) => (),
            }
        }
        let message = repair(options);
        if message != last_message {
            // Ignore a closed standard error.
            _ = write!(messages, "{message}");
            last_message = message;
        }
        thread::sleep(CHECK_INTERVAL);
    }
    match on_exit {
        OnExit::Keep => Ok(()),
        OnExit::Remove => remove_everything(options, messages),
    }
}

/// Restores a missing program file or configuration entry. Returns messages about the changes and
/// failures.
fn repair(options: &Options) -> String {
    let mut messages = Vec::new();
    let program = options.bin_dir.join(NAME);
    let placed =
        if is_installed(&program) { Ok(()) } else { place_program(options, &mut messages) };
    if let Err(failure) = placed.and_then(|()| add_plugin(options, &mut messages)) {
        messages.extend(format!("warning: {}\n", failure.what).bytes());
    }
    String::from_utf8_lossy(&messages).into_owned()
}

/// Whether the program file exists. `place_program` compared its content at startup.
fn is_installed(program: &Path) -> bool {
    program.metadata().is_ok_and(|file| file.is_file() && file.len() > 0)
}
