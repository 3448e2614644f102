//! The first packets of a pod.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    node::{BAD, GOOD, Node, PORT, manifest},
    runtime::{Runtime, Sandbox, addresses},
};

/// What passes is there at once; a busy machine may take longer.
const LATE: Duration = Duration::from_secs(5);
/// What does not pass is not there after this.
const SILENCE: Duration = Duration::from_millis(300);

pub(crate) fn behind_a_bridge() {
    let node = Node::new();
    let runtime = node.bridge(&[]);
    let result = judged(&node, &runtime);
    assert_eq!(addresses(&result).len(), 2, "both families");
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 3, "all that the bridge made");
}

pub(crate) fn behind_ptp() {
    let node = Node::new();
    let runtime = node.ptp(5, 5, &[]);
    judged(&node, &runtime);
}

/// Adds a database, sends at once in both directions, and tells the result of the chain.
fn judged(node: &Node, runtime: &Runtime) -> serde_json::Value {
    node.database("db", "u1", None);
    let _agent = node.agent(runtime);
    let sandbox = Sandbox::new("db", "u1");
    // It listens before it can be reached, as no real container can.
    let inside = sandbox.namespace.run(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
    let at = |address: IpAddr| {
        node.lab.at(address, || UdpSocket::bind((address, PORT))).unwrap().unwrap()
    };
    let (good, bad) = (at(GOOD), at(BAD));

    let result = runtime.add(&node.lab, &sandbox).unwrap();
    let to = SocketAddr::new(addresses(&result)[0], PORT);
    inside.send_to(b"out", (BAD, PORT)).unwrap();
    inside.send_to(b"out", (GOOD, PORT)).unwrap();
    bad.send_to(b"bad", to).unwrap();
    good.send_to(b"good", to).unwrap();

    assert_eq!(heard(&inside, LATE), ["good"]);
    assert_eq!(heard(&good, LATE), ["out"]);
    assert_eq!(heard(&bad, SILENCE), [""; 0]);
    assert_eq!(heard(&inside, SILENCE), [""; 0]);
    runtime.del(&node.lab, &sandbox).unwrap();
    result
}

/// Waits for the first packet, and a moment for more.
fn heard(socket: &UdpSocket, patience: Duration) -> Vec<String> {
    let mut all = Vec::new();
    let mut buffer = [0; 64];
    socket.set_read_timeout(Some(patience)).unwrap();
    while let Ok(length) = socket.recv(&mut buffer) {
        all.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        socket.set_read_timeout(Some(SILENCE.min(patience))).unwrap();
    }
    all
}

/// Somebody who may not sends without a pause, from before there is an interface until after ADD, again and again.
pub(crate) fn hammered() {
    let node = Node::new();
    let runtime = node.ptp(5, 5, &[]);
    let to = SocketAddr::from(([10, 23, 0, 5], PORT));
    node.database("db", "u1", None);
    node.write("open.yaml", &manifest("open", "u2", "open", None));
    let _agent = node.agent(&runtime);
    let stop = AtomicBool::new(false);
    let clock = Clock(Instant::now());
    let sender = node.lab.at(BAD, || UdpSocket::bind((BAD, 0))).unwrap().unwrap();
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                // Where there is no way yet, there is an error.
                _ = sender.send_to(&clock.now().to_be_bytes(), to);
                sent += 1;
            }
            sent
        });
        let mut early = 0;
        for round in 0..20 {
            let seen = clock.seen(&node, &runtime, &Sandbox::new("db", "u1"));
            assert_eq!(seen.late, 0, "round {round}: {} were early", seen.early);
            early += seen.early;
        }
        let open = clock.seen(&node, &runtime, &Sandbox::new("open", "u2"));
        stop.store(true, Ordering::Relaxed);
        let sent = sending.join().unwrap();
        assert!(open.late > 100, "{open:?}: whoever is not isolated hears them");
        eprintln!("{sent} packets, {early} of them in before ADD was done");
    });
}

/// Packets carry the time at which they were sent.
struct Clock(Instant);

/// What a pod heard, by when it was sent: before ADD was done, and after.
#[derive(Debug, Default)]
struct Seen {
    early: u64,
    late: u64,
}

impl Clock {
    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap()
    }

    /// Adds a pod that listens from the beginning, and removes it after a while.
    fn seen(&self, node: &Node, runtime: &Runtime, sandbox: &Sandbox) -> Seen {
        let inside = sandbox.namespace.run(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
        inside.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            // All are taken at once, so that none is lost because there is no room for it.
            let hearing = scope.spawn(|| {
                let mut times = Vec::new();
                let mut buffer = [0; 8];
                while !done.load(Ordering::Relaxed) {
                    times.extend(inside.recv(&mut buffer).map(|_| u64::from_be_bytes(buffer)).ok());
                }
                times
            });
            runtime.add(&node.lab, sandbox).unwrap();
            let added = self.now();
            thread::sleep(SILENCE);
            done.store(true, Ordering::Relaxed);
            let mut seen = Seen::default();
            for at in hearing.join().unwrap() {
                *if at > added { &mut seen.late } else { &mut seen.early } += 1;
            }
            runtime.del(&node.lab, sandbox).unwrap();
            seen
        })
    }
}
