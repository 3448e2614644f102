use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    time::{Duration, Instant},
};

use weir_datapath::{ApplyError, Datapath, Trouble};
use weir_model::{Delta, Flow, Name, Program, Protocol};

use weir_netfilter::{Connection, Conntrack, ConntrackError, Tuple};

use crate::{
    Family, Installed, Mode, Planner, Step, Transaction,
    kernel::{self, Kernel, KernelError},
    place, replan, transaction,
    wire::{self, KeyBytes},
};

/// nftables in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Nft {
    mode: Mode,
    planner: Planner,
    kernel: Kernel,
    conntrack: Conntrack,
    /// The answers of connections that were ended here, by set, and until when they are told from connections of their own.
    ended: BTreeMap<(Name, KeyBytes), Instant>,
    /// Those that a new table must have.
    carried: Vec<(Name, KeyBytes, Duration)>,
}

/// How long the answers of an ended connection are told from a connection of its own.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// The same where a packet out of the blue is a connection like any other: as long as the kernel would have known it.
const REMEMBERED_UDP: Duration = Duration::from_secs(120);

impl Nft {
    /// Opens the nftables of the network namespace that this thread is in. Nothing is read or written yet.
    pub fn open(mode: Mode) -> Result<Self, ApplyError> {
        let kernel = Kernel::open().map_err(failed("cannot open nftables"))?;
        let conntrack = Conntrack::open().map_err(untracked)?;
        Ok(Nft {
            mode,
            planner: Planner::new(mode),
            kernel,
            conntrack,
            ended: BTreeMap::new(),
            carried: Vec::new(),
        })
    }

    /// Stops answers for a while.
    fn hold(&mut self, answers: Vec<(Name, KeyBytes, Duration)>) -> Result<(), ApplyError> {
        let now = Instant::now();
        let mut groups: BTreeMap<(Name, Duration), Vec<KeyBytes>> = BTreeMap::new();
        for (set, key, time) in answers {
            self.ended.insert((set.clone(), key), now + time);
            groups.entry((set, time)).or_default().push(key);
        }
        for ((set, time), keys) in groups {
            let held = self.kernel.hold(&set, &keys, time);
            held.map_err(failed("cannot stop the answers of connections"))?;
        }
        self.ended.retain(|_, until| *until > now);
        Ok(())
    }

    /// What a table must remember that takes the place of another, or of none.
    fn carried(&self, installed: &Installed) -> Vec<(Name, KeyBytes, Duration)> {
        let now = Instant::now();
        let ours = self
            .ended
            .iter()
            .map(|((set, key), until)| (set.clone(), *key, until.saturating_duration_since(now)));
        let theirs = installed.held().into_iter().flat_map(|(set, keys)| {
            keys.into_iter().map(move |key| (set.clone(), key, REMEMBERED))
        });
        let known = |set: &Name, key: KeyBytes| self.ended.contains_key(&(set.clone(), key));
        let theirs = theirs.filter(|(set, key, _)| !known(set, *key));
        ours.chain(theirs).filter(|(_, _, time)| !time.is_zero()).collect()
    }
}

impl Datapath for Nft {
    type Installed = Installed;
    type Plan = Transaction;

    fn plan(&mut self, program: &Program, delta: &Delta) -> Transaction {
        self.planner.plan(program, delta)
    }

    fn replan(&mut self, program: &Program, installed: &Installed) -> Transaction {
        self.planner = Planner::of(program, self.mode);
        let transaction = replan::replan(&self.planner, installed);
        let new = transaction.steps().any(|step| *step == Step::AddTable);
        self.carried = if new { self.carried(installed) } else { Vec::new() };
        transaction
    }

    fn installed(&mut self) -> Result<Installed, ApplyError> {
        self.kernel.read().map_err(failed("cannot read table inet weir"))
    }

    fn apply(&mut self, plan: &Transaction) -> Result<(), ApplyError> {
        self.kernel.run(plan).map_err(failed("cannot write table inet weir"))?;
        let carried = mem::take(&mut self.carried);
        self.hold(carried)
    }

    fn drifted(&mut self) -> Result<bool, ApplyError> {
        self.kernel.changed().map_err(failed("cannot listen to changes of nftables"))
    }

    fn cut(
        &mut self,
        touched: &BTreeSet<IpAddr>,
        forbidden: &dyn Fn(&Flow) -> bool,
    ) -> Result<usize, ApplyError> {
        // Whoever was let through a moment ago is in the list only after that.
        kernel::let_packets_arrive();
        let mut all = BTreeSet::new();
        let listed = self.conntrack.list(|connection| {
            let flow = connection.flow();
            let concerned = touched.contains(&flow.from) || touched.contains(&flow.to);
            if concerned && forbidden(&flow) {
                all.insert(connection);
            }
        });
        listed.map_err(untracked)?;
        // Once forgotten, an answer that is still under way would look like a connection of its own in the other direction.
        self.hold(all.iter().flat_map(answers).collect())?;
        // One that cannot be ended must not keep the others alive.
        let mut first = None;
        for connection in &all {
            let forgotten = self.conntrack.forget(connection).map_err(untracked);
            first = first.or(forgotten.err());
        }
        first.map_or(Ok(all.len()), Err)
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        self.planner = Planner::new(self.mode);
        self.kernel.run(&transaction::removal()).map_err(failed("cannot remove table inet weir"))
    }
}

/// How the answers of a connection look and who sends them, with the sets for both and for how long.
fn answers(connection: &Connection) -> [(Name, KeyBytes, Duration); 2] {
    let Tuple { source, destination, source_port, destination_port } = connection.reply;
    let (from, to) = ((source, source_port), (destination, destination_port));
    let time = match connection.protocol {
        Protocol::Udp => REMEMBERED_UDP,
        Protocol::Tcp | Protocol::Sctp => REMEMBERED,
    };
    let family = Family::of(source);
    [
        (place::cut(family), wire::cut_key(from, to, connection.protocol), time),
        (place::cut_senders(family), wire::sender_key(source), time),
    ]
}

fn untracked(error: ConntrackError) -> ApplyError {
    let what = "cannot cut connections".to_owned();
    ApplyError { trouble: Trouble::Unavailable, what, source: error.into() }
}

fn failed(what: &'static str) -> impl Fn(KernelError) -> ApplyError {
    move |error| {
        let trouble = match &error {
            KernelError::Refused { source, .. } if !is_passing(&source.error) => Trouble::Refused,
            KernelError::TooLong(_) => Trouble::Refused,
            _ => Trouble::Unavailable,
        };
        ApplyError { trouble, what: what.to_owned(), source: error.into() }
    }
}

/// Whether the same may go well later: no memory, no room, no right yet, or the rules are no longer those that were read.
fn is_passing(error: &std::io::Error) -> bool {
    /// `ENOMEM`, `EINTR`, `EAGAIN`, `ERESTART`, `ENOBUFS`, `EPERM`.
    const PASSING: [i32; 6] = [12, 4, 11, 85, 105, 1];
    error.raw_os_error().is_some_and(|code| PASSING.contains(&code))
}
