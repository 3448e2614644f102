//! One agent per network namespace.
//!
//! The lock is a Unix socket with an abstract name. Such names belong to the network namespace,
//! like the rules, and vanish with the process. On Windows it is a locked file, because there is
//! one agent per machine.

use std::io;

/// Why the agent could not lock the network namespace.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent holds the lock.
    #[error("another weir agent runs in this network namespace (process {process})")]
    Taken {
        /// The agent's process id; 0 if it is in another process namespace.
        process: i32,
    },
    /// The state of the lock is unknown.
    #[error("cannot check whether another agent runs in this network namespace")]
    Unknown(#[source] io::Error),
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Lock;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::Lock;

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        io::{self, ErrorKind},
        os::{
            linux::net::SocketAddrExt,
            unix::net::{SocketAddr, UnixListener, UnixStream},
        },
        thread,
        time::Duration,
    };

    use rustix::{
        net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
        process::geteuid,
    };
    use tokio::{net, runtime};

    use super::LockError;

    const NAME: &str = "weir-agent";
    const ATTEMPTS: u32 = 3;
    const RETRY_DELAY: Duration = Duration::from_millis(100);

    /// The lock of this network namespace, held until the process ends.
    #[derive(Debug)]
    pub(crate) struct Lock {
        /// Why the agent runs without the lock.
        pub(crate) warning: Option<String>,
    }

    impl Lock {
        /// Takes the lock, unless another agent holds it.
        pub(crate) fn acquire() -> Result<Lock, LockError> {
            Lock::acquire_named(NAME)
        }

        pub(super) fn acquire_named(name: &str) -> Result<Lock, LockError> {
            let address =
                SocketAddr::from_abstract_name(name.as_bytes()).map_err(LockError::Unknown)?;
            // The holder may be about to exit, or not listen yet: try a few times.
            for _ in 0..ATTEMPTS {
                match UnixListener::bind_addr(&address) {
                    Ok(listener) => {
                        accept_connections(listener).map_err(LockError::Unknown)?;
                        return Ok(Lock { warning: None });
                    }
                    Err(error) if error.kind() == ErrorKind::AddrInUse => (),
                    Err(error) => return Err(LockError::Unknown(error)),
                }
                if let Ok(holder) = holder(name) {
                    return check_holder(&holder);
                }
                thread::sleep(RETRY_DELAY);
            }
            let warning = "an unresponsive process holds the name of the agent's lock; going on without the lock";
            Ok(Lock { warning: Some(warning.into()) })
        }
    }

    /// The process that holds the name.
    #[derive(Debug)]
    struct Holder {
        user: u32,
        /// The process id; 0 if it is in another process namespace.
        process: i32,
    }

    /// Trusts only root and the agent's own user. Another user must not be able to stop the agent.
    fn check_holder(&Holder { user, process }: &Holder) -> Result<Lock, LockError> {
        if user == 0 || user == geteuid().as_raw() {
            return Err(LockError::Taken { process });
        }
        let warning = format!(
            "user {user} holds the name of the agent's lock (process {process}) and is not trusted; going on without the lock"
        );
        Ok(Lock { warning: Some(warning) })
    }

    /// Finds the process that listens under the name. Never blocks.
    fn holder(name: &str) -> io::Result<Holder> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
        let _entered = runtime.enter();
        let holder = net::UnixStream::from_std(UnixStream::from(socket))?.peer_cred()?;
        Ok(Holder { user: holder.uid(), process: holder.pid().unwrap_or_default() })
    }

    /// Accepts connections in a thread. With a full backlog, other agents could not find this one.
    fn accept_connections(listener: UnixListener) -> io::Result<()> {
        let thread = thread::Builder::new().name("weir-lock".into());
        let accept = move || {
            for connection in listener.incoming() {
                if connection.is_err() {
                    thread::sleep(RETRY_DELAY);
                }
            }
        };
        thread.spawn(accept).map(drop)
    }

    #[cfg(test)]
    mod tests {
        use std::io::Read;

        use super::*;

        #[test]
        fn a_second_agent_learns_the_process_of_the_first() {
            let name = format!("weir-agent-test-{}", std::process::id());
            let lock = Lock::acquire_named(&name).unwrap();
            assert_eq!(lock.warning, None);
            for _ in 0..300 {
                let Err(LockError::Taken { process }) = Lock::acquire_named(&name) else {
                    panic!("taken")
                };
                assert_eq!(process, std::process::id() as i32);
            }
            let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
            let mut stream = UnixStream::connect_addr(&address).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the connection is closed");
        }

        #[test]
        fn another_user_cannot_stop_the_agent() {
            let holder = Holder { user: geteuid().as_raw() + 4711, process: 0 };
            assert!(check_holder(&holder).unwrap().warning.unwrap().contains("not trusted"));
        }

        #[test]
        fn a_name_without_a_listener_does_not_stop_the_agent() {
            let name = format!("weir-agent-mute-{}", std::process::id());
            let socket =
                rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            assert!(Lock::acquire_named(&name).unwrap().warning.unwrap().contains("unresponsive"));
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
                Err(TryLockError::WouldBlock) => Err(LockError::Taken { process: 0 }),
                Err(TryLockError::Error(error)) => Err(LockError::Unknown(error)),
            }
        }
    }
}
