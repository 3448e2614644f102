//! How far long work is, on a terminal.

use std::{
    io::{IsTerminal, Write, stderr},
    time::{Duration, Instant},
};

/// A line on standard error that says how far the work is. Only a terminal sees it, and only if the work takes long.
pub(crate) struct Progress {
    what: &'static str,
    since: Instant,
    shown: Option<Instant>,
    wanted: bool,
}

impl Progress {
    /// Work begins.
    pub(crate) fn new(what: &'static str) -> Self {
        Progress { what, since: Instant::now(), shown: None, wanted: stderr().is_terminal() }
    }

    /// So much of it is done.
    pub(crate) fn at(&mut self, done: usize, all: usize) {
        let soon = match self.shown {
            None => self.since.elapsed() < Duration::from_secs(1),
            Some(shown) => shown.elapsed() < Duration::from_millis(100),
        };
        if self.wanted && !soon {
            self.shown = Some(Instant::now());
            let percent = done * 100 / all.max(1);
            self.write(&format!("\r{} … {percent} %", self.what));
        }
    }

    fn write(&self, text: &str) {
        // Standard error may be closed; then there is no one to tell.
        drop(stderr().write_all(text.as_bytes()));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            self.write("\r\u{1b}[K");
        }
    }
}
