use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_datapath::{ApplyError, ApplyErrorKind, Datapath, Drift, Mode, Plan as _, TerminateFlows};
use weir_model::{Flow, IpFamily, Name};
use weir_netfilter::{Connection, Conntrack, ConntrackError, Tuple, block_time};
use weir_netlink::NetlinkError;

use crate::{
    Entry, Installed, Kind, Plan, Planner, Ruleset, Step, Variant,
    kernel::{IPSET_ERR_BUSY, Kernel, KernelError},
    replan, skeleton,
};

/// iptables and ipset in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Iptables {
    mode: Mode,
    kernel: Kernel,
    conntrack: Conntrack,
    /// The generation of the kernel's rules in which ours were looked at and right.
    seen: Option<u32>,
}

impl Iptables {
    /// Opens the rules and sets of the network namespace that this thread is in. Nothing is read or written yet. Without a variant
    /// it is that of the program `iptables`.
    pub fn open(mode: Mode, variant: Option<Variant>) -> Result<Self, ApplyError> {
        let kernel = Kernel::open(variant).map_err(failed("cannot open iptables"))?;
        let conntrack = Conntrack::open().map_err(ConntrackError::into_apply_error)?;
        Ok(Iptables { mode, kernel, conntrack, seen: None })
    }

    /// Whether our rules are those that were planned.
    fn rules_are_right(&mut self, wanted: &Ruleset) -> Result<bool, KernelError> {
        let generation = self.kernel.generation()?;
        if generation.is_some() && generation == self.seen {
            return Ok(true);
        }
        let tables = self.kernel.tables()?;
        let scripts = tables.iter().map(|(family, table)| replan::rules(wanted, *family, table));
        let right = scripts.into_iter().all(|script| script.is_empty());
        self.seen = generation.filter(|_| right);
        Ok(right)
    }

    /// Whether our sets have as many entries as was planned.
    fn sets_are_right(&mut self, wanted: &Ruleset) -> Result<bool, KernelError> {
        let there: BTreeMap<Name, u32> = self.kernel.sizes()?.into_iter().collect();
        let right = |(name, set): (&Name, &crate::Set)| {
            let size = there.get(name).map(|size| *size as usize);
            size.is_some_and(|size| set.kind == Kind::Cut || size == set.entries.len())
        };
        Ok(wanted.sets.iter().all(right))
    }
}

impl Datapath for Iptables {
    type Planner = Planner;

    fn planner(&self) -> Planner {
        Planner::new(self.mode)
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

    fn drift(&mut self, planner: &Planner) -> Result<Drift, ApplyError> {
        let wanted = planner.ruleset();
        let is_right = self
            .sets_are_right(wanted)
            .and_then(|sets_are_right| Ok(sets_are_right && self.rules_are_right(wanted)?))
            .map_err(failed("cannot look at the rules of iptables"))?;
        Ok(if is_right { Drift::None } else { Drift::Changed })
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        let plan = replan::removal(&self.installed()?);
        if plan.is_empty() { Ok(()) } else { self.apply(&plan) }
    }

    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<Planner>> {
        Some(self)
    }
}

impl TerminateFlows<Planner> for Iptables {
    fn terminate(
        &mut self,
        planner: &mut Planner,
        addresses: &BTreeSet<IpAddr>,
        is_forbidden: &dyn Fn(&Flow) -> bool,
    ) -> Result<usize, ApplyError> {
        let Iptables { kernel, conntrack, seen, .. } = self;
        conntrack.terminate(addresses, is_forbidden, |connections| {
            let blocked = block_replies(kernel, connections);
            blocked.map_err(failed("cannot block the replies of terminated connections"))?;
            // The rules look for such replies only after the first connection was terminated.
            if !connections.is_empty() {
                *seen = None;
                let plan = planner.remember_cuts();
                kernel.perform(&plan).map_err(failed("cannot write the rules of iptables"))?;
            }
            Ok(())
        })
    }
}

/// Makes the rules drop the replies of connections for a while.
fn block_replies(
    kernel: &mut Kernel,
    connections: &BTreeSet<Connection>,
) -> Result<(), KernelError> {
    let mut entries: BTreeMap<(Name, u32), Vec<Entry>> = BTreeMap::new();
    for connection in connections {
        let seconds = block_time(connection.protocol).as_secs();
        let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
        let sets = skeleton::cut(IpFamily::from(connection.reply.source));
        for (set, entry) in sets.into_iter().zip([sender(connection), receiver(connection)]) {
            entries.entry((set, seconds)).or_default().push(entry);
        }
    }
    let mut each = entries.iter();
    each.try_for_each(|((set, seconds), entries)| kernel.add_for(set, entries, *seconds))
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

fn failed(what: &'static str) -> impl Fn(KernelError) -> ApplyError {
    move |error| {
        let is_passing = is_passing(&error);
        let kind = if is_passing { ApplyErrorKind::Unavailable } else { ApplyErrorKind::Rejected };
        ApplyError { kind, what: what.to_owned(), source: error.into() }
    }
}

/// Whether the same may go well later: no memory, no room, no right yet, or somebody else writes rules.
fn is_passing(error: &KernelError) -> bool {
    match error {
        KernelError::Failed { reason, .. } => {
            ["xtables lock", "temporarily unavailable", "allocate memory", "Permission denied"]
                .iter()
                .any(|passing| reason.contains(passing))
        }
        KernelError::Rejected { source: NetlinkError::Rejected(rejection), .. } => {
            rejection.is_transient() || rejection.error.raw_os_error() == Some(IPSET_ERR_BUSY)
        }
        KernelError::TooLong(_) => false,
        _ => true,
    }
}
