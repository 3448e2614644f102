//! The bpf(2) system call, without unsafe code: that is in `raw`.

mod map;
mod raw;
mod ring_buffer;

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

pub(crate) use map::{Map, Position};
pub(crate) use raw::object_info;
use raw::{Attributes, PlainCommand};
pub(crate) use ring_buffer::RingBuffer;

const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_NETFILTER: u32 = 32;
const BPF_NETFILTER: u32 = 45;
const BPF_TCX_INGRESS: u32 = 46;
/// Netfilter reassembles fragments before the program. Linux 6.6 added it.
const BPF_F_NETFILTER_IP_DEFRAG: u32 = 1;

/// A name of a kernel object: at most 15 letters, digits and underscores.
fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    for (to, byte) in name.iter_mut().take(15).zip(text.bytes()) {
        *to = if byte.is_ascii_alphanumeric() { byte } else { b'_' };
    }
    name
}

/// The number of CPUs that the machine can have.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other("cannot read the number of CPUs"))
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
    let (program_type, attach_type) = kind.types();
    let attributes =
        Attributes::new().word(0, program_type).bytes(48, &name(text)).word(68, attach_type);
    let load = |log: &mut [u8]| raw::load_program(attributes.clone(), instructions, &license, log);
    load(&mut []).or_else(|error| {
        let mut log = vec![0_u8; LOG_BYTES];
        load(&mut log).map_err(|_| {
            let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
            ProgramError { error, log: String::from_utf8_lossy(log).into_owned() }
        })
    })
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
    attributes.create(PlainCommand::LinkCreate)
}

/// Runs a program where a link of the calling thread's network namespace receives packets.
pub(crate) fn attach_to_link(program: BorrowedFd<'_>, index: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().fd(0, program).word(4, index).word(8, BPF_TCX_INGRESS);
    attributes.create(PlainCommand::LinkCreate)
}

/// Replaces the program of a link atomically.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    Attributes::new().fd(0, link).fd(4, program).run(PlainCommand::LinkUpdate)
}

/// Stops the program of a link, even if another process still has the link open.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    Attributes::new().fd(0, link).run(PlainCommand::LinkDetach)
}

fn path_text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Keeps an object in the BPF file system.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    raw::pin(fd, &path_text(path)?)
}

/// Opens an object of the BPF file system.
pub(crate) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    raw::open_pinned(&path_text(path)?)
}

/// The number of the calling thread's network namespace, until the machine restarts.
pub(crate) fn network_namespace() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    raw::network_namespace(socket.as_fd())
}
