//! Progress of long work, on a terminal.

use std::{
    io::{IsTerminal, Write, stderr},
    time::{Duration, Instant},
};

/// A progress line on standard error. It appears only on a terminal, and only for work that takes
/// more than a second.
pub(crate) struct Progress {
    what: &'static str,
    start: Instant,
    last_shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// Starts the work.
    pub(crate) fn new(what: &'static str) -> Self {
        Progress {
            what,
            start: Instant::now(),
            last_shown: None,
            is_terminal: stderr().is_terminal(),
        }
    }

    /// Reports that `done` of `all` steps are complete.
    pub(crate) fn report(&mut self, done: usize, all: usize) {
        let is_too_soon = match self.last_shown {
            None => self.start.elapsed() < Duration::from_secs(1),
            Some(last) => last.elapsed() < Duration::from_millis(100),
        };
        if self.is_terminal && !is_too_soon {
            self.last_shown = Some(Instant::now());
            let percent = done * 100 / all.max(1);
            self.write(&format!("\r{} … {percent} %", self.what));
        }
    }

    fn write(&self, text: &str) {
        // Standard error may be closed, which is no reason to fail.
        drop(stderr().write_all(text.as_bytes()));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.last_shown.is_some() {
            self.write("\r\u{1b}[K");
        }
    }
}
