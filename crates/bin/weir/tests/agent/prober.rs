//! Packets at full speed, each of which must meet the verdict that every policy in force gives it.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use weir_lab::Lab;

/// So many sockets send in turn. None of them ever gets a reply, so that every packet is judged
/// anew.
const SENDERS: usize = 64;

/// A packet that passes is there at once; a busy machine may take longer.
const LATE: Duration = Duration::from_secs(2);

/// Who sends to whom: to a port that is open, and to one that is closed.
pub(crate) struct Prober {
    senders: Vec<UdpSocket>,
    open: UdpSocket,
    closed: UdpSocket,
}

/// What was seen while a prober ran.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Packets sent to each port.
    pub(crate) sent: u64,
    /// When packets to the open port were lost.
    pub(crate) lost: Vec<Instant>,
    /// When packets to the closed port arrived.
    pub(crate) slipped: Vec<Instant>,
}

impl Prober {
    /// A prober from one pod to another.
    pub(crate) fn new(lab: &Lab, from: IpAddr, to: IpAddr, open: u16, closed: u16) -> Self {
        let bind = |at: IpAddr, port: u16| {
            let socket = lab.at(at, || UdpSocket::bind((at, port))).unwrap().unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let senders = (0..SENDERS).map(|_| bind(from, 0)).collect();
        Prober { senders, open: bind(to, open), closed: bind(to, closed) }
    }

    /// Sends until it is told to stop.
    pub(crate) fn start(self) -> Probing {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = thread::spawn(move || {
            let mut seen = Seen::default();
            while !told.load(Ordering::Relaxed) {
                self.round(&mut seen);
            }
            seen
        });
        Probing { stop, thread }
    }

    /// One packet to each port from each sender.
    fn round(&self, seen: &mut Seen) {
        let (open, closed) = (at(&self.open), at(&self.closed));
        for (number, sender) in self.senders.iter().enumerate() {
            let mark = [u8::try_from(number).unwrap(), u8::try_from(seen.sent % 251).unwrap()];
            // A refused packet shows as an error of the socket; the receiver tells all there is to
            // know.
            _ = sender.send_to(&mark, closed);
            _ = sender.send_to(&mark, open);
            seen.sent += 1;
            if !arrives(&self.open, &mark) {
                seen.lost.push(Instant::now());
            }
            if self.closed.recv(&mut [0; 8]).is_ok() {
                seen.slipped.push(Instant::now());
            }
        }
    }
}

fn at(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

fn arrives(socket: &UdpSocket, mark: &[u8]) -> bool {
    let mut buffer = [0; 8];
    let begun = Instant::now();
    let mut quick = 0;
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) if &buffer[..length] == mark => return true,
            Ok(_) => (),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                quick += 1;
                // The kernel hands a packet over while it is sent, unless it is busy; only silence
                // takes long.
                if quick > 1_000 && begun.elapsed() > LATE {
                    return false;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A prober at work.
pub(crate) struct Probing {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Probing {
    /// Stops it. What was seen?
    pub(crate) fn stop(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

impl Seen {
    /// Makes sure that something was tried, and that all of it met the right verdict.
    #[track_caller]
    pub(crate) fn is_right(&self, at_least: u64) {
        assert!(self.sent >= at_least, "only {} packets were sent", self.sent);
        assert!(self.lost.is_empty(), "{} of {} packets lost", self.lost.len(), self.sent);
        assert!(self.slipped.is_empty(), "{} of {} slipped", self.slipped.len(), self.sent);
    }
}
