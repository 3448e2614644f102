//! One agent per network namespace.
//!
//! On Linux, the lock is a group of the kernel's packet log that no rule uses. A group belongs to
//! the network namespace, like the rules, has one reader, and becomes free when the process ends.
//! Only a process with CAP_NET_ADMIN can take it. Such a process can change the rules anyway, so the
//! lock gives no other process a way to stop the agent. On Windows it is a locked file, because
//! there is one agent per machine.

use std::io;

/// Where one agent can run.
const HERE: &str =
    if cfg!(target_os = "linux") { "in this network namespace" } else { "on this machine" };

/// Why the agent could not take the lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent holds the lock.
    #[error("another weir agent runs {}", HERE)]
    Taken,
    /// Without CAP_NET_ADMIN, the agent cannot change rules either.
    #[error("the agent has no permission to change the rules of this network namespace")]
    Forbidden,
    /// The state of the lock is unknown.
    #[error("cannot check whether another agent runs {}", HERE)]
    Unknown(#[source] io::Error),
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Lock;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::Lock;

#[cfg(target_os = "linux")]
mod linux {
    use std::mem;

    use rustix::thread::{CapabilitySet, capabilities};
    use weir_netfilter::{LogError, PacketLog};

    use super::LockError;

    /// The group: "we" in ASCII.
    const GROUP: u16 = 0x7765;

    /// The lock of this network namespace, held until the process ends.
    #[derive(Debug)]
    pub(crate) struct Lock {
        /// Why the agent runs without the lock.
        pub(crate) warning: Option<String>,
    }

    impl Lock {
        /// Takes the lock, unless another agent holds it.
        pub(crate) fn acquire() -> Result<Lock, LockError> {
            Lock::acquire_group(GROUP)
        }

        fn acquire_group(group: u16) -> Result<Lock, LockError> {
            match PacketLog::open(group) {
                Ok(log) => {
                    // The lock must outlive this function.
                    mem::forget(log);
                    Ok(Lock { warning: None })
                }
                Err(LogError::Open(error)) => Err(LockError::Unknown(error)),
                // The kernel reports a group of another process and a missing permission alike.
                Err(LogError::Taken { .. }) if is_permitted()? => Err(LockError::Taken),
                Err(LogError::Taken { .. }) => Err(LockError::Forbidden),
                Err(error @ (LogError::Bind { .. } | LogError::Receive(_))) => {
                    let warning = format!(
                        "the kernel cannot log packets, so the agent cannot exclude that another one runs here: {error}"
                    );
                    Ok(Lock { warning: Some(warning) })
                }
            }
        }
    }

    fn is_permitted() -> Result<bool, LockError> {
        let own = capabilities(None).map_err(|error| LockError::Unknown(error.into()))?;
        Ok(own.effective.contains(CapabilitySet::NET_ADMIN))
    }

    #[cfg(test)]
    mod tests {
        use std::thread;

        use rustix::thread::{CapabilitySets, set_capabilities};

        use super::*;

        /// A group that no other test uses.
        fn group(offset: u16) -> u16 {
            20_000 + 4 * u16::try_from(std::process::id() % 10_000).unwrap() + offset
        }

        #[test]
        fn a_second_agent_is_rejected_until_the_first_one_ends() {
            let first = PacketLog::open(group(0)).unwrap();
            assert!(matches!(Lock::acquire_group(group(0)), Err(LockError::Taken)));
            drop(first);
            assert_eq!(Lock::acquire_group(group(0)).unwrap().warning, None);
            assert!(matches!(Lock::acquire_group(group(0)), Err(LockError::Taken)));
        }

        #[test]
        fn root_without_capabilities_cannot_hold_the_lock() {
            let hold = || {
                let none = CapabilitySet::empty();
                let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
                set_capabilities(None, none).unwrap();
                Lock::acquire_group(group(1))
            };
            let held = thread::spawn(hold).join().unwrap();
            assert!(matches!(held, Err(LockError::Forbidden)), "{held:?}");
            assert_eq!(Lock::acquire_group(group(1)).unwrap().warning, None);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::{
        env,
        fs::{self, File, TryLockError},
        path::PathBuf,
    };

    use super::LockError;

    /// The lock of this machine: a locked file, held until the process ends.
    #[derive(Debug)]
    pub(crate) struct Lock {
        pub(crate) warning: Option<String>,
    }

    impl Lock {
        pub(crate) fn acquire() -> Result<Lock, LockError> {
            let data = env::var_os("ProgramData").map_or_else(env::temp_dir, PathBuf::from);
            let folder = data.join("weir");
            fs::create_dir_all(&folder).map_err(LockError::Unknown)?;
            let file = File::create(folder.join("agent.lock")).map_err(LockError::Unknown)?;
            match file.try_lock() {
                Ok(()) => {
                    // The lock must outlive this function.
                    std::mem::forget(file);
                    Ok(Lock { warning: None })
                }
                Err(TryLockError::WouldBlock) => Err(LockError::Taken),
                Err(TryLockError::Error(error)) => Err(LockError::Unknown(error)),
            }
        }
    }
}
