//! All unsafe code of this crate: calls of bpf(2), and memory that the kernel shares.
//!
//! The kernel reads `union bpf_attr` as bytes at fixed offsets, so this file writes bytes instead of
//! declaring the union.
//!
//! *Invariant*: only this file puts addresses into attributes. Each function checks the lengths that
//! the kernel reads and writes there, so no caller needs unsafe code.

#![allow(unsafe_code, reason = "no crate offers bpf(2) without a loader around it")]

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::possible_cpus;
use crate::layout::MapType;

const MAP_LOOKUP_ELEM: u32 = 1;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const PROG_LOAD: u32 = 5;
const OBJ_PIN: u32 = 6;
const OBJ_GET: u32 = 7;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const MAP_LOOKUP_BATCH: u32 = 24;
const MAP_UPDATE_BATCH: u32 = 26;

/// Where the attributes have the number of elements of a batch.
const BATCH_COUNT: usize = 32;
/// `SO_NETNS_COOKIE`, which identifies a network namespace until the machine restarts.
const SO_NETNS_COOKIE: i32 = 71;

/// The commands whose attributes have no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainCommand {
    MapCreate = 0,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkDetach = 34,
}

/// `union bpf_attr`, as bytes.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub(super) struct Attributes([u8; 128]);

impl Attributes {
    pub(super) fn new() -> Self {
        Attributes([0; 128])
    }

    pub(super) fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(super) fn word(self, at: usize, value: u32) -> Self {
        self.bytes(at, &value.to_ne_bytes())
    }

    pub(super) fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Self {
        self.bytes(at, &fd.as_raw_fd().to_ne_bytes())
    }

    fn pointer<T>(self, at: usize, pointer: *const T) -> Self {
        self.bytes(at, &(pointer as u64).to_ne_bytes())
    }

    /// Calls a command without addresses.
    pub(super) fn run(mut self, command: PlainCommand) -> io::Result<()> {
        // SAFETY: there are no addresses.
        unsafe { self.call(command as u32) }.map(drop)
    }

    /// Calls a command without addresses that returns a new file descriptor.
    pub(super) fn create(mut self, command: PlainCommand) -> io::Result<OwnedFd> {
        match command {
            PlainCommand::MapCreate | PlainCommand::LinkCreate => (),
            PlainCommand::LinkUpdate | PlainCommand::LinkDetach => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        // SAFETY: there are no addresses, and the command returns a new file descriptor.
        unsafe { self.call_for_fd(command as u32) }
    }

    /// Calls the kernel, which changes some attributes.
    ///
    /// # Safety
    ///
    /// Each address must be valid for the length that the command reads or writes.
    unsafe fn call(&mut self, command: u32) -> io::Result<i32> {
        // SAFETY: the attributes are as long as stated, and the caller checked the addresses.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
    }

    /// # Safety
    ///
    /// As for `call`. The command must return a new file descriptor.
    unsafe fn call_for_fd(&mut self, command: u32) -> io::Result<OwnedFd> {
        // SAFETY: the caller checked the addresses, and nothing else owns the new descriptor.
        unsafe { self.call(command).map(|fd| OwnedFd::from_raw_fd(fd)) }
    }
}

/// The words of `struct bpf_map_info`, `bpf_prog_info` or `bpf_link_info`.
pub(crate) type ObjectInfo = [u32; 20];

/// What the kernel says about an object.
pub(crate) fn object_info(fd: BorrowedFd<'_>) -> io::Result<ObjectInfo> {
    let mut info: ObjectInfo = [0; 20];
    let attributes = Attributes::new().fd(0, fd).word(4, size_of::<ObjectInfo>() as u32);
    // SAFETY: the kernel writes at most as many bytes as stated.
    unsafe { attributes.pointer(8, info.as_mut_ptr()).call(OBJ_GET_INFO_BY_FD) }?;
    Ok(info)
}

/// Loads a program. The kernel writes why it rejects the program to the log, unless that is empty.
pub(super) fn load_program(
    attributes: Attributes,
    instructions: &[u64],
    license: &CStr,
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    let length = |length: usize| u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput);
    let mut attributes = attributes
        .word(4, length(instructions.len())?)
        .pointer(8, instructions.as_ptr())
        .pointer(16, license.as_ptr());
    if !log.is_empty() {
        attributes = attributes.word(24, 1).word(28, length(log.len())?);
        attributes = attributes.pointer(32, log.as_mut_ptr());
    }
    // SAFETY: the instructions and the log are as long as stated, and the licence ends with a zero.
    // The command returns a new file descriptor.
    unsafe { attributes.call_for_fd(PROG_LOAD) }
}

