use std::{os::fd::BorrowedFd, time::Instant};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, Result},
};

/// Waits until one of the sockets is readable. Returns `false` after the deadline.
pub(super) fn readable(sockets: &[BorrowedFd<'_>], deadline: Instant) -> Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut watched: Vec<PollFd<'_>> =
            sockets.iter().map(|socket| PollFd::from_borrowed_fd(*socket, PollFlags::IN)).collect();
        match poll(&mut watched, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => (),
            Err(errno) => return Err(errno),
        }
    }
}
