//! Progress of long work, on a terminal.

use std::{
    io::{IsTerminal, Write, stderr},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The time before work without known steps is reported.
const QUIET_TIME: Duration = Duration::from_secs(2);

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

/// A line on standard error about work without known steps, with its duration. It appears only on a
/// terminal, and only for work that takes more than two seconds.
pub(crate) struct Working(Option<(Sender<()>, JoinHandle<()>)>);

impl Working {
    /// Starts the work.
    pub(crate) fn new(what: &'static str) -> Self {
        if !stderr().is_terminal() {
            return Working(None);
        }
        let (done, is_done) = mpsc::channel();
        let report = move || {
            let start = Instant::now();
            let mut wait = QUIET_TIME;
            while is_done.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = Duration::from_secs(1);
                let line = format!("\r{what} … {} s", start.elapsed().as_secs());
                drop(stderr().write_all(line.as_bytes()));
            }
            if start.elapsed() >= QUIET_TIME {
                drop(stderr().write_all(b"\r\x1b[K"));
            }
        };
        Working(thread::Builder::new().spawn(report).ok().map(|thread| (done, thread)))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.0.take() {
            drop(done);
            drop(thread.join());
        }
    }
}