/// Keeps an object in the BPF file system.
pub(super) fn pin(fd: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with a zero.
    unsafe { Attributes::new().pointer(0, path.as_ptr()).fd(8, fd).call(OBJ_PIN) }.map(drop)
}

/// Opens an object of the BPF file system.
pub(super) fn open_pinned(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the path ends with a zero, and the command returns a new file descriptor.
    unsafe { Attributes::new().pointer(0, path.as_ptr()).call_for_fd(OBJ_GET) }
}

/// The number of a socket's network namespace.
pub(super) fn network_namespace(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// A map, with the lengths of keys and values that the kernel reads and writes.
#[derive(Debug)]
pub(super) struct MapFd {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl MapFd {
    /// Reads the lengths from the kernel.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let [map_type, _, key_bytes, value_bytes, ..] = object_info(fd.as_fd())?;
        let mut value_bytes = value_bytes as usize;
        if map_type == MapType::PercpuArray as u32 {
            // A value for each CPU.
            value_bytes = possible_cpus()? * value_bytes.next_multiple_of(8);
        }
        Ok(MapFd { fd, key_bytes: key_bytes as usize, value_bytes })
    }

    pub(super) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    pub(super) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    fn element(&self, key: &[u8]) -> io::Result<Attributes> {
        check(key.len() == self.key_bytes)?;
        Ok(Attributes::new().fd(0, self.as_fd()).pointer(8, key.as_ptr()))
    }

    pub(super) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        check(value.len() == self.value_bytes)?;
        let mut attributes = self.element(key)?.pointer(16, value.as_ptr());
        // SAFETY: the key and the value have the lengths of the map.
        unsafe { attributes.call(MAP_UPDATE_ELEM) }.map(drop)
    }

    /// Writes elements in order: their keys and their values, one after the other.
    pub(super) fn update_all(&self, keys: &[u8], values: &[u8]) -> io::Result<()> {
        let count = keys.len() / self.key_bytes.max(1);
        check(keys.len() == count * self.key_bytes && values.len() == count * self.value_bytes)?;
        let mut attributes = Attributes::new()
            .pointer(16, keys.as_ptr())
            .pointer(24, values.as_ptr())
            .word(BATCH_COUNT, u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?)
            .fd(36, self.as_fd());
        // SAFETY: there are as many keys and values as stated, with the lengths of the map.
        unsafe { attributes.call(MAP_UPDATE_BATCH) }.map(drop)
    }

    pub(super) fn lookup(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.value_bytes];
        let mut attributes = self.element(key)?.pointer(16, value.as_mut_ptr());
        // SAFETY: the key and the value have the lengths of the map.
        unsafe { attributes.call(MAP_LOOKUP_ELEM) }?;
        Ok(value)
    }

    pub(super) fn delete(&self, key: &[u8]) -> io::Result<()> {
        // SAFETY: the key has the length of the map.
        unsafe { self.element(key)?.call(MAP_DELETE_ELEM) }.map(drop)
    }

    /// Reads as many elements as there is room for, after a position that the kernel returned as
    /// `after`. Also returns their number, which is valid if there are no more elements.
    pub(super) fn lookup_all(
        &self,
        before: Option<&[u8]>,
        after: &mut [u8],
        keys: &mut [u8],
        values: &mut [u8],
    ) -> (io::Result<()>, usize) {
        let count = keys.len() / self.key_bytes.max(1);
        // A position is a number or a key.
        let position = self.key_bytes.max(8);
        let is_fit = after.len() == position
            && before.is_none_or(|before| before.len() == position)
            && keys.len() == count * self.key_bytes
            && values.len() == count * self.value_bytes;
        let (Ok(()), Ok(room)) = (check(is_fit), u32::try_from(count)) else {
            return (Err(io::ErrorKind::InvalidInput.into()), 0);
        };
        let mut attributes = Attributes::new()
            .pointer(0, before.map_or(ptr::null(), <[u8]>::as_ptr))
            .pointer(8, after.as_mut_ptr())
            .pointer(16, keys.as_mut_ptr())
            .pointer(24, values.as_mut_ptr())
            .word(BATCH_COUNT, room)
            .fd(36, self.as_fd());
        // SAFETY: keys and values have room for as many as stated, and so have the positions; the
        // first one may be null.
        let result = unsafe { attributes.call(MAP_LOOKUP_BATCH) };
        let mut read = [0; 4];
        read.copy_from_slice(&attributes.0[BATCH_COUNT..BATCH_COUNT + 4]);
        (result.map(drop), u32::from_ne_bytes(read).min(room) as usize)
    }
}

