//! Ring buffers: memory that the kernel writes and this process reads.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::open_pinned;

/// The reader of a ring buffer of the kernel: two numbers that count bytes, and the records. The kernel
/// maps the records twice in a row, so that none is divided.
#[derive(Debug)]
pub(crate) struct RingBuffer {
    fd: OwnedFd,
    /// How many bytes were read: the first page.
    consumer: NonNull<AtomicU64>,
    /// How many bytes were written: the second page. The records follow.
    producer: NonNull<AtomicU64>,
    size: usize,
    page: usize,
}

// SAFETY: the pointers belong to mappings of this value, which are valid in every thread.
unsafe impl Send for RingBuffer {}

/// A record that the kernel is still writing, and one without content.
const RECORD_BUSY: u32 = 1 << 31;
const RECORD_DISCARDED: u32 = 1 << 30;
const RECORD_HEADER: usize = 8;

impl RingBuffer {
    /// Opens a pinned buffer of this size, which must be a power of two.
    pub(crate) fn open(path: &Path, size: usize) -> io::Result<Self> {
        let fd = open_pinned(path)?;
        // SAFETY: no memory is involved.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
            .map_err(io::Error::other)?;
        let map = |length: usize, access: i32, offset: usize| {
            // SAFETY: the kernel chooses free addresses, and checks length and offset.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    length,
                    access,
                    libc::MAP_SHARED,
                    fd.as_raw_fd(),
                    offset as libc::off_t,
                )
            };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            NonNull::new(start.cast::<AtomicU64>()).ok_or_else(io::Error::last_os_error)
        };
        let consumer = map(page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let producer = match map(page + 2 * size, libc::PROT_READ, page) {
            Ok(producer) => producer,
            Err(error) => {
                // SAFETY: the mapping above has this address and length, and nothing uses it.
                unsafe { libc::munmap(consumer.as_ptr().cast(), page) };
                return Err(error);
            }
        };
        Ok(RingBuffer { fd, consumer, producer, size, page })
    }

    /// Visits the records that are complete, and frees their memory.
    pub(crate) fn drain(&mut self, mut visit: impl FnMut(&[u8])) {
        // SAFETY: both point to the aligned start of a mapping that lives as long as `self`.
        let (consumer, producer) = unsafe { (self.consumer.as_ref(), self.producer.as_ref()) };
        let mut at = consumer.load(Ordering::Relaxed);
        while at < producer.load(Ordering::Acquire) {
            let offset = at as usize & (self.size - 1);
            // SAFETY: the offset is below the size and a multiple of 8, and the kernel wrote a header
            // there.
            let start = unsafe { self.producer.as_ptr().byte_add(self.page + offset) };
            // SAFETY: as above; the kernel changes the header while this reads it.
            let header = unsafe { &*start.cast::<AtomicU32>() }.load(Ordering::Acquire);
            let length = (header & !(RECORD_BUSY | RECORD_DISCARDED)) as usize;
            if header & RECORD_BUSY != 0 || length > self.size {
                break;
            }
            if header & RECORD_DISCARDED == 0 {
                // SAFETY: a record is at most as long as the buffer, which is mapped twice, and the
                // kernel does not change it until it is freed below.
                visit(unsafe {
                    std::slice::from_raw_parts(start.byte_add(RECORD_HEADER).cast(), length)
                });
            }
            at += (length + RECORD_HEADER).next_multiple_of(8) as u64;
            consumer.store(at, Ordering::Release);
        }
    }
}

impl Drop for RingBuffer {
    fn drop(&mut self) {
        // SAFETY: the mappings have these addresses and lengths, and nothing uses them any more.
        unsafe {
            libc::munmap(self.consumer.as_ptr().cast(), self.page);
            libc::munmap(self.producer.as_ptr().cast(), self.page + 2 * self.size);
        }
    }
}

impl AsFd for RingBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
