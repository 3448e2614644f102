use std::{
    fs::{self, File},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic, thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::LabError;

/// A network namespace without a name. It exists as long as this handle, a socket in it, or a
/// thread in it.
#[derive(Debug)]
pub(super) struct NetNamespace(OwnedFd);

impl NetNamespace {
    /// Creates a namespace and moves this thread into it.
    pub(super) fn create() -> Result<NetNamespace, LabError> {
        let what = "create a network namespace";
        unshare(UnshareFlags::NEWNET)
            .map_err(|errno| LabError::Namespace { what, source: errno.into() })?;
        let own = File::open("/proc/thread-self/ns/net")
            .map_err(|source| LabError::Namespace { what, source })?;
        Ok(NetNamespace(own.into()))
    }

    /// Moves this thread into the namespace.
    pub(super) fn enter(&self) -> Result<(), LabError> {
        let what = "enter a network namespace";
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| LabError::Namespace { what, source: errno.into() })
    }
}

impl From<OwnedFd> for NetNamespace {
    fn from(namespace: OwnedFd) -> Self {
        NetNamespace(namespace)
    }
}

impl AsFd for NetNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Runs a function on a separate thread, so that the caller stays in its namespace.
pub(super) fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|payload| panic::resume_unwind(payload))
}

#[expect(
    deprecated,
    reason = "its successor is unsafe because of `FILES`, which this crate does not use"
)]
pub(super) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

/// Writes a setting of the current namespace of this thread.
pub(super) fn set(setting: &'static str, value: &str) -> Result<(), LabError> {
    fs::write(format!("/proc/sys/net/{setting}"), value)
        .map_err(|source| LabError::Setting { setting, source })
}
