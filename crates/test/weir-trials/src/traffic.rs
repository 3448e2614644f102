//! Packets that come all the time, while something is done to the rules.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::net::sockopt;
use weir_lab::Lab;

use crate::cluster::address;

/// Who sends, of `api` and of `far`.
const SENDERS: [&str; 4] = ["10.0.0.1", "fd00::1", "10.0.0.4", "fd00::4"];

/// Where `db` listens.
const SERVERS: [&str; 2] = ["10.0.0.3", "fd00::3"];

/// So many bytes wait to be heard.
const ROOM: usize = 64 << 20;

/// Open sockets of those who send to `db`, and of `db`.
#[derive(Debug)]
pub struct Traffic {
    from: [UdpSocket; 4],
    to: [UdpSocket; 2],
}

impl Traffic {
    /// Among the usual pods of a lab.
    pub fn new(lab: &Lab) -> Traffic {
        let socket = |at: &str, port| {
            let bind = || UdpSocket::bind(SocketAddr::new(address(at), port));
            lab.at(address(at), bind).unwrap().unwrap()
        };
        let to = SERVERS.map(|server| socket(server, 80));
        // Who hears may be held up on a busy machine; what comes meanwhile must not be lost for want of room.
        for socket in &to {
            sockopt::set_socket_recv_buffer_size_force(socket, ROOM).unwrap();
        }
        Traffic { from: SENDERS.map(|sender| socket(sender, 5000)), to }
    }

    /// Sends datagrams while the work is done. None is ever answered, so that each is judged. Every one from `api` must arrive, and
    /// none from `far`. Returns how many each of them sent.
    #[track_caller]
    pub fn none_is_misjudged(&self, work: impl FnOnce()) -> usize {
        let Traffic { from, to } = self;
        let done = AtomicBool::new(false);
        let (sent, heard) = thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let mut sent = 0;
                while !done.load(Ordering::Relaxed) {
                    for (sender, socket) in SENDERS.into_iter().zip(from) {
                        let server = SERVERS[usize::from(sender.contains(':'))];
                        // Who is denied may be told so.
                        _ = socket.send_to(sender.as_bytes(), SocketAddr::new(address(server), 80));
                    }
                    sent += 1;
                    thread::sleep(Duration::from_micros(50));
                }
                sent
            });
            let hearing = to.each_ref().map(|socket| {
                scope.spawn(|| {
                    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                    let mut heard = Vec::new();
                    let mut buffer = [0; 64];
                    while let Ok((length, _)) = socket.recv_from(&mut buffer) {
                        heard.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
                    }
                    heard
                })
            });
            thread::sleep(Duration::from_millis(50));
            work();
            thread::sleep(Duration::from_millis(50));
            done.store(true, Ordering::Relaxed);
            let heard = hearing.map(|hearing| hearing.join().unwrap()).concat();
            (sending.join().unwrap(), heard)
        });
        for (sender, expected) in SENDERS.into_iter().zip([sent, sent, 0, 0]) {
            let count = heard.iter().filter(|one| *one == sender).count();
            assert_eq!(count, expected, "datagrams from {sender}");
        }
        assert!(sent > 100, "there were {sent}");
        sent
    }
}
