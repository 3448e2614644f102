//! The network namespace of the rules. Programs run there, whichever thread starts them.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    panic, thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The link to the current network namespace of a thread.
const CURRENT: &str = "/proc/thread-self/ns/net";

/// A network namespace. `None` without `/proc`, where there is only one.
#[derive(Debug)]
pub(crate) struct NetNamespace(Option<(File, u64)>);

impl NetNamespace {
    /// The current namespace of this thread.
    pub(crate) fn current() -> Self {
        NetNamespace(File::open(CURRENT).and_then(|file| Ok((file, number()?))).ok())
    }

    /// Runs a function in the namespace. Moving needs more privileges than iptables, so a thread
    /// moves only if it is elsewhere.
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

/// The number of this thread's current namespace.
fn number() -> io::Result<u64> {
    Ok(fs::metadata(CURRENT)?.ino())
}
