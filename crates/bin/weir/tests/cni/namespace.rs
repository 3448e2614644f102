//! An empty network namespace for a pod, with a path, as a runtime creates it.

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    panic, process, thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

pub(crate) struct Namespace(File);

impl Namespace {
    pub(crate) fn new() -> Self {
        apart(|| {
            unshare();
            Namespace(File::open("/proc/thread-self/ns/net").unwrap())
        })
    }

    /// A second handle of the namespace.
    #[allow(dead_code, reason = "some tests have no lab that takes pods in")]
    pub(crate) fn hold(&self) -> OwnedFd {
        self.0.try_clone().unwrap().into()
    }

    /// The path of the namespace.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.0.as_raw_fd())
    }

    /// Runs a function inside the namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        apart(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
    }
}

fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|payload| panic::resume_unwind(payload))
}

#[expect(
    deprecated,
    reason = "its successor is unsafe on account of `FILES`, which this test does not use"
)]
fn unshare() {
    rustix::thread::unshare(UnshareFlags::NEWNET).unwrap();
}
