//! Keeps the plugin installed when other programs rewrite the configuration, as network plugins do
//! when they start.

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

/// The treatment of the installation when the watch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnExit {
    /// Keep it, because another process will watch it.
    Keep,
    /// Remove it.
    Remove,
}

/// Installs, and again whenever needed, until a signal arrives.
pub(crate) fn watch(
    options: &Options,
    end: OnExit,
    messages: &mut dyn Write,
) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    watch_until(options, end, messages, &stop)
}

/// Watches until `stop` is set.
pub(super) fn watch_until(
    options: &Options,
    end: OnExit,
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
                // An `uninstall` is running.
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(CHECK_INTERVAL);
                    continue;
                }
                // The folder may not exist yet, or its file system may not support locks.
                Err(TryLockError::Error(_)) => (),
            }
        }
        let message = check(options);
        if message != last_message {
            // Standard error may be closed, which is no reason to stop.
            _ = write!(messages, "{message}");
            last_message = message;
        }
        thread::sleep(CHECK_INTERVAL);
    }
    match end {
        OnExit::Keep => Ok(()),
        OnExit::Remove => remove_everything(options, messages),
    }
}

/// Installs what is missing. Returns a message about the state.
fn check(options: &Options) -> String {
    let mut messages = Vec::new();
    let program = options.bin_dir.join(NAME);
    let placed =
        if is_installed(&program) { Ok(()) } else { place_program(options, &mut messages) };
    if let Err(failure) = placed.and_then(|()| add_plugin(options, &mut messages)) {
        messages.extend(format!("warning: {}\n", failure.what).bytes());
    }
    String::from_utf8_lossy(&messages).into_owned()
}

/// Whether the program is installed. Its content was compared at the start.
fn is_installed(program: &Path) -> bool {
    program.metadata().is_ok_and(|file| file.is_file() && file.len() > 0)
}
