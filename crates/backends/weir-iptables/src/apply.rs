use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_datapath::{
    ApplyError, ApplyErrorKind, Datapath, Drift, EndingFlows, EnforceGuard, Guard, Journal, Mode,
    NodeLinks, Plan as _, Records, Rejection, TerminateFlows,
};
use weir_model::{Direction, IpFamily, Name, Protocol};
use weir_netfilter::{BlockedReply, Conntrack, ConntrackError, LinkWatch, Tuple};
use weir_netlink::NetlinkError;

use crate::{
    AcceptForwarded, ChainsAndSets, Entry, Installed, IpSetKind, IptablesPlan, Planner, Step,
    Variant,
    guard::{self, GuardRules},
    kernel::{IPSET_ERR_BUSY, Kernel, KernelError},
    replan, skeleton, superseded,
};

/// iptables and ipset in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Iptables {
    mode: Mode,
    rejection: Rejection,
    accept_forwarded: AcceptForwarded,
    kernel: Kernel,
    conntrack: Conntrack,
    /// The replies that a replaced datapath blocked, until this one blocks them.
    inherited: BTreeSet<BlockedReply>,
    /// The generation of the kernel's rules at which ours were last verified.
    verified: Option<u32>,
    /// The generation at which the rules of the guard were last verified.
    guard_verified: Option<u32>,
    links: LinkWatch,
    /// The set whose entries are compared next.
    next_set: Option<Name>,
    /// The number of entries that may be compared until the next check.
    credit: usize,
}

/// The number of entries that each check compares. ipset has no notifications, so the checks take
/// turns with the sets.
const ENTRIES_PER_CHECK: usize = 20_000;
/// The cost of a set without entries, in entries.
const SET_COST: usize = 50;

impl Iptables {
    /// Opens the rules and sets of the current network namespace of this thread, without I/O on
    /// them. Without a variant, it uses that of the program `iptables`.
    pub fn open(mode: Mode, variant: Option<Variant>) -> Result<Self, ApplyError> {
        let kernel = Kernel::open(variant).map_err(failed("cannot open iptables"))?;
        let conntrack = Conntrack::open().map_err(ConntrackError::into_apply_error)?;
        let accept_forwarded = AcceptForwarded::default();
        Ok(Iptables {
            mode,
            rejection: Rejection::default(),
            accept_forwarded,
            kernel,
            conntrack,
            inherited: BTreeSet::new(),
            verified: None,
            guard_verified: None,
            links: LinkWatch::open()?,
            next_set: None,
            credit: 0,
        })
    }

    /// Sets whether a last rule in FORWARD accepts the packets of pods.
    pub fn with_accept_forwarded(self, accept_forwarded: AcceptForwarded) -> Self {
        Iptables { accept_forwarded, ..self }
    }

    /// Sets which senders of denied packets get an answer.
    #[must_use]
    pub fn with_rejection(self, rejection: Rejection) -> Self {
        Iptables { rejection, ..self }
    }

    /// Blocks replies of connections that a replaced datapath terminated.
    pub fn with_blocked_replies(self, inherited: BTreeSet<BlockedReply>) -> Self {
        Iptables { inherited, ..self }
    }

    /// The replies of terminated connections that the sets block.
    pub fn blocked_replies(&mut self) -> Result<BTreeSet<BlockedReply>, ApplyError> {
        let mut replies = BTreeSet::new();
        for family in IpFamily::BOTH {
            let read = skeleton::cut(family).map(|set| self.kernel.read_entries(&set));
            let [senders, receivers] = read;
            let failed = failed("cannot read the sets of iptables");
            let (senders, receivers) = (senders.map_err(&failed)?, receivers.map_err(&failed)?);
            replies.extend(superseded::join_blocked(&senders, &receivers));
        }
        Ok(replies)
    }

    /// The variant of iptables that has the rules.
    pub fn variant(&self) -> Variant {
        self.kernel.variant()
    }

    /// Removes weir's rules, because another datapath replaces them. Rules of kube-router stay, and
    /// so do the sets.
    pub fn remove_rules(&mut self) -> Result<(), ApplyError> {
        let removed = self.kernel.remove_superseded_rules();
        removed.map_err(failed("cannot remove the rules of iptables"))
    }

    /// Destroys the sets, except those that rules use.
    pub fn remove_sets(&mut self) -> Result<(), ApplyError> {
        let removed = self.kernel.remove_unused_sets();
        removed.map_err(failed("cannot remove the sets of iptables"))
    }

    /// Whether our rules in the kernel match the plan.
    fn rules_match(&mut self, desired: &ChainsAndSets) -> Result<bool, KernelError> {
        let generation = self.kernel.read_generation()?;
        if generation.is_some() && generation == self.verified {
            return Ok(true);
        }
        let tables = self.kernel.read_tables()?;
        let script = |(family, table)| replan::rules(desired, self.accept_forwarded, family, table);
        let matches = tables.iter().all(|(family, table)| script((*family, table)).is_empty());
        self.verified = generation.filter(|_| matches);
        Ok(matches)
    }

