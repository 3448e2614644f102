//! Staying beside the configuration: whoever writes it anew, as network plugins do when they start, gets the plugin back.

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

use super::{NAME, add_plugin, options::Options, place_program, remove_everything, turn};
use crate::Failure;

/// How often to look. A look reads a few small files.
const LOOK: Duration = Duration::from_millis(500);

/// What happens to an installation when whoever watches it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtTheEnd {
    /// It stays: something else comes and watches.
    Keep,
    /// It is removed.
    Remove,
}

/// Installs, and again whenever that is needed, until a signal ends it.
pub(crate) fn watch(options: &Options, end: AtTheEnd, talk: &mut dyn Write) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    until(options, end, talk, &stop)
}

/// The same, until somebody says so.
pub(super) fn until(
    options: &Options,
    end: AtTheEnd,
    talk: &mut dyn Write,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    place_program(options, talk)?;
    let mut said = String::new();
    let mut turn = None;
    while !stop.load(Ordering::Relaxed) {
        if turn.is_none() {
            match turn::to_watch(&options.conf_dir) {
                Ok(ours) => turn = Some(ours),
                // Somebody removes the plugin right now.
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(LOOK);
                    continue;
                }
                // The folder may come later; where there are no locks, nobody can wait for us.
                Err(TryLockError::Error(_)) => (),
            }
        }
        let now = look(options);
        if now != said {
            // Nobody may read it any more, and that is no reason to end.
            _ = write!(talk, "{now}");
            said = now;
        }
        thread::sleep(LOOK);
    }
    match end {
        AtTheEnd::Keep => Ok(()),
        AtTheEnd::Remove => remove_everything(options, talk),
    }
}

/// Adds what is missing. Tells how it is.
fn look(options: &Options) -> String {
    let mut talk = Vec::new();
    let program = options.bin_dir.join(NAME);
    let placed = match is_there(&program) {
        true => Ok(()),
        false => place_program(options, &mut talk),
    };
    if let Err(failure) = placed.and_then(|()| add_plugin(options, &mut talk)) {
        talk.extend(format!("warning: {}\n", failure.what).bytes());
    }
    String::from_utf8_lossy(&talk).into_owned()
}

/// Whether the program is in place. That it is the right one was seen at the start.
fn is_there(program: &Path) -> bool {
    program.metadata().is_ok_and(|file| file.is_file() && file.len() > 0)
}
