//! Continuous packets while the rules change.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::net::sockopt;
use weir_lab::Lab;

use crate::cluster::address;

/// The senders: both addresses of `api` and of `far`.
const SENDERS: [&str; 4] = ["10.0.0.1", "fd00::1", "10.0.0.4", "fd00::4"];

/// The addresses of `db`.
const SERVERS: [&str; 2] = ["10.0.0.3", "fd00::3"];

/// The size of the receive buffers.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// Open sockets of the senders and of `db`.
#[derive(Debug)]
pub struct Traffic {
    from: [UdpSocket; 4],
    to: [UdpSocket; 2],
}

impl Traffic {
    /// Opens the sockets on the pods of `PODS`.
    pub fn new(lab: &Lab) -> Traffic {
        let socket = |at: &str, port| {
            let bind = || UdpSocket::bind(SocketAddr::new(address(at), port));
            lab.at(address(at), bind).unwrap().unwrap()
        };
        let to = SERVERS.map(|server| socket(server, 80));
        // On a busy machine the receiver can be late; its buffer must not overflow meanwhile.
        for socket in &to {
            sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER_BYTES).unwrap();
        }
        Traffic { from: SENDERS.map(|sender| socket(sender, 5000)), to }
    }

    /// Sends datagrams while `work` runs. `db` never answers, so that the kernel filters each datagram as
    /// a new connection. Every one from `api` must arrive, and none from `far`. Returns the number that
    /// each sender sent.
    #[track_caller]
    pub fn none_is_misjudged(&self, work: impl FnOnce()) -> usize {
        let Traffic { from, to } = self;
        let done = AtomicBool::new(false);
        let (sent, received) = thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let mut sent = 0;
                while !done.load(Ordering::Relaxed) {
                    for (sender, socket) in SENDERS.into_iter().zip(from) {
                        let server = SERVERS[usize::from(sender.contains(':'))];
                        // The kernel may return an error for a denied packet.
                        _ = socket.send_to(sender.as_bytes(), SocketAddr::new(address(server), 80));
                    }
                    sent += 1;
                    thread::sleep(Duration::from_micros(50));
                }
                sent
            });
            let receivers = to.each_ref().map(|socket| {
                scope.spawn(|| {
                    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                    let mut received = Vec::new();
                    let mut buffer = [0; 64];
                    while let Ok((length, _)) = socket.recv_from(&mut buffer) {
                        received.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
                    }
                    received
                })
            });
            thread::sleep(Duration::from_millis(50));
            work();
            thread::sleep(Duration::from_millis(50));
            done.store(true, Ordering::Relaxed);
            let received = receivers.map(|receiver| receiver.join().unwrap()).concat();
            (sending.join().unwrap(), received)
        });
        for (sender, expected) in SENDERS.into_iter().zip([sent, sent, 0, 0]) {
            let count = received.iter().filter(|one| *one == sender).count();
            assert_eq!(count, expected, "datagrams from {sender}");
        }
        assert!(sent > 100, "only {sent} datagrams were sent");
        sent
    }
}
