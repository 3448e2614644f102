//! Programs at netfilter's hooks, and their priorities.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use weir_model::IpFamily;

use super::{
    Installation, Kernel, KernelError, Link,
    errors::{attach_failed, failed},
};
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
    ) -> Result<OwnedFd, KernelError> {
        let attach = || {
            let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
            for priority in priorities(hook) {
                match sys::attach(program, netfilter_family(family), hook as u32, priority) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = error,
                    attached => return attached,
                }
            }
            Err(last)
        };
        self.in_namespace(attach).map_err(|error| attach_failed(family, hook, error))
    }

    /// A program that accepts every packet.
    fn probe(&self) -> Result<&OwnedFd, KernelError> {
        if let Some(probe) = self.probe.get() {
            return Ok(probe);
        }
        let loaded = self.load(IpFamily::V4, &program::accept_all(), &BTreeMap::new())?;
        Ok(self.probe.get_or_init(|| loaded))
    }

    /// Checks whether this kernel can run programs at the hooks of netfilter, with one that accepts
    /// every packet and ends immediately.
    pub(crate) fn check_features(&self) -> Result<(), KernelError> {
        let probe = self.probe()?;
        for family in IpFamily::BOTH {
            self.attach_one(probe.as_fd(), family, HookPoint::Forward)?;
        }
        Ok(())
    }

    /// Whether all programs of an installation still run. The kernel does not tell whether a link was
    /// detached, but it gives the priority of a program that runs to no other one.
    pub(crate) fn is_attached(&self, installation: &Installation) -> Result<bool, KernelError> {
        let probe = self.probe()?;
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
