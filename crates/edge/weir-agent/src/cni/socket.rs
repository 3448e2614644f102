//! The socket that plugins ask at.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
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

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net,
    sync::{Semaphore, oneshot},
    time::{sleep, timeout},
};

use super::{Answer, Asked, LONGEST, Request};
use crate::Event;

/// How many may ask at once; the others wait.
const CONNECTIONS: usize = 1024;
/// How long a question may take to be said, and an answer to be heard.
const SPEECH: Duration = Duration::from_secs(5);
/// No question is longer, in bytes.
const QUESTION: u64 = 1 << 20;

/// A socket for root alone. Its file stays behind, and whoever comes next replaces it.
#[derive(Debug)]
pub(crate) struct Socket(UnixListener);

impl Socket {
    /// Listens at a path. A socket there that nobody listens at is replaced; nothing else is.
    pub(crate) fn bind(path: &Path) -> io::Result<Socket> {
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not a socket"));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody listens there"));
            }
            _ => (),
        }
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        // Made beside, and moved into place once its mode is right: there is never a moment without a socket.
        let beside = beside(path);
        _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside)?;
        fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
        fs::rename(&beside, path)?;
        Ok(Socket(listener))
    }

    /// Answers for ever.
    pub(crate) async fn serve(self, events: SyncSender<Event>) -> io::Result<()> {
        self.0.set_nonblocking(true)?;
        let listener = net::UnixListener::from_std(self.0)?;
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let place = places.clone().acquire_owned().await.ok();
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::error!(%error, "cannot hear plugins");
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let events = events.clone();
            tokio::spawn(async move {
                // Whoever does not speak, or leaves, gets no answer.
                _ = converse(stream, events).await;
                drop(place);
            });
        }
    }
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", process::id()))
}

/// One question, one answer.
async fn converse(mut stream: net::UnixStream, events: SyncSender<Event>) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != rustix::process::geteuid().as_raw() {
        tracing::warn!(user = peer, "a stranger asks at the plugin's socket");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = String::new();
    let mut reader = BufReader::new((&mut stream).take(QUESTION));
    timeout(SPEECH, reader.read_line(&mut line)).await.map_err(io::Error::from)??;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => ask(request, &events).await?,
        Err(error) => Err(format!("the question makes no sense: {error}")).into(),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    timeout(SPEECH, stream.write_all(&line)).await.map_err(io::Error::from)?
}

/// The loop's answer. A loop that ends gives none, and the plugin asks whoever comes next.
async fn ask(request: Request, events: &SyncSender<Event>) -> io::Result<Answer> {
    let (reply, answer) = oneshot::channel();
    let mut event = Event::Asked(Asked { request, since: Instant::now(), reply });
    while let Err(TrySendError::Full(back)) = events.try_send(event) {
        event = back;
        sleep(Duration::from_millis(10)).await;
    }
    let answer = timeout(LONGEST + SPEECH, answer).await.map_err(io::Error::from)?;
    answer.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_socket_that_is_left_over_is_replaced_and_nothing_else_is() {
        let disk = tempfile::tempdir().unwrap();
        let path = disk.path().join("run/agent.sock");
        let first = Socket::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let taken = Socket::bind(&path).unwrap_err();
        assert_eq!(taken.to_string(), "somebody listens there");
        drop(first);
        let _second = Socket::bind(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "nothing is left over"
        );
        let file = disk.path().join("file");
        File::create(&file).unwrap();
        assert_eq!(Socket::bind(&file).unwrap_err().to_string(), "it is not a socket");
    }
}