    /// Whether the guard in the kernel is the desired one.
    fn guard_matches(&mut self, desired: &GuardRules) -> Result<bool, KernelError> {
        if !self.kernel.guard_sets_match(desired)? {
            return Ok(false);
        }
        let generation = self.kernel.read_generation()?;
        if generation.is_some() && generation == self.guard_verified {
            return Ok(true);
        }
        let matches = self.kernel.guard_rules_match(desired)?;
        self.guard_verified = generation.filter(|_| matches);
        Ok(matches)
    }

    /// Whether our sets in the kernel have the planned number of entries.
    fn sets_match(&mut self, desired: &ChainsAndSets) -> Result<bool, KernelError> {
        let sizes: BTreeMap<Name, u32> = self.kernel.read_set_sizes()?.into_iter().collect();
        for (name, set) in &desired.sets {
            let Some(size) = sizes.get(name).map(|size| *size as usize) else { return Ok(false) };
            if set.kind.is_planned() && size != set.entries.len() {
                return Ok(false);
            }
            if set.kind == IpSetKind::Ipvs && !self.kernel.has_ipvs_entries(set.family, size) {
                self.kernel.update_ipvs_sets()?;
            }
        }
        Ok(true)
    }
}

impl Iptables {
    /// Whether the entries of our sets in the kernel match the plan. Each call compares some sets,
    /// and the next call continues.
    fn entries_match(&mut self, desired: &ChainsAndSets) -> Result<bool, KernelError> {
        self.credit += ENTRIES_PER_CHECK;
        let next = self.next_set.take().unwrap_or_else(|| Name::from(""));
        let later = desired.sets.range::<Name, _>(&next..);
        let all = later.chain(desired.sets.range::<Name, _>(..&next));
        for (name, set) in all.filter(|(_, set)| set.kind.timeout().is_none()) {
            let cost = SET_COST + set.entries.len();
            if cost > self.credit {
                self.next_set = Some(name.clone());
                return Ok(true);
            }
            self.credit -= cost;
            if set.kind == IpSetKind::Ipvs {
                self.kernel.check_ipvs_set(set.family)?;
            } else if !self.kernel.set_matches(name, set)? {
                return Ok(false);
            }
        }
        self.credit = 0;
        Ok(true)
    }
}

impl Datapath for Iptables {
    type Planner = Planner;

    fn planner(&self) -> Planner {
        let planner = Planner::new(self.mode).with_rejection(self.rejection.clone());
        planner.with_accept_forwarded(self.accept_forwarded)
    }

    fn installed(&mut self) -> Result<Installed, ApplyError> {
        self.kernel.read_installed().map_err(failed("cannot read the rules of iptables"))
    }

    fn apply(&mut self, plan: &IptablesPlan) -> Result<(), ApplyError> {
        if plan.steps.iter().any(|step| matches!(step, Step::Restore(_))) {
            self.verified = None;
        }
        let applied = self.kernel.run_plan(plan).and_then(|()| self.kernel.update_ipvs_sets());
        applied.map_err(failed("cannot write the rules of iptables"))
    }

    fn drift(&mut self, planner: &Planner) -> Result<Drift, ApplyError> {
        let desired = planner.desired();
        let matches = self
            .kernel
            .update_ipvs_sets()
            .and_then(|()| {
                Ok(self.sets_match(desired)?
                    && self.entries_match(desired)?
                    && self.rules_match(desired)?)
            })
            .map_err(failed("cannot check the rules of iptables"))?;
        Ok(if matches { Drift::None } else { Drift::Changed })
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        self.enforce(&Guard::default())?;
        self.write_journal(&Records::new())?;
        let plan = replan::removal(&self.installed()?);
        if plan.is_empty() { Ok(()) } else { self.apply(&plan) }
    }

    fn denied(&mut self) -> Result<Vec<u64>, ApplyError> {
        let mut counters = Vec::new();
        let denied = Direction::BOTH.map(skeleton::denied).into_iter();
        let mut chains = denied.chain([skeleton::terminated()]);
        let by_policies = chains.try_for_each(|chain| {
            counters.extend(self.kernel.count_last_rule(&chain)?);
            Ok(())
        });
        by_policies.map_err(failed("cannot read the counters of iptables"))?;
        let by_guard = self.kernel.count_denied_by_guard();
        counters.extend(by_guard.map_err(failed("cannot read the counters of the guard"))?);
        Ok(counters)
    }

    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<Planner>> {
        Some(self)
    }

    fn guard(&mut self) -> Option<&mut dyn EnforceGuard> {
        Some(self)
    }

    fn journal(&mut self) -> Option<&mut dyn Journal> {
        Some(self)
    }
}

impl Journal for Iptables {
    fn read_journal(&mut self) -> Result<Records, ApplyError> {
        let installed = self.kernel.read_journal();
        Ok(guard::records(&installed.map_err(failed("cannot read ipset weir-journal"))?))
    }