impl AsFd for MapFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn check(is_fit: bool) -> io::Result<()> {
    if is_fit { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// The memory of a ring buffer: the number of bytes that were read, in one page, the number of bytes
/// that were written, in the next page, and the records, which are mapped twice in a row.
#[derive(Debug)]
pub(super) struct RingMemory {
    consumer: Mapping,
    producer: Mapping,
    page: usize,
    size: usize,
}

impl RingMemory {
    /// Maps a buffer of this size, which must be a power of two.
    pub(super) fn new(fd: BorrowedFd<'_>, page: usize, size: usize) -> io::Result<Self> {
        check(size.is_power_of_two())?;
        let consumer = Mapping::new(fd, 0, page, libc::PROT_READ | libc::PROT_WRITE)?;
        let producer = Mapping::new(fd, page, page + 2 * size, libc::PROT_READ)?;
        Ok(RingMemory { consumer, producer, page, size })
    }

    /// The number of bytes that were read.
    pub(super) fn consumed(&self) -> &AtomicU64 {
        // SAFETY: it points to the aligned start of a mapping that lives as long as `self`.
        unsafe { self.consumer.start.cast::<AtomicU64>().as_ref() }
    }

    /// The number of bytes that the kernel wrote.
    pub(super) fn produced(&self) -> u64 {
        // SAFETY: as above; the kernel changes the number while this reads it.
        unsafe { self.producer.start.cast::<AtomicU64>().as_ref() }.load(Ordering::Acquire)
    }

    /// The first word of the record at a position. The kernel writes it last.
    pub(super) fn header(&self, position: u64) -> u32 {
        let header = self.at(position).cast::<AtomicU32>();
        // SAFETY: the position is inside the mapping and aligned; the kernel changes the header while
        // this reads it.
        unsafe { header.as_ref() }.load(Ordering::Acquire)
    }

    /// Bytes of a complete record, after the part of its header of this length.
    pub(super) fn content(&self, position: u64, header: usize, length: usize) -> &[u8] {
        let start = self.at(position);
        let length = length.min(self.size - header.min(self.size));
        // SAFETY: the bytes are inside the mapping, because the records are mapped twice. The kernel
        // does not change a complete record until the reader has passed it.
        unsafe { std::slice::from_raw_parts(start.byte_add(header).as_ptr(), length) }
    }

    /// The address of a position, whose last bits do not count.
    fn at(&self, position: u64) -> NonNull<u8> {
        let offset = position as usize & (self.size - 1) & !7;
        // SAFETY: the offset is below the size.
        unsafe { self.producer.start.byte_add(self.page + offset) }
    }
}

/// Memory that the kernel maps into this process.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value, and is valid in every thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: usize, length: usize, access: i32) -> io::Result<Self> {
        let offset = offset as libc::off_t;
        let flags = libc::MAP_SHARED;
        // SAFETY: the kernel chooses free addresses, and checks length and offset.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), length, access, flags, fd.as_raw_fd(), offset) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Mapping { start, length })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping has this address and length, and nothing uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
