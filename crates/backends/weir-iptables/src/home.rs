//! The network namespace that rules are for. Programs are started there, whichever thread asks.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    panic, thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where a thread finds the network namespace that it is in.
const HERE: &str = "/proc/thread-self/ns/net";

/// A network namespace; `None` where nobody can tell, and then there is only one.
#[derive(Debug)]
pub(crate) struct Home(Option<(File, u64)>);

impl Home {
    /// The namespace that this thread is in.
    pub(crate) fn here() -> Self {
        Home(File::open(HERE).and_then(|file| Ok((file, number()?))).ok())
    }

    /// Runs something there. To move needs more rights than rules do, so only who is elsewhere moves.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let Some((file, own)) = &self.0 else { return Ok(work()) };
        if number()? == *own {
            return Ok(work());
        }
        let there = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        };
        thread::scope(|scope| scope.spawn(there).join())
            .unwrap_or_else(|payload| panic::resume_unwind(payload))
    }
}

/// The number of the namespace that this thread is in.
fn number() -> io::Result<u64> {
    Ok(fs::metadata(HERE)?.ino())
}