    fn write_journal(&mut self, records: &Records) -> Result<(), ApplyError> {
        let written = self.kernel.write_journal(&guard::set_of_records(records));
        written.map_err(failed("cannot write ipset weir-journal"))
    }
}

impl EnforceGuard for Iptables {
    fn changed_links(&mut self) -> Result<Option<NodeLinks>, ApplyError> {
        self.links.read_changed()
    }

    fn records(&mut self) -> Result<Records, ApplyError> {
        let installed = self.kernel.read_records();
        Ok(guard::records(&installed.map_err(failed("cannot read the guard of pods"))?))
    }

    fn enforce(&mut self, guard: &Guard) -> Result<Vec<String>, ApplyError> {
        let desired = GuardRules::new(guard, self.mode, self.kernel.bridges());
        self.guard_verified = None;
        let written = self.kernel.write_guard(&desired);
        written.map_err(failed("cannot write the guard of pods"))?;
        let unnamed = desired.unnamed.iter();
        let unchecked = |link| {
            format!("iptables cannot name the link {link}: its pod can forge source addresses")
        };
        Ok(unnamed.map(unchecked).collect())
    }

    fn guard_drifted(&mut self, guard: &Guard) -> Result<bool, ApplyError> {
        if *guard == Guard::default() {
            return Ok(false);
        }
        let desired = GuardRules::new(guard, self.mode, self.kernel.bridges());
        let matches = self.guard_matches(&desired);
        Ok(!matches.map_err(failed("cannot check the guard of pods"))?)
    }
}

impl TerminateFlows<Planner> for Iptables {
    fn have_packets_left(&mut self) -> bool {
        self.conntrack.have_packets_left()
    }

    fn terminate(
        &mut self,
        planner: &mut Planner,
        ending: &EndingFlows<'_>,
    ) -> Result<usize, ApplyError> {
        let Iptables { kernel, conntrack, inherited, verified, .. } = self;
        conntrack.terminate(ending, |connections| {
            let mut replies: BTreeSet<_> = connections.iter().map(BlockedReply::from).collect();
            replies.extend(&*inherited);
            let blocked = block_replies(kernel, &replies);
            blocked.map_err(failed("cannot block the replies of terminated connections"))?;
            // The rules match such replies only after the first connection was terminated.
            if !replies.is_empty() {
                *verified = None;
                let plan = planner.match_terminated();
                kernel.run_plan(&plan).map_err(failed("cannot write the rules of iptables"))?;
            }
            inherited.clear();
            Ok(())
        })
    }
}

/// Adds entries that make the rules drop the replies of connections for a limited time.
fn block_replies(kernel: &mut Kernel, replies: &BTreeSet<BlockedReply>) -> Result<(), KernelError> {
    let mut entries: BTreeMap<(Name, u32), Vec<Entry>> = BTreeMap::new();
    for reply in replies {
        let seconds = u32::try_from(reply.time().as_secs()).unwrap_or(u32::MAX);
        let sets = skeleton::cut(IpFamily::from(reply.tuple.source));
        for (set, entry) in sets.into_iter().zip([sender(reply), receiver(reply)]) {
            entries.entry((set, seconds)).or_default().push(entry);
        }
    }
    let mut each = entries.iter();
    each.try_for_each(|((set, seconds), entries)| kernel.add_for(set, entries, *seconds))
}

/// The source of the server's packets, and the peer.
fn sender(reply: &BlockedReply) -> Entry {
    let Tuple { source, destination, source_port, .. } = reply.tuple;
    entry(reply, source, source_port, destination)
}

/// The destination of the server's packets, and the peer.
fn receiver(reply: &BlockedReply) -> Entry {
    let Tuple { source, destination, destination_port, .. } = reply.tuple;
    entry(reply, destination, destination_port, source)
}

fn entry(reply: &BlockedReply, at: IpAddr, port: u16, peer: IpAddr) -> Entry {
    match Protocol::from_number(reply.protocol) {
        Some(protocol) => Entry::Grant(at, protocol, port, peer),
        None => Entry::Pair(at, reply.protocol, peer),
    }
}

pub(crate) fn failed(what: &'static str) -> impl Fn(KernelError) -> ApplyError {
    move |error| {
        let is_transient = is_transient(&error);
        let kind =
            if is_transient { ApplyErrorKind::Unavailable } else { ApplyErrorKind::Rejected };
        ApplyError { kind, what: what.to_owned(), source: error.into() }
    }
}

/// Whether a retry can succeed: no memory, no capacity, missing permission, or a concurrent writer.
fn is_transient(error: &KernelError) -> bool {
    match error {
        KernelError::Failed { reason, .. } => {
            ["xtables lock", "temporarily unavailable", "allocate memory", "Permission denied"]
                .iter()
                .any(|text| reason.contains(text))
        }
        KernelError::Rejected { source: NetlinkError::Rejected(rejection), .. } => {
            rejection.is_transient() || rejection.error.raw_os_error() == Some(IPSET_ERR_BUSY)
        }
        KernelError::TooLong(_) => false,
        _ => true,
    }
}
