//! What the kernel of a node says about its sets.

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

/// What happened to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    /// It is in a set now.
    Add,
    /// It was removed from a set.
    Delete,
}

/// A word of the kernel, and when it was heard: a transaction is in force before the kernel tells
/// of it.
pub(crate) type Word = (Instant, Verb, Ipv4Addr);

/// What `nft monitor` needs to read the sets of a large cluster, with time to spare.
const TO_READ_ALL: Duration = Duration::from_secs(3);

/// `nft monitor` on a node. It ends with this.
pub(crate) struct Monitor {
    child: Child,
    heard: Arc<Mutex<Vec<Word>>>,
    lines: Arc<Mutex<usize>>,
}

impl Monitor {
    pub(crate) fn start(lab: &Lab, node: &str) -> Self {
        let mut command = Command::new("nft");
        command.args(["--numeric", "monitor"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = lab.on_node(node, || command.spawn()).unwrap().unwrap();
        let (heard, lines) = (Arc::<Mutex<Vec<Word>>>::default(), Arc::<Mutex<usize>>::default());
        let output = BufReader::new(child.stdout.take().unwrap());
        let (hears, counts) = (heard.clone(), lines.clone());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let now = Instant::now();
                hears
                    .lock()
                    .unwrap()
                    .extend(words(&line).map(|(verb, address)| (now, verb, address)));
                *counts.lock().unwrap() += 1;
            }
        });
        let monitor = Monitor { child, heard, lines };
        // What happens before it listens is not heard. It first reads all there is, and begins anew
        // when something changes meanwhile.
        let probe = || {
            nft(lab, node, &["add", "table", "inet", "probe"]);
            nft(lab, node, &["delete", "table", "inet", "probe"]);
            thread::sleep(TO_READ_ALL);
            monitor.told() > 0
        };
        until("nft monitor listens", probe, String::new);
        monitor
    }

    /// How many lines it has told, about whatever there is in tables.
    pub(crate) fn told(&self) -> usize {
        *self.lines.lock().unwrap()
    }

    /// All that it has told about addresses.
    pub(crate) fn heard(&self) -> Vec<Word> {
        self.heard.lock().unwrap().clone()
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

/// The addresses that a line is about.
fn words(line: &str) -> impl Iterator<Item = (Verb, Ipv4Addr)> {
    let verb = match line.split(' ').next() {
        Some("add") => Some(Verb::Add),
        Some("delete") => Some(Verb::Delete),
        _ => None,
    };
    let parts = line.split(|c: char| !c.is_ascii_digit() && c != '.');
    parts.filter_map(move |part| Some((verb?, part.parse().ok()?)))
}
