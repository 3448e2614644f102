use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_datapath::{ApplyError, Datapath, Plan as _, Trouble};
use weir_model::{Delta, Flow, Name, Program, Protocol};
use weir_netfilter::{Connection, Conntrack, ConntrackError, Tuple};

use crate::{
    Entry, Family, Installed, Kind, Mode, Plan, Planner, Step, Variant,
    kernel::{self, Kernel, KernelError},
    replan, skeleton,
};

/// iptables and ipset in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Iptables {
    mode: Mode,
    planner: Planner,
    kernel: Kernel,
    conntrack: Conntrack,
    /// The generation of the kernel's rules in which ours were looked at and right.
    seen: Option<u32>,
}

/// So many seconds, one day, the answers of a connection that was cut are told from a connection of its own.
const REMEMBERED: u32 = 24 * 60 * 60;

/// The same where a packet out of the blue is a connection like any other: as long as the kernel would have known it.
const REMEMBERED_UDP: u32 = 120;

impl Iptables {
    /// Opens the rules and sets of the network namespace that this thread is in. Nothing is read or written yet. Without a variant
    /// it is that of the program `iptables`.
    pub fn open(mode: Mode, variant: Option<Variant>) -> Result<Self, ApplyError> {
        let kernel = Kernel::open(variant).map_err(failed("cannot open iptables"))?;
        let conntrack = Conntrack::open().map_err(untracked)?;
        Ok(Iptables { mode, planner: Planner::new(mode), kernel, conntrack, seen: None })
    }

    /// Stops the answers of connections for a while.
    fn hold(&mut self, all: &[Connection]) -> Result<(), KernelError> {
        let mut entries: BTreeMap<(Name, u32), Vec<Entry>> = BTreeMap::new();
        for connection in all {
            let seconds = match connection.protocol {
                Protocol::Udp => REMEMBERED_UDP,
                Protocol::Tcp | Protocol::Sctp => REMEMBERED,
            };
            let sets = skeleton::cut(Family::of(connection.reply.source));
            for (set, entry) in sets.into_iter().zip([sender(connection), receiver(connection)]) {
                entries.entry((set, seconds)).or_default().push(entry);
            }
        }
        let mut each = entries.iter();
        each.try_for_each(|((set, seconds), entries)| self.kernel.hold(set, entries, *seconds))
    }

    /// Whether our rules are those that were planned.
    fn rules_are_right(&mut self) -> Result<bool, KernelError> {
        let generation = self.kernel.generation()?;
        if generation.is_some() && generation == self.seen {
            return Ok(true);
        }
        let tables = self.kernel.tables()?;
        let scripts = tables
            .iter()
            .map(|(family, table)| replan::rules(self.planner.ruleset(), *family, table));
        let right = scripts.into_iter().all(|script| script.is_empty());
        self.seen = generation.filter(|_| right);
        Ok(right)
    }

    /// Whether our sets have as many entries as was planned.
    fn sets_are_right(&mut self) -> Result<bool, KernelError> {
        let there: BTreeMap<Name, u32> = self.kernel.sizes()?.into_iter().collect();
        let right = |(name, set): (&Name, &crate::Set)| {
            let size = there.get(name).map(|size| *size as usize);
            size.is_some_and(|size| set.kind == Kind::Cut || size == set.entries.len())
        };
        Ok(self.planner.ruleset().sets.iter().all(right))
    }
}

impl Datapath for Iptables {
    type Installed = Installed;
    type Plan = Plan;

    fn plan(&mut self, program: &Program, delta: &Delta) -> Plan {
        self.planner.plan(program, delta)
    }

    fn replan(&mut self, program: &Program, installed: &Installed) -> Plan {
        self.planner = Planner::new(self.mode);
        if installed.remembers_cuts() {
            self.planner.remember_cuts();
        }
        self.planner.plan(program, &Delta::from(program));
        replan::replan(&self.planner.objects, installed)
    }

    fn installed(&mut self) -> Result<Installed, ApplyError> {
        self.kernel.read().map_err(failed("cannot read the rules of iptables"))
    }

    fn apply(&mut self, plan: &Plan) -> Result<(), ApplyError> {
        if plan.steps.iter().any(|step| matches!(step, Step::Restore(_))) {
            self.seen = None;
        }
        self.kernel.perform(plan).map_err(failed("cannot write the rules of iptables"))
    }

    fn drifted(&mut self) -> Result<bool, ApplyError> {
        let right = self.sets_are_right().and_then(|right| Ok(right && self.rules_are_right()?));
        right.map(|right| !right).map_err(failed("cannot look at the rules of iptables"))
    }

    fn cut(
        &mut self,
        touched: &BTreeSet<IpAddr>,
        forbidden: &dyn Fn(&Flow) -> bool,
    ) -> Result<usize, ApplyError> {
        // Whoever was let through a moment ago is in the list only after that.
        kernel::let_packets_arrive();
        let mut all = Vec::new();
        let listed = self.conntrack.list(|connection| {
            let flow = connection.flow();
            let concerned = touched.contains(&flow.from) || touched.contains(&flow.to);
            if concerned && forbidden(&flow) {
                all.push(connection);
            }
        });
        listed.map_err(untracked)?;
        // Once forgotten, an answer that is still under way would look like a connection of its own in the other direction.
        self.hold(&all).map_err(failed("cannot stop the answers of connections"))?;
        // As long as nothing was cut, no packet is asked whether it is such an answer.
        if !all.is_empty() {
            let plan = self.planner.remember_cuts();
            self.apply(&plan)?;
        }
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
        let plan = replan::removal(&self.installed()?);
        if plan.is_empty() { Ok(()) } else { self.apply(&plan) }
    }
}

/// Where the packets of the server come from, and to whom.
fn sender(connection: &Connection) -> Entry {
    let Tuple { source, destination, source_port, .. } = connection.reply;
    Entry::Grant(source, connection.protocol, source_port, destination)
}

/// Where the packets of the server go to, and from whom.
fn receiver(connection: &Connection) -> Entry {
    let Tuple { source, destination, destination_port, .. } = connection.reply;
    Entry::Grant(destination, connection.protocol, destination_port, source)
}

fn untracked(error: ConntrackError) -> ApplyError {
    let what = "cannot cut connections".to_owned();
    ApplyError { trouble: Trouble::Unavailable, what, source: error.into() }
}

fn failed(what: &'static str) -> impl Fn(KernelError) -> ApplyError {
    move |error| {
        let trouble = if is_passing(&error) { Trouble::Unavailable } else { Trouble::Refused };
        ApplyError { trouble, what: what.to_owned(), source: error.into() }
    }
}

/// Whether the same may go well later: no memory, no room, no right yet, or somebody else writes rules.
fn is_passing(error: &KernelError) -> bool {
    /// `ENOMEM`, `EINTR`, `EAGAIN`, `ENOBUFS`, `EPERM`, and a set in use.
    const PASSING: [i32; 6] = [12, 4, 11, 105, 1, 4100];
    match error {
        KernelError::Failed { reason, .. } => {
            ["xtables lock", "temporarily unavailable", "allocate memory", "Permission denied"]
                .iter()
                .any(|passing| reason.contains(passing))
        }
        KernelError::Refused { .. } => error.code().is_none_or(|code| PASSING.contains(&code)),
        KernelError::TooLong(_) => false,
        _ => true,
    }
}
