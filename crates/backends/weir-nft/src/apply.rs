use std::{collections::BTreeSet, mem, net::IpAddr};

use weir_datapath::{ApplyError, Datapath, Trouble};
use weir_model::{Delta, Flow, Name, Program};

use weir_netfilter::{Connection, Conntrack, ConntrackError, Tuple};

use crate::{
    Family, Installed, Mode, Planner, Step, Transaction,
    kernel::{Kernel, KernelError},
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
    /// Answers of ended connections that a table has which is about to be replaced, by set.
    carried: Vec<(Name, Vec<KeyBytes>)>,
}

/// So many milliseconds, one day, the answers of a connection that was cut are told from a connection of its own.
const REMEMBERED: u64 = 24 * 60 * 60 * 1000;

impl Nft {
    /// Opens the nftables of the network namespace that this thread is in. Nothing is read or written yet.
    pub fn open(mode: Mode) -> Result<Self, ApplyError> {
        let kernel = Kernel::open().map_err(failed("cannot open nftables"))?;
        let conntrack = Conntrack::open().map_err(untracked)?;
        Ok(Nft { mode, planner: Planner::new(mode), kernel, conntrack, carried: Vec::new() })
    }

    fn hold(&mut self, set: &str, keys: &[KeyBytes]) -> Result<(), ApplyError> {
        if keys.is_empty() {
            return Ok(());
        }
        let held = self.kernel.hold(set, keys, REMEMBERED);
        held.map_err(failed("cannot stop the answers of connections"))
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
        let replaces = transaction.steps.contains(&Step::DeleteTable);
        self.carried = if replaces { installed.held() } else { Vec::new() };
        transaction
    }

    fn installed(&mut self) -> Result<Installed, ApplyError> {
        self.kernel.read().map_err(failed("cannot read table inet weir"))
    }

    fn apply(&mut self, plan: &Transaction) -> Result<(), ApplyError> {
        self.kernel.run(plan).map_err(failed("cannot write table inet weir"))?;
        for (set, keys) in mem::take(&mut self.carried) {
            self.hold(&set, &keys)?;
        }
        Ok(())
    }

    fn drifted(&mut self) -> Result<bool, ApplyError> {
        self.kernel.changed().map_err(failed("cannot listen to changes of nftables"))
    }

    fn cut(
        &mut self,
        touched: &BTreeSet<IpAddr>,
        forbidden: &dyn Fn(&Flow) -> bool,
    ) -> Result<usize, ApplyError> {
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
        for family in Family::BOTH {
            let ours = all.iter().filter(|one| Family::of(one.reply.source) == family);
            let (senders, answers): (Vec<KeyBytes>, Vec<KeyBytes>) = ours.map(answer).unzip();
            for (set, keys) in
                [(place::cut(family), answers), (place::cut_senders(family), senders)]
            {
                self.hold(&set, &keys)?;
            }
        }
        for connection in &all {
            self.conntrack.forget(connection).map_err(untracked)?;
        }
        Ok(all.len())
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        self.planner = Planner::new(self.mode);
        self.kernel.run(&transaction::removal()).map_err(failed("cannot remove table inet weir"))
    }
}

/// Who sends the answers of a connection, and how they look.
fn answer(connection: &Connection) -> (KeyBytes, KeyBytes) {
    let Tuple { source, destination, source_port, destination_port } = connection.reply;
    let (from, to) = ((source, source_port), (destination, destination_port));
    (wire::sender_key(source), wire::cut_key(from, to, connection.protocol))
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
