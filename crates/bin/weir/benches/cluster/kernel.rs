//! Events of the kernel of a node about its sets.

use std::{
    io::{BufRead, BufReader},
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use weir_lab::Lab;

use crate::site::until;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventKind {
    /// An address was added to a set.
    Add,
    /// An address was removed from a set.
    Delete,
}

/// An event of the kernel and its arrival time. A transaction is in force before its event arrives.
pub(crate) type SetEvent = (Instant, EventKind, Ipv4Addr);

/// The time that `nft monitor` needs to read the sets of a large cluster, with a margin.
const TO_READ_ALL: Duration = Duration::from_secs(3);

/// A running `nft monitor` on a node, killed on drop.
pub(crate) struct Monitor {
    child: Child,
    events: Arc<Mutex<Vec<SetEvent>>>,
    lines: Arc<Mutex<usize>>,
}

impl Monitor {
    pub(crate) fn start(lab: &Lab, node: &str) -> Self {
        let mut command = Command::new("nft");
        command.args(["--numeric", "monitor"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = lab.on_node(node, || command.spawn()).unwrap().unwrap();
        let (events, lines) =
            (Arc::<Mutex<Vec<SetEvent>>>::default(), Arc::<Mutex<usize>>::default());
        let output = BufReader::new(child.stdout.take().unwrap());
        let (received, counter) = (events.clone(), lines.clone());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let now = Instant::now();
                received
                    .lock()
                    .unwrap()
                    .extend(events_of(&line).map(|(verb, address)| (now, verb, address)));
                *counter.lock().unwrap() += 1;
            }
        });
        let monitor = Monitor { child, events, lines };
        // `nft monitor` misses events before it listens. It first reads the whole ruleset, and
        // starts again if that changes meanwhile.
        let probe = || {
            nft(lab, node, &["add", "table", "inet", "probe"]);
            nft(lab, node, &["delete", "table", "inet", "probe"]);
            thread::sleep(TO_READ_ALL);
            monitor.lines() > 0
        };
        until("nft monitor listens", probe, String::new);
        monitor
    }

    /// The number of lines so far.
    pub(crate) fn lines(&self) -> usize {
        *self.lines.lock().unwrap()
    }

    /// All events about addresses.
    pub(crate) fn events(&self) -> Vec<SetEvent> {
        self.events.lock().unwrap().clone()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Runs nft on a node.
fn nft(lab: &Lab, node: &str, words: &[&str]) {
    let mut command = Command::new("nft");
    command.args(words).stdin(Stdio::null());
    let status = lab.on_node(node, || command.status()).unwrap().unwrap();
    assert!(status.success(), "nft {words:?} has failed");
}

/// The events of a line.
fn events_of(line: &str) -> impl Iterator<Item = (EventKind, Ipv4Addr)> {
    let verb = match line.split(' ').next() {
        Some("add") => Some(EventKind::Add),
        Some("delete") => Some(EventKind::Delete),
        _ => None,
    };
    let parts = line.split(|c: char| !c.is_ascii_digit() && c != '.');
    parts.filter_map(move |part| Some((verb?, part.parse().ok()?)))
}
