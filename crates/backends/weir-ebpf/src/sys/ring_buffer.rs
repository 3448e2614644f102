//! Ring buffers: memory that the kernel writes and this process reads.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::atomic::Ordering,
};

use rustix::param::page_size;

use super::{open_pinned, raw::RingMemory};

/// The reader of a ring buffer of the kernel.
#[derive(Debug)]
pub(crate) struct RingBuffer {
    fd: OwnedFd,
    memory: RingMemory,
    size: usize,
}

/// A record that the kernel is still writing, and one without content.
const RECORD_BUSY: u32 = 1 << 31;
const RECORD_DISCARDED: u32 = 1 << 30;
const RECORD_HEADER: usize = 8;

impl RingBuffer {
    /// Opens a pinned buffer of this size, which must be a power of two.
    pub(crate) fn open(path: &Path, size: usize) -> io::Result<Self> {
        let fd = open_pinned(path)?;
        let memory = RingMemory::new(fd.as_fd(), page_size(), size)?;
        Ok(RingBuffer { fd, memory, size })
    }

    /// Visits the records that are complete, and frees their memory.
    pub(crate) fn drain(&mut self, mut visit: impl FnMut(&[u8])) {
        let consumed = self.memory.consumed();
        let mut at = consumed.load(Ordering::Relaxed);
        while at < self.memory.produced() {
            let header = self.memory.header(at);
            let length = (header & !(RECORD_BUSY | RECORD_DISCARDED)) as usize;
            if header & RECORD_BUSY != 0 || length > self.size {
                break;
            }
            if header & RECORD_DISCARDED == 0 {
                visit(self.memory.content(at, RECORD_HEADER, length));
            }
            at += (length + RECORD_HEADER).next_multiple_of(8) as u64;
            consumed.store(at, Ordering::Release);
        }
    }
}

impl AsFd for RingBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
