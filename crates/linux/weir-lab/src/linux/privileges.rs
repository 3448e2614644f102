use std::{fs, io};

use rustix::{
    io::Errno,
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
pub fn enter() -> Result<(), LabError> {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::SYS_ADMIN;
    let capable = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    if capable {
        unshare(UnshareFlags::NEWNET)
            .map_err(|errno| LabError::Forbidden { source: errno.into() })?;
    } else {
        become_root_of_a_user_namespace()?;
    }
    let files = getrlimit(Resource::Nofile);
    // A lower limit only means fewer concurrent probes.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    Ok(())
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
