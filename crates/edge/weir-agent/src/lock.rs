//! One agent per network namespace.
//!
//! The lock is a socket with an abstract name. Such names belong to the network namespace, as the rules do, and vanish with
//! the process. On Windows it is a file that is locked, for there is one agent for a machine.

use std::io;

/// Why the network namespace is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else keeps its rules.
    #[error("another weir agent runs in this network namespace (process {process})")]
    Taken {
        /// Its process, 0 if it is not to be seen from here.
        process: i32,
    },
    /// There is no telling.
    #[error("cannot make sure that no other agent runs in this network namespace")]
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

    /// The right to keep the rules of this network namespace, for as long as the process lives.
    #[derive(Debug)]
    pub(crate) struct Lock {
        /// Why the lock is not really held, though nobody else has a right to it.
        pub(crate) warning: Option<String>,
    }

    impl Lock {
        /// Takes the lock, unless another agent has it.
        pub(crate) fn take() -> Result<Lock, LockError> {
            Lock::named(NAME)
        }

        pub(super) fn named(name: &str) -> Result<Lock, LockError> {
            let address =
                SocketAddr::from_abstract_name(name.as_bytes()).map_err(LockError::Unknown)?;
            // Whoever leaves at this moment, or has not begun to listen, gets a little time.
            for _ in 0..3 {
                match UnixListener::bind_addr(&address) {
                    Ok(listener) => {
                        answer(listener).map_err(LockError::Unknown)?;
                        return Ok(Lock { warning: None });
                    }
                    Err(error) if error.kind() == ErrorKind::AddrInUse => (),
                    Err(error) => return Err(LockError::Unknown(error)),
                }
                if let Ok(holder) = holder(name) {
                    return judge(&holder);
                }
                thread::sleep(Duration::from_millis(100));
            }
            let warning = "somebody who does not answer holds the name of the agent's lock; going on without it";
            Ok(Lock { warning: Some(warning.into()) })
        }
    }

    /// Who holds the name.
    #[derive(Debug)]
    struct Holder {
        user: u32,
        /// 0 if it is not to be seen from here.
        process: i32,
    }

    /// Root and our own user are believed. Anybody else could only want to keep us from our work.
    fn judge(&Holder { user, process }: &Holder) -> Result<Lock, LockError> {
        if user == 0 || user == geteuid().as_raw() {
            return Err(LockError::Taken { process });
        }
        let warning = format!(
            "user {user} holds the name of the agent's lock (process {process}) and is not trusted; going on without it"
        );
        Ok(Lock { warning: Some(warning) })
    }

    /// Who listens under the name. Never waits.
    fn holder(name: &str) -> io::Result<Holder> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
        let _entered = runtime.enter();
        let holder = net::UnixStream::from_std(UnixStream::from(socket))?.peer_cred()?;
        Ok(Holder { user: holder.uid(), process: holder.pid().unwrap_or_default() })
    }

    /// Answers those who ask who we are, for ever: a queue that is full would hide us.
    fn answer(listener: UnixListener) -> io::Result<()> {
        let thread = thread::Builder::new().name("weir-lock".into());
        let answer = move || {
            for asked in listener.incoming() {
                if asked.is_err() {
                    thread::sleep(Duration::from_millis(100));
                }
            }
        };
        thread.spawn(answer).map(drop)
    }

    #[cfg(test)]
    mod tests {
        use std::io::Read;

        use super::*;

        #[test]
        fn the_second_is_told_who_is_first() {
            let name = format!("weir-agent-test-{}", std::process::id());
            let lock = Lock::named(&name).unwrap();
            assert_eq!(lock.warning, None);
            for _ in 0..300 {
                let Err(LockError::Taken { process }) = Lock::named(&name) else { panic!("taken") };
                assert_eq!(process, std::process::id() as i32);
            }
            let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
            let mut stream = UnixStream::connect_addr(&address).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "those who ask are not kept");
        }

        #[test]
        fn a_stranger_cannot_keep_us_from_our_work() {
            let stranger = Holder { user: geteuid().as_raw() + 4711, process: 0 };
            assert!(judge(&stranger).unwrap().warning.unwrap().contains("not trusted"));
        }

        #[test]
        fn a_name_that_is_only_occupied_is_no_agent() {
            let name = format!("weir-agent-mute-{}", std::process::id());
            let socket =
                rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            assert!(Lock::named(&name).unwrap().warning.unwrap().contains("does not answer"));
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

    /// The right to keep the rules of this machine, for as long as the process lives: a file that is locked.
    #[derive(Debug)]
    pub(crate) struct Lock {
        pub(crate) warning: Option<String>,
    }

    impl Lock {
        pub(crate) fn take() -> Result<Lock, LockError> {
            let data = env::var_os("ProgramData").map_or_else(env::temp_dir, PathBuf::from);
            let folder = data.join("weir");
            fs::create_dir_all(&folder).map_err(LockError::Unknown)?;
            let file = File::create(folder.join("agent.lock")).map_err(LockError::Unknown)?;
            match file.try_lock() {
                Ok(()) => {
                    // It is held until the process ends.
                    std::mem::forget(file);
                    Ok(Lock { warning: None })
                }
                Err(TryLockError::WouldBlock) => Err(LockError::Taken { process: 0 }),
                Err(TryLockError::Error(error)) => Err(LockError::Unknown(error)),
            }
        }
    }
}
