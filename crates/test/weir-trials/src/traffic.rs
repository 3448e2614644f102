//! Sends UDP datagrams continuously while the rules change, and checks that each gets the right
//! verdict.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use rustix::net::sockopt;
use weir_lab::Lab;

use crate::cluster::address;

/// The addresses of the pod `api`, which policies allow, and of `far`, which they deny.
const SENDERS: [&str; 4] = ["10.0.0.1", "fd00::1", "10.0.0.4", "fd00::4"];

/// The addresses of the pod `db`, which receives the datagrams.
const SERVERS: [&str; 2] = ["10.0.0.3", "fd00::3"];

/// The size of the receive buffers.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// The pause between two datagrams of a sender.
const SEND_INTERVAL: Duration = Duration::from_micros(50);

/// The time for which datagrams flow before and after the rules change.
const MARGIN: Duration = Duration::from_millis(50);

/// A receiver stops when the senders are done and no datagram has arrived for this time.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(500);

/// Open sockets of the senders and of `db`.
#[derive(Debug)]
pub struct Traffic {
    senders: [UdpSocket; 4],
    receivers: [UdpSocket; 2],
}

impl Traffic {
    /// Opens the sockets in the network namespaces of the pods of `PODS`.
    pub fn new(lab: &Lab) -> Traffic {
        let socket = |at: &str, port| {
            let bind = || UdpSocket::bind(SocketAddr::new(address(at), port));
            lab.at(address(at), bind).unwrap().unwrap()
        };
        let receivers = SERVERS.map(|server| socket(server, 80));
        // The buffer must not overflow if a busy machine schedules the receiver late.
        for socket in &receivers {
            sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER_BYTES).unwrap();
        }
        Traffic { senders: SENDERS.map(|sender| socket(sender, 5000)), receivers }
    }

    /// Sends datagrams while `change_rules` runs. Every datagram from `api` must arrive, and none from
    /// `far`. `db` never replies, so conntrack has no established connection and the rules apply to
    /// each datagram. Returns the number of datagrams that each sender sent.
    #[track_caller]
    pub fn check_during(&self, change_rules: impl FnOnce()) -> usize {
        let Traffic { senders, receivers } = self;
        let (done, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
        let received = thread::scope(|scope| {
            let sending = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for (sender, socket) in SENDERS.into_iter().zip(senders) {
                        let server = SERVERS[usize::from(sender.contains(':'))];
                        // For a denied datagram, sending may fail with EPERM.
                        _ = socket.send_to(sender.as_bytes(), SocketAddr::new(address(server), 80));
                    }
                    sent.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(SEND_INTERVAL);
                }
            });
            let receiving = receivers.each_ref().map(|socket| {
                scope.spawn(|| {
                    socket.set_read_timeout(Some(RECEIVE_TIMEOUT)).unwrap();
                    let mut received = Vec::new();
                    let mut buffer = [0; 64];
                    loop {
                        match socket.recv_from(&mut buffer) {
                            Ok((length, _)) => {
                                let text = String::from_utf8_lossy(&buffer[..length]);
                                received.push(text.into_owned());
                            }
                            // A busy machine can hold the senders up.
                            Err(_) if !done.load(Ordering::Relaxed) => (),
                            Err(_) => break received,
                        }
                    }
                })
            });
            thread::sleep(MARGIN);
            change_rules();
            thread::sleep(MARGIN);
            // On a busy machine it takes longer to send enough of them.
            while sent.load(Ordering::Relaxed) <= 100 {
                thread::sleep(SEND_INTERVAL);
            }
            done.store(true, Ordering::Relaxed);
            sending.join().unwrap();
            receiving.map(|receiver| receiver.join().unwrap()).concat()
        });
        let sent = sent.into_inner();
        for (sender, expected) in SENDERS.into_iter().zip([sent, sent, 0, 0]) {
            let count = received.iter().filter(|datagram| *datagram == sender).count();
            assert_eq!(count, expected, "datagrams from {sender}");
        }
        sent
    }
}
