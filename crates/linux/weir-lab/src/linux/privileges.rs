use std::{env, fs, io, process};

use rustix::{
    io::Errno,
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    process::{Resource, Rlimit, getegid, geteuid, getrlimit, setrlimit},
    thread::{CapabilitySet, UnshareFlags, capabilities},
};

use super::namespace::unshare;
use crate::LabError;

/// Prepares this process for building labs. Call it first in `main`, while there is only one
/// thread.
///
/// The process moves into an empty network namespace, so that a mistake cannot affect the machine's
/// network. It loses access to that network. Without root privileges it also moves into a user
/// namespace in which it has them. It raises the limit of open files to the maximum, because every
/// probe needs one or two sockets.
///
/// It also gets a mount namespace, in which the lock of iptables-legacy is a separate file: all
/// network namespaces of a machine share that lock.
pub fn enter() -> Result<(), LabError> {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::SYS_ADMIN;
    let capable = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    if capable {
        unshare(UnshareFlags::NEWNET)
            .map_err(|errno| LabError::Forbidden { source: errno.into() })?;
    } else {
        become_root_of_a_user_namespace()?;
    }
    // With a shared lock, iptables may only wait longer.
    let _ = separate_iptables_lock();
    let files = getrlimit(Resource::Nofile);
    // A lower limit only means fewer concurrent probes.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    Ok(())
}

/// The lock that iptables-legacy takes for every change.
const IPTABLES_LOCK: &str = "/run/xtables.lock";

/// Puts another file in the place of the lock, for this process and its children.
fn separate_iptables_lock() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    fs::OpenOptions::new().append(true).create(true).open(IPTABLES_LOCK)?;
    let own = env::temp_dir().join(format!("weir-lab-{}.lock", process::id()));
    fs::File::create(&own)?;
    let mounted = mount_bind(&own, IPTABLES_LOCK);
    // The mount keeps the file.
    fs::remove_file(&own)?;
    Ok(mounted?)
}

/// The same, with an empty BPF file system that only this process has. Needs root.
pub fn enter_with_bpf() -> Result<(), LabError> {
    if !capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN)) {
        return Err(LabError::NeedsRoot);
    }
    enter()?;
    separate_bpf()
}

/// Gives this thread, and the threads and processes that it starts, an empty BPF file system. The
/// kernel releases its content when the last of them ends. Needs root.
pub fn separate_bpf() -> Result<(), LabError> {
    let failed = |errno: Errno| LabError::Namespace {
        what: "mount a BPF file system",
        source: errno.into(),
    };
    unshare(UnshareFlags::NEWNS).map_err(failed)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(failed)?;
    mount("bpf", "/sys/fs/bpf", "bpf", MountFlags::empty(), None).map_err(failed)
}

fn become_root_of_a_user_namespace() -> Result<(), LabError> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET).map_err(|errno| match errno {
        Errno::INVAL => LabError::TooLate,
        _ => LabError::Forbidden { source: errno.into() },
    })?;
    let map = || -> io::Result<()> {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {group} 1"))
    };
    map().map_err(|source| LabError::Forbidden { source })
}
