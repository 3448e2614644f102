//! Tries connections from the network namespace of this process. `weir test --live` runs it in pods.

use std::{
    fmt,
    io::{self, ErrorKind, Write},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    path::PathBuf,
    str::FromStr,
    thread,
    time::Duration,
};

use clap::Args;
use weir_model::{Protocol, Verdict};

use crate::exit::Exit;

/// How long a connection may take. The kernel repeats the first packet after 1 s.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(2500);
/// How often a datagram is sent, and how long each waits for an answer.
const DATAGRAMS: usize = 3;
const DATAGRAM_TIMEOUT: Duration = Duration::from_millis(700);

/// Try connections from here
///
/// Prints a letter for each target: `a` if packets pass, `d` if they do not, `u` if it is unknown. A
/// port that nothing listens on counts as `a`, because the other end rejects the connection.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct ConnectCommand {
    /// Targets, for example TCP/10.0.0.1:80 or UDP/[fd00::1]:53
    #[arg(required = true, value_name = "PROTOCOL/ADDRESS:PORT")]
    targets: Vec<Target>,
    /// Write the letters to a file instead
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// The server of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    protocol: Protocol,
    address: SocketAddr,
}

impl Target {
    pub(crate) fn new(protocol: Protocol, address: IpAddr, port: u16) -> Self {
        Target { protocol, address: SocketAddr::new(address, port) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.protocol, self.address)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (protocol, address) = text.split_once('/').ok_or("expected PROTOCOL/ADDRESS:PORT")?;
        let known = Protocol::ALL.into_iter().find(|known| known.to_string() == protocol);
        let protocol = known.ok_or("the protocol is TCP, UDP or SCTP")?;
        let address =
            address.parse().map_err(|_| format!("{address} is not an address and port"))?;
        Ok(Target { protocol, address })
    }
}

impl ConnectCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let letters = thread::scope(|scope| {
            let tries: Vec<_> =
                self.targets.iter().map(|target| scope.spawn(|| connect(*target))).collect();
            let verdicts = tries.into_iter().map(|one| one.join().unwrap_or(None));
            verdicts.map(letter).collect::<String>()
        });
        match &self.write {
            Some(file) => {
                let context = |error| anyhow::Error::new(error).context(file.display().to_string());
                std::fs::write(file, letters).map_err(context)?;
            }
            None => writeln!(out, "{letters}")?,
        }
        Ok(Exit::Yes)
    }
}

/// The letter of a verdict.
fn letter(verdict: Option<Verdict>) -> char {
    match verdict {
        Some(Verdict::Allow) => 'a',
        Some(Verdict::Deny) => 'd',
        None => 'u',
    }
}

/// The verdict of a letter; `None` if it is unknown.
pub(crate) fn verdict_of(letter: char) -> Option<Verdict> {
    [Verdict::Allow, Verdict::Deny]
        .into_iter()
        .find(|verdict| self::letter(Some(*verdict)) == letter)
}

/// Tries a connection. `None` if this machine cannot send such packets.
fn connect(target: Target) -> Option<Verdict> {
    let result = match target.protocol {
        Protocol::Tcp => TcpStream::connect_timeout(&target.address, CONNECT_TIMEOUT).map(drop),
        Protocol::Udp => exchange_datagram(target.address),
        Protocol::Sctp => return None,
    };
    match result {
        Ok(()) => Some(Verdict::Allow),
        Err(error) => verdict_of_error(&error),
    }
}

/// The other end rejects packets that reach a closed port. Filters drop packets, or reject them with
/// messages about hosts and administrators.
fn verdict_of_error(error: &io::Error) -> Option<Verdict> {
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => Some(Verdict::Allow),
        ErrorKind::TimedOut
        | ErrorKind::WouldBlock
        | ErrorKind::HostUnreachable
        | ErrorKind::PermissionDenied => Some(Verdict::Deny),
        // There is no route from here.
        _ => None,
    }
}

/// Sends datagrams until one is answered, also by a rejection.
fn exchange_datagram(target: SocketAddr) -> io::Result<()> {
    let any: IpAddr = match target.ip() {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(DATAGRAM_TIMEOUT))?;
    let mut last = Err(ErrorKind::TimedOut.into());
    for _ in 0..DATAGRAMS {
        last = socket.send(b"weir\n").and_then(|_| socket.recv(&mut [0; 512])).map(drop);
        match &last {
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            _ => return last,
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn targets_are_read_as_they_are_written() {
        for text in ["TCP/10.0.0.1:80", "UDP/[fd00::1]:53", "SCTP/10.0.0.1:1"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["10.0.0.1:80", "ICMP/10.0.0.1:80", "TCP/10.0.0.1"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn open_and_closed_ports_count_as_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for (protocol, address) in
            [(Protocol::Tcp, open), (Protocol::Tcp, closed), (Protocol::Udp, closed)]
        {
            assert_eq!(connect(Target { protocol, address }), Some(Verdict::Allow), "{address}");
        }
        assert_eq!(connect(Target { protocol: Protocol::Sctp, address: open }), None);
    }

    #[test]
    fn letters_mean_verdicts() {
        assert_eq!(
            "adu".chars().map(verdict_of).collect::<Vec<_>>(),
            [Some(Verdict::Allow), Some(Verdict::Deny), None]
        );
    }
}
