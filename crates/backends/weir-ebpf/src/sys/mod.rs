//! The bpf(2) system call. All unsafe code of this crate is in this folder.
//!
//! The kernel reads `union bpf_attr` as bytes at fixed offsets, so this file writes bytes instead of
//! declaring the union.

#![allow(unsafe_code, reason = "no crate offers bpf(2) without a loader around it")]

mod map;
mod ring_buffer;

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    os::unix::ffi::OsStrExt,
    path::Path,
};

pub(crate) use map::{Map, Position};
pub(crate) use ring_buffer::RingBuffer;

const PROG_LOAD: u32 = 5;
const OBJ_PIN: u32 = 6;
const OBJ_GET: u32 = 7;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const LINK_DETACH: u32 = 34;

const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_NETFILTER: u32 = 32;
const BPF_NETFILTER: u32 = 45;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_F_NETFILTER_IP_DEFRAG: u32 = 1;
/// `SO_NETNS_COOKIE`, which identifies a network namespace until the machine restarts.
const SO_NETNS_COOKIE: i32 = 71;

/// `union bpf_attr`, as bytes.
#[repr(C, align(8))]
struct Attributes([u8; 128]);

impl Attributes {
    fn new() -> Self {
        Attributes([0; 128])
    }

    fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn word(self, at: usize, value: u32) -> Self {
        self.bytes(at, &value.to_ne_bytes())
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Self {
        self.bytes(at, &fd.as_raw_fd().to_ne_bytes())
    }

    fn pointer<T>(self, at: usize, pointer: *const T) -> Self {
        self.bytes(at, &(pointer as u64).to_ne_bytes())
    }

    fn read_word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.0[at..at + 4]);
        u32::from_ne_bytes(word)
    }

    /// Calls the kernel.
    ///
    /// # Safety
    ///
    /// Each pointer must be valid for the length that the command reads or writes.
    unsafe fn call(mut self, command: u32) -> io::Result<i32> {
        // SAFETY: as above.
        unsafe { self.call_in_place(command) }
    }

    /// Calls the kernel, which changes some attributes.
    ///
    /// # Safety
    ///
    /// Each pointer must be valid for the length that the command reads or writes.
    unsafe fn call_in_place(&mut self, command: u32) -> io::Result<i32> {
        // SAFETY: the attributes are as long as stated, and the caller checked the pointers.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
    }
}

/// A new file descriptor from the kernel.
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel returned this descriptor to this call, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A name of a kernel object: at most 15 letters, digits and underscores.
fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    for (to, byte) in name.iter_mut().take(15).zip(text.bytes()) {
        *to = if byte.is_ascii_alphanumeric() { byte } else { b'_' };
    }
    name
}

/// The words of `struct bpf_map_info`, `bpf_prog_info` or `bpf_link_info`.
type ObjectInfo = [u32; 20];

/// What the kernel says about an object.
pub(crate) fn object_info(fd: BorrowedFd<'_>) -> io::Result<ObjectInfo> {
    let mut info: ObjectInfo = [0; 20];
    let attributes = Attributes::new()
        .fd(0, fd)
        .word(4, size_of::<ObjectInfo>() as u32)
        .pointer(8, info.as_mut_ptr());
    // SAFETY: the kernel writes at most as many bytes as stated.
    unsafe { attributes.call(OBJ_GET_INFO_BY_FD) }?;
    Ok(info)
}

/// Why the kernel rejected a program.
#[derive(Debug)]
pub(crate) struct ProgramError {
    pub(crate) error: io::Error,
    /// The end of the verifier's log.
    pub(crate) log: String,
}

/// The length of the verifier's log.
const LOG_BYTES: usize = 1 << 20;

/// Where a program can be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    /// At a hook of netfilter.
    Netfilter,
    /// Where a link receives packets.
    LinkIngress,
}

impl ProgramKind {
    /// The types of the program and of its link.
    fn types(self) -> (u32, u32) {
        match self {
            ProgramKind::Netfilter => (BPF_PROG_TYPE_NETFILTER, BPF_NETFILTER),
            ProgramKind::LinkIngress => (BPF_PROG_TYPE_SCHED_CLS, BPF_TCX_INGRESS),
        }
    }
}

/// Loads a program.
pub(crate) fn load_program(
    kind: ProgramKind,
    text: &str,
    instructions: &[u64],
    license: &str,
) -> Result<OwnedFd, ProgramError> {
    let failed = |error| ProgramError { error, log: String::new() };
    let license = CString::new(license).map_err(|error| failed(error.into()))?;
    let count = u32::try_from(instructions.len())
        .map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
    let (program_type, attach_type) = kind.types();
    let attributes = || {
        Attributes::new()
            .word(0, program_type)
            .word(4, count)
            .pointer(8, instructions.as_ptr())
            .pointer(16, license.as_ptr())
            .bytes(48, &name(text))
            .word(68, attach_type)
    };
    // SAFETY: the instructions are as many as stated, and the licence ends with a zero.
    let error = match unsafe { attributes().call(PROG_LOAD) } {
        Ok(fd) => return Ok(owned(fd)),
        Err(error) => error,
    };
    let mut log = vec![0_u8; LOG_BYTES];
    let with_log =
        attributes().word(24, 1).word(28, LOG_BYTES as u32).pointer(32, log.as_mut_ptr());
    // SAFETY: as above, and the log is as long as stated.
    match unsafe { with_log.call(PROG_LOAD) } {
        Ok(fd) => Ok(owned(fd)),
        Err(_) => {
            let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
            Err(ProgramError { error, log: String::from_utf8_lossy(log).into_owned() })
        }
    }
}

/// Runs a program at a hook of the calling thread's network namespace, while the link exists.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    family: u32,
    hook: u32,
    priority: i32,
) -> io::Result<OwnedFd> {
    let attributes = Attributes::new()
        .fd(0, program)
        .word(8, BPF_NETFILTER)
        .word(16, family)
        .word(20, hook)
        .bytes(24, &priority.to_ne_bytes())
        .word(28, BPF_F_NETFILTER_IP_DEFRAG);
    // SAFETY: there are no pointers.
    unsafe { attributes.call(LINK_CREATE) }.map(owned)
}

/// Runs a program where a link of the calling thread's network namespace receives packets.
pub(crate) fn attach_to_link(program: BorrowedFd<'_>, index: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().fd(0, program).word(4, index).word(8, BPF_TCX_INGRESS);
    // SAFETY: there are no pointers.
    unsafe { attributes.call(LINK_CREATE) }.map(owned)
}

/// Replaces the program of a link atomically.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: there are no pointers.
    unsafe { Attributes::new().fd(0, link).fd(4, program).call(LINK_UPDATE) }.map(drop)
}

/// Stops the program of a link, even if another process still has the link open.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: there are no pointers.
    unsafe { Attributes::new().fd(0, link).call(LINK_DETACH) }.map(drop)
}

fn path_text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Keeps an object in the BPF file system.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_text(path)?;
    let attributes = Attributes::new().pointer(0, path.as_ptr()).fd(8, fd);
    // SAFETY: the path ends with a zero.
    unsafe { attributes.call(OBJ_PIN) }.map(drop)
}

/// Opens an object of the BPF file system.
pub(crate) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = path_text(path)?;
    // SAFETY: the path ends with a zero.
    unsafe { Attributes::new().pointer(0, path.as_ptr()).call(OBJ_GET) }.map(owned)
}

/// The number of the calling thread's network namespace, until the machine restarts.
pub(crate) fn network_namespace() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
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
