//! Asking the agent, for so long and no longer.

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

/// How long until an agent that is away is looked for again.
const PAUSE: Duration = Duration::from_millis(50);
/// How much less an agent may take than we do, at most: an answer that comes late on a busy machine says more than none.
const MARGIN: Duration = Duration::from_secs(1);
/// No answer is longer, in bytes.
const ANSWER: u64 = 1 << 16;

/// How often an agent that is away is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Once.
    Once,
    /// Until the time is over: it may be restarted at this moment.
    Persist,
}

/// Sends a request and returns the agent's reply; an error if none arrives in time.
///
/// The agent gets a slightly shorter timeout than this program has left.
pub(crate) fn ask(
    socket: &Path,
    mut request: Request,
    until: Instant,
    patience: Patience,
) -> io::Result<Result<(), String>> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let margin = (left / 4).min(MARGIN);
        request.set_timeout(left - margin);
        let error = match attempt(socket, &request, until) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if patience == Patience::Once || Instant::now() + PAUSE >= until {
            return Err(error);
        }
        thread::sleep(PAUSE);
    }
}

fn attempt(socket: &Path, request: &Request, until: Instant) -> io::Result<Result<(), String>> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut stream = open(socket)?;
    stream.set_write_timeout(Some(left))?;
    stream.set_read_timeout(Some(left))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    let mut line = String::new();
    BufReader::new(stream.take(ANSWER)).read_line(&mut line)?;
    Ok(serde_json::from_str::<Reply>(&line)?.into())
}

/// Connects without waiting, to root or to ourselves.
fn open(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let agent = sockopt::socket_peercred(&socket)?.uid;
    if !agent.is_root() && agent != rustix::process::geteuid() {
        let who = format!("user {} listens there, who is not trusted", agent.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, who));
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}
