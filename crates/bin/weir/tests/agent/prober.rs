//! Sends packets at full speed. Each must get the verdict that all policies of the test agree on.

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

/// The number of sockets that send in turn. None gets a reply, so that the rules evaluate every
/// packet.
const SENDERS: usize = 64;

/// The time that an allowed packet may take on a busy machine.
const LATE: Duration = Duration::from_secs(2);

/// Sends from one pod to an open and a closed port of another.
pub(crate) struct Prober {
    senders: Vec<UdpSocket>,
    open: UdpSocket,
    closed: UdpSocket,
}

/// The results of a prober.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// The number of packets sent to each port.
    pub(crate) sent: u64,
    /// The times at which packets to the open port were lost.
    pub(crate) lost: Vec<Instant>,
    /// The times at which packets to the closed port arrived.
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

    /// Sends in a thread until it is stopped.
    pub(crate) fn start(self) -> Probing {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut results = Results::default();
            while !stopped.load(Ordering::Relaxed) {
                self.round(&mut results);
            }
            results
        });
        Probing { stop, thread }
    }

    /// Sends one packet to each port from each socket.
    fn round(&self, results: &mut Results) {
        let (open, closed) = (at(&self.open), at(&self.closed));
        for (number, sender) in self.senders.iter().enumerate() {
            let mark = [u8::try_from(number).unwrap(), u8::try_from(results.sent % 251).unwrap()];
            // A rejected packet is an error of the socket; only the receiver counts.
            _ = sender.send_to(&mark, closed);
            _ = sender.send_to(&mark, open);
            results.sent += 1;
            if !arrives(&self.open, &mark) {
                results.lost.push(Instant::now());
            }
            if self.closed.recv(&mut [0; 8]).is_ok() {
                results.slipped.push(Instant::now());
            }
        }
    }
}

fn at(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

fn arrives(socket: &UdpSocket, mark: &[u8]) -> bool {
    let mut buffer = [0; 8];
    let start_time = Instant::now();
    let mut quick = 0;
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) if &buffer[..length] == mark => return true,
            Ok(_) => (),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                quick += 1;
                // The kernel usually delivers a packet while it is sent; only a lost packet takes
                // the whole timeout.
                if quick > 1_000 && start_time.elapsed() > LATE {
                    return false;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A running prober.
pub(crate) struct Probing {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Results>,
}

impl Probing {
    /// Stops the prober and returns its results.
    pub(crate) fn stop(self) -> Results {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

impl Results {
    /// Checks that enough packets were sent and that all got the right verdict.
    #[track_caller]
    pub(crate) fn check(&self, at_least: u64) {
        assert!(self.sent >= at_least, "only {} packets were sent", self.sent);
        assert!(self.lost.is_empty(), "{} of {} packets lost", self.lost.len(), self.sent);
        assert!(self.slipped.is_empty(), "{} of {} slipped", self.slipped.len(), self.sent);
    }
}
