//! The first packets of a pod.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    node::{BAD, Node, PORT, manifest},
    runtime::{Runtime, Sandbox, addresses},
};

/// The time that an allowed packet may take on a busy machine.
const LATE: Duration = Duration::from_secs(5);
/// The time after which a packet counts as dropped.
const SILENCE: Duration = Duration::from_millis(300);

pub(crate) fn behind_a_bridge() {
    let node = Node::new();
    let runtime = node.bridge(&[]);
    let result = check_first_packets(&node, &runtime);
    assert_eq!(addresses(&result).len(), 2, "both families");
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 3, "all that the bridge made");
}

pub(crate) fn behind_ptp() {
    let node = Node::new();
    let runtime = node.ptp(5, 5, &[]);
    check_first_packets(&node, &runtime);
}

pub(crate) fn with_iptables() {
    let node = Node::with("iptables");
    check_first_packets(&node, &node.ptp(5, 5, &[]));
    let node = Node::with("iptables");
    check_first_packets(&node, &node.bridge(&[]));
}

/// Adds a database, sends immediately in both directions, and returns the result of the chain.
fn check_first_packets(node: &Node, runtime: &Runtime) -> serde_json::Value {
    node.database("db", "u1", None);
    let _agent = node.agent(runtime);
    let sandbox = Sandbox::new("db", "u1");
    let families: [Family; 2] =
        [FAMILY4, FAMILY6].map(|addresses| Family::new(node, &sandbox, addresses));

    let result = runtime.add(&node.lab, &sandbox).unwrap();
    let mine = addresses(&result);
    let families: Vec<(&Family, IpAddr)> =
        mine.iter().map(|to| (&families[usize::from(to.is_ipv6())], *to)).collect();
    families.iter().for_each(|(family, to)| family.send(*to));
    families.iter().for_each(|(family, _)| family.check());
    runtime.del(&node.lab, &sandbox).unwrap();
    result
}

/// The allowed and the denied peer, for each family.
const FAMILY4: [&str; 3] = ["0.0.0.0", "10.0.0.1", "10.0.0.2"];
const FAMILY6: [&str; 3] = ["::", "fd00::1", "fd00::2"];

/// A socket in the pod, in the allowed peer and in the denied peer.
struct Family {
    inside: UdpSocket,
    good: UdpSocket,
    bad: UdpSocket,
}

impl Family {
    fn new(node: &Node, sandbox: &Sandbox, addresses: [&str; 3]) -> Self {
        let [any, good, bad] = addresses.map(|address| address.parse::<IpAddr>().unwrap());
        let at = |address: IpAddr| node.lab.at(address, || UdpSocket::bind((address, PORT)));
        // The socket listens before the pod is reachable, earlier than in a real container.
        let inside = sandbox.namespace.run(|| {
            let socket = UdpSocket::bind((any, if any.is_ipv6() { PORT + 1 } else { PORT }));
            socket.unwrap()
        });
        Family { inside, good: at(good).unwrap().unwrap(), bad: at(bad).unwrap().unwrap() }
    }

    /// Sends in both directions.
    fn send(&self, to: IpAddr) {
        let to = SocketAddr::new(to, self.inside.local_addr().unwrap().port());
        self.inside.send_to(b"out", self.bad.local_addr().unwrap()).unwrap();
        self.inside.send_to(b"out", self.good.local_addr().unwrap()).unwrap();
        self.bad.send_to(b"bad", to).unwrap();
        self.good.send_to(b"good", to).unwrap();
    }

    fn check(&self) {
        assert_eq!(receive_all(&self.inside, LATE), ["good"]);
        assert_eq!(receive_all(&self.good, LATE), ["out"]);
        assert_eq!(receive_all(&self.bad, SILENCE), [""; 0]);
        assert_eq!(receive_all(&self.inside, SILENCE), [""; 0]);
    }
}

/// Waits for the first packet, and a moment for more.
fn receive_all(socket: &UdpSocket, timeout: Duration) -> Vec<String> {
    let mut all = Vec::new();
    let mut buffer = [0; 64];
    socket.set_read_timeout(Some(timeout)).unwrap();
    while let Ok(length) = socket.recv(&mut buffer) {
        all.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        socket.set_read_timeout(Some(SILENCE.min(timeout))).unwrap();
    }
    all
}

/// The denied peer sends without a pause, from before the interface exists until after ADD, for
/// many pods.
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
        // Stop the sender also if an assertion fails.
        let ending = Stop(&stop);
        let sending = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                // Without a route, sending fails.
                _ = sender.send_to(&clock.now().to_be_bytes(), to);
                sent += 1;
            }
            sent
        });
        let rounds: Vec<Received> =
            (0..20).map(|_| clock.received(&node, &runtime, &Sandbox::new("db", "u1"))).collect();
        let open = clock.received(&node, &runtime, &Sandbox::new("open", "u2"));
        drop(ending);
        let sent = sending.join().unwrap();
        assert!(rounds.iter().all(|seen| seen.late == 0), "{rounds:?}");
        assert!(open.late > 10, "{open:?}: a pod without policies receives them");
        let early: u64 = rounds.iter().map(|seen| seen.early).sum();
        eprintln!("{sent} packets, {early} of them in before ADD was done");
    });
}

struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends packets that contain their sending time.
struct Clock(Instant);

/// The packets that a pod received, sent before and after the end of ADD.
#[derive(Debug, Default)]
struct Received {
    early: u64,
    late: u64,
}

impl Clock {
    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap()
    }

    /// Adds a pod that listens from the beginning, and removes it after a while.
    fn received(&self, node: &Node, runtime: &Runtime, sandbox: &Sandbox) -> Received {
        let inside = sandbox.namespace.run(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
        inside.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Receive without a pause, so that the buffer never overflows.
            let hearing = scope.spawn(|| {
                let mut times = Vec::new();
                let mut buffer = [0; 8];
                while !done.load(Ordering::Relaxed) {
                    times.extend(inside.recv(&mut buffer).map(|_| u64::from_be_bytes(buffer)).ok());
                }
                times
            });
            let result = runtime.add(&node.lab, sandbox);
            let added = self.now();
            thread::sleep(SILENCE);
            done.store(true, Ordering::Relaxed);
            result.unwrap();
            let mut seen = Received::default();
            for at in hearing.join().unwrap() {
                *if at > added { &mut seen.late } else { &mut seen.early } += 1;
            }
            runtime.del(&node.lab, sandbox).unwrap();
            seen
        })
    }
}
