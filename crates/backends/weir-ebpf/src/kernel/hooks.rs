//! Programs at netfilter's hooks, and their priorities.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use weir_model::IpFamily;

use super::{Installation, Kernel, KernelError, Link, failed};
use crate::{
    program::{self, HookPoint},
    sys,
};

/// The priorities to try. Netfilter gives each number to one program only, and other programs use
/// round ones. Packets for the node come after IPVS, as in the nftables datapath.
fn priorities(hook: HookPoint) -> impl Iterator<Item = i32> {
    let first = match hook {
        HookPoint::Input => 101,
        HookPoint::Forward | HookPoint::Output => -31,
    };
    (0..8).map(move |number| first + 2 * number)
}

/// The number of a family for netfilter.
fn netfilter_family(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

impl Kernel {
    /// Attaches a program at the first free priority.
    pub(super) fn attach_one(
        &self,
        program: BorrowedFd<'_>,
        family: IpFamily,
        hook: HookPoint,
    ) -> io::Result<OwnedFd> {
        self.in_namespace(|| {
            let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
            for priority in priorities(hook) {
                match sys::attach(program, netfilter_family(family), hook as u32, priority) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = error,
                    attached => return attached,
                }
            }
            Err(last)
        })
    }

    /// Whether all programs of an installation still run. The kernel does not tell whether a link was
    /// detached, but it gives the priority of a program that runs to no other one.
    pub(crate) fn is_attached(&self, installation: &Installation) -> Result<bool, KernelError> {
        let probe = match self.probe.get() {
            Some(probe) => probe,
            None => {
                let loaded = self.load(IpFamily::V4, &program::accept_all(), &BTreeMap::new())?;
                self.probe.get_or_init(|| loaded)
            }
        };
        let is_taken = |link: &Link| {
            let (family, hook) = (netfilter_family(link.family), link.hook as u32);
            match sys::attach(probe.as_fd(), family, hook, link.priority) {
                Ok(_) => Ok(false),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(true),
                Err(error) => Err(error),
            }
        };
        let all = || {
            for link in &installation.links {
                if !is_taken(link)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        self.in_namespace(all).map_err(failed("check the programs"))
    }
}
