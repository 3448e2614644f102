//! The Unix socket that the CNI plugin connects to.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError},
    },
    time::{Duration, Instant},
};

use rustix::{
    fs::Mode,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net,
    sync::{Semaphore, oneshot},
    time::{sleep, timeout},
};
use weir_cni_protocol::{Reply, Request};

use super::{MAX_WAIT, PluginRequest};
use crate::AgentEvent;

/// The most connections that are open at a time. The kernel queues further ones.
const MAX_CONNECTIONS: usize = 1024;
/// The most connections that the kernel queues.
const BACKLOG: i32 = 1024;
/// The longest time to receive a request, and to send a reply.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest request, in bytes.
const MAX_REQUEST_BYTES: u64 = 1 << 20;
/// The delay after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
/// The interval of attempts to send a request to a loop whose queue is full.
const QUEUE_RETRY: Duration = Duration::from_millis(10);

/// A socket for root only. Its file remains after the process, and the next agent replaces it.
#[derive(Debug)]
pub(crate) struct PluginSocket(UnixListener);

impl PluginSocket {
    /// Listens at a path. Replaces a socket without a listener, but nothing else.
    pub(crate) fn bind(path: &Path) -> io::Result<PluginSocket> {
        match fs::symlink_metadata(path) {
            Ok(existing) if !existing.file_type().is_socket() => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "the file is not a socket",
                ));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another process listens there",
                ));
            }
            _ => (),
        }
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        // Create the socket under another name, and rename it: the path always has a socket.
        let temporary = temporary_path(path);
        _ = fs::remove_file(&temporary);
        let listener = listen(&temporary)?;
        fs::rename(&temporary, path)?;
        Ok(PluginSocket(listener))
    }

    /// Removes the socket of an agent that has ended. A missing file is no error.
    pub(crate) fn remove(path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(existing) if !existing.file_type().is_socket() => {
                Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file is not a socket"))
            }
            Ok(_) => fs::remove_file(path),
        }
    }

    /// Serves requests until the future is dropped.
    pub(crate) async fn serve(self, events: SyncSender<AgentEvent>) -> io::Result<()> {
        self.0.set_nonblocking(true)?;
        let listener = net::UnixListener::from_std(self.0)?;
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let slot = slots.clone().acquire_owned().await.ok();
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::error!(%error, "cannot accept a connection on the CNI socket");
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let events = events.clone();
            tokio::spawn(async move {
                // A client that sends nothing, or goes away, gets no reply.
                _ = serve_one(stream, events).await;
                drop(slot);
            });
        }
    }
}

/// Listens at a path. The file never has another mode: the kernel creates it with the mode of the
/// socket.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let (unix, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(unix, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", process::id()))
}

/// Serves one request of a connection.
async fn serve_one(mut stream: net::UnixStream, events: SyncSender<AgentEvent>) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        tracing::warn!(uid, "rejected a connection to the CNI socket: unexpected uid");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = String::new();
    let mut reader = BufReader::new((&mut stream).take(MAX_REQUEST_BYTES));
    timeout(IO_TIMEOUT, reader.read_line(&mut line)).await.map_err(io::Error::from)??;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => forward(request, &events).await?,
        Err(error) => Err(format!("invalid request: {error}")).into(),
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    timeout(IO_TIMEOUT, stream.write_all(&line)).await.map_err(io::Error::from)?
}

/// Sends a request to the loop and waits for its reply. A loop that stops gives none, and the
/// plugin retries with the next agent.
async fn forward(request: Request, events: &SyncSender<AgentEvent>) -> io::Result<Reply> {
    let (reply, answer) = oneshot::channel();
    let mut event = AgentEvent::Plugin(PluginRequest { request, since: Instant::now(), reply });
    while let Err(TrySendError::Full(back)) = events.try_send(event) {
        event = back;
        sleep(QUEUE_RETRY).await;
    }
    let answer = timeout(MAX_WAIT + IO_TIMEOUT, answer).await.map_err(io::Error::from)?;
    answer.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_socket_without_a_listener_is_replaced_and_nothing_else() {
        let disk = tempfile::tempdir().unwrap();
        let path = disk.path().join("run/agent.sock");
        let first = PluginSocket::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let taken = PluginSocket::bind(&path).unwrap_err();
        assert_eq!(taken.to_string(), "another process listens there");
        drop(first);
        let _second = PluginSocket::bind(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "no temporary file remains"
        );
        let file = disk.path().join("file");
        File::create(&file).unwrap();
        assert_eq!(PluginSocket::bind(&file).unwrap_err().to_string(), "the file is not a socket");
    }

    #[test]
    fn only_a_socket_is_removed() {
        let disk = tempfile::tempdir().unwrap();
        let [path, file] = ["agent.sock", "file"].map(|name| disk.path().join(name));
        drop(PluginSocket::bind(&path).unwrap());
        PluginSocket::remove(&path).unwrap();
        assert!(!path.exists());
        PluginSocket::remove(&path).unwrap();
        File::create(&file).unwrap();
        assert_eq!(
            PluginSocket::remove(&file).unwrap_err().to_string(),
            "the file is not a socket"
        );
        assert!(file.exists());
    }
}
