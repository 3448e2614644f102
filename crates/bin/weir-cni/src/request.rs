//! Requests to the agent, with a deadline.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use weir_cni_protocol::{Reply, Request};

/// The time between two attempts to reach the agent.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The part of the remaining time that is reserved for the answer to arrive: even on a busy machine
/// the plugin then reports the reason of the agent instead of a timeout.
const MAX_MARGIN: Duration = Duration::from_secs(1);
/// The maximum size of an answer.
const MAX_ANSWER_BYTES: u64 = 1 << 16;

/// Whether to retry if the agent is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Do not retry.
    Never,
    /// Retry until the deadline, because the agent may be restarting.
    UntilDeadline,
}

/// Sends a request and returns the answer of the agent, or an error if there is none before the
/// deadline.
///
/// The request contains the time that the agent may take, which is a little less than the remaining
/// time.
pub(crate) fn send(
    socket: &Path,
    mut request: Request,
    deadline: Instant,
    retry: Retry,
) -> io::Result<Result<(), String>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let margin = (left / 4).min(MAX_MARGIN);
        request.set_timeout(left - margin);
        let error = match attempt(socket, &request, left) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if retry == Retry::Never {
            return Err(error);
        }
        thread::sleep(RETRY_INTERVAL);
        // On a busy machine the sleep can last longer. The reason of the last attempt says more
        // than a timeout.
        if Instant::now() >= deadline {
            return Err(error);
        }
    }
}

fn attempt(socket: &Path, request: &Request, left: Duration) -> io::Result<Result<(), String>> {
    let mut stream = open(socket)?;
    // A timeout of zero is invalid.
    let timeout = Some(left.max(RETRY_INTERVAL));
    stream.set_write_timeout(timeout)?;
    stream.set_read_timeout(timeout)?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_ANSWER_BYTES)).read_line(&mut line)?;
    Ok(serde_json::from_str::<Reply>(&line)?.into())
}

/// Connects without blocking. The peer must run as root or as this user.
fn open(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let agent = sockopt::socket_peercred(&socket)?.uid;
    if !agent.is_root() && agent != rustix::process::geteuid() {
        let reason = format!("the socket belongs to untrusted user {}", agent.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}
