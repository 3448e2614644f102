use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use weir_datapath::{
    ApplyError, ApplyErrorKind, Datapath, Drift, EndingFlows, EnforceGuard, Guard, Journal, Mode,
    NodeLinks, Records, Rejection, TerminateFlows,
};
use weir_model::{Direction, IpFamily, Name, Protocol};
use weir_netfilter::{BlockedReply, Conntrack, ConntrackError, LinkWatch, Tuple, block_time};

use crate::{
    Installed, MergeLimit, NftTable, Planner, Step, TableId, Transaction, guard, guard_tables,
    kernel::{Kernel, KernelError},
    names, replan, transaction,
    wire::{self, KeyBytes},
};

const READ_GUARD: &str = "cannot read the guard of pods";

/// nftables in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Nft {
    mode: Mode,
    rejection: Rejection,
    merge_limit: MergeLimit,
    kernel: Kernel,
    conntrack: Conntrack,
    blocked: BlockedReplies,
    links: LinkWatch,
    /// The replies that a replaced datapath blocked, until this one blocks them.
    inherited: BTreeSet<BlockedReply>,
}

impl Nft {
    /// Opens the nftables of the calling thread's network namespace. It reads and writes nothing.
    pub fn open(mode: Mode) -> Result<Self, ApplyError> {
        let kernel = Kernel::open().map_err(failed("cannot open nftables"))?;
        let conntrack = Conntrack::open().map_err(ConntrackError::into_apply_error)?;
        let (blocked, inherited) = (BlockedReplies::default(), BTreeSet::new());
        let (merge_limit, links) = (MergeLimit::default(), LinkWatch::open()?);
        let rejection = Rejection::default();
        Ok(Nft { mode, rejection, merge_limit, kernel, conntrack, blocked, links, inherited })
    }

    /// Sets which senders of denied packets get an answer.
    #[must_use]
    pub fn with_rejection(self, rejection: Rejection) -> Self {
        Nft { rejection, ..self }
    }

    /// Sets the size up to which planners merge rules.
    #[must_use]
    pub fn with_merge_limit(self, merge_limit: MergeLimit) -> Self {
        Nft { merge_limit, ..self }
    }

    /// Blocks replies of connections that a replaced datapath terminated.
    pub fn with_blocked_replies(self, inherited: BTreeSet<BlockedReply>) -> Self {
        Nft { inherited, ..self }
    }

    /// Removes the table of policies. The guard and the journal stay.
    pub fn remove_policies(&mut self) -> Result<(), ApplyError> {
        let removed = self.kernel.run(TableId::Policies, &transaction::removal());
        removed.map_err(failed("cannot remove table inet weir"))
    }

    /// The replies of terminated connections that the table blocks.
    pub fn blocked_replies(&mut self) -> Result<BTreeSet<BlockedReply>, ApplyError> {
        let installed = self.kernel.read(TableId::Policies);
        let installed = installed.map_err(failed("cannot read table inet weir"))?;
        let replies = installed.blocked_replies();
        Ok(replies.iter().filter_map(|(set, key)| read_blocked(set, key)).collect())
    }
}

impl Datapath for Nft {
    type Planner = Planner;

    fn planner(&self) -> Planner {
        let planner = Planner::new(self.mode).with_rejection(self.rejection.clone());
        planner.with_merge_limit(self.merge_limit)
    }

    fn installed(&mut self) -> Result<Installed, ApplyError> {
        let installed = self.kernel.read(TableId::Policies);
        let installed = installed.map_err(failed("cannot read table inet weir"))?;
        self.blocked.found = installed.blocked_replies();
        Ok(installed)
    }

    fn apply(&mut self, plan: &Transaction) -> Result<(), ApplyError> {
        let written = self.kernel.run(TableId::Policies, plan);
        written.map_err(failed("cannot write table inet weir"))?;
        if plan.steps().any(|step| *step == Step::AddTable) {
            let replies = self.blocked.to_carry_over();
            self.blocked.block(&mut self.kernel, replies)?;
        }
        Ok(())
    }

    fn drift(&mut self, _: &Planner) -> Result<Drift, ApplyError> {
        let changed = self.kernel.take_changed(TableId::Policies);
        let changed = changed.map_err(failed("cannot listen to changes of nftables"))?;
        Ok(if changed { Drift::Changed } else { Drift::None })
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        self.enforce(&Guard::default())?;
        self.write_journal(&Records::new())?;
        self.remove_policies()
    }

    fn guard(&mut self) -> Option<&mut dyn EnforceGuard> {
        Some(self)
    }

    fn journal(&mut self) -> Option<&mut dyn Journal> {
        Some(self)
    }

    fn denied(&mut self) -> Result<Vec<u64>, ApplyError> {
        let denied = Direction::BOTH.map(names::denied_chain).into_iter();
        let by_policies = denied.chain(IpFamily::BOTH.map(names::cut));
        let by_policies = by_policies.map(|chain| (TableId::Policies, chain));
        let chains = by_policies.chain(guard::denied_chains());
        let counts = chains.map(|(table, chain)| self.kernel.count(table, &chain));
        let counts = counts.collect::<Result<Vec<u64>, _>>();
        counts.map_err(failed("cannot read the counters of nftables"))
    }

    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<Planner>> {
        Some(self)
    }
}

impl TerminateFlows<Planner> for Nft {
    fn have_packets_left(&mut self) -> bool {
        self.conntrack.have_packets_left()
    }

    fn terminate(
        &mut self,
        _: &mut Planner,
        ending: &EndingFlows<'_>,
    ) -> Result<usize, ApplyError> {
        let Nft { kernel, conntrack, blocked, inherited, .. } = self;
        conntrack.terminate(ending, |connections| {
            let all = connections.iter().map(BlockedReply::from).chain(inherited.iter().copied());
            blocked.block(kernel, all.flat_map(|reply| replies(&reply)).collect())?;
            inherited.clear();
            Ok(())
        })
    }
}

impl EnforceGuard for Nft {
    fn changed_links(&mut self) -> Result<Option<NodeLinks>, ApplyError> {
        self.links.read_changed()
    }

    fn records(&mut self) -> Result<Records, ApplyError> {
        let installed = self.kernel.read(TableId::Guard);
        Ok(guard::records(&installed.map_err(failed(READ_GUARD))?))
    }

    fn enforce(&mut self, desired: &Guard) -> Result<Vec<String>, ApplyError> {
        let mut missing = Vec::new();
        for table in guard_tables(desired, self.mode) {
            let installed = self.kernel.read(table.id).map_err(failed(READ_GUARD))?;
            match self.kernel.run(table.id, &whole_table(&table, &installed)) {
                Err(error) if table.id == TableId::BridgeGuard && error.is_unsupported() => {
                    missing.push(
                        "this kernel has no nftables for bridges: pods on a bridge can forge \
                         their source addresses"
                            .to_owned(),
                    );
                }
                written => written.map_err(failed("cannot write the guard of pods"))?,
            }
        }
        Ok(missing)
    }

    fn guard_drifted(&mut self, _: &Guard) -> Result<bool, ApplyError> {
        let mut changed = false;
        for table in [TableId::Guard, TableId::BridgeGuard] {
            let taken = self.kernel.take_changed(table);
            changed |= taken.map_err(failed("cannot listen to changes of nftables"))?;
        }
        Ok(changed)
    }
}

impl Journal for Nft {
    fn read_journal(&mut self) -> Result<Records, ApplyError> {
        let installed = self.kernel.read(TableId::Journal);
        Ok(guard::records(&installed.map_err(failed("cannot read table inet weir-journal"))?))
    }

    fn write_journal(&mut self, records: &Records) -> Result<(), ApplyError> {
        let installed = self.kernel.read(TableId::Journal);
        let installed = installed.map_err(failed("cannot read table inet weir-journal"))?;
        let plan = whole_table(&guard::journal_table(records), &installed);
        let written = self.kernel.run(TableId::Journal, &plan);
        written.map_err(failed("cannot write table inet weir-journal"))
    }
}

/// The way to a table, which need not exist if it is empty.
fn whole_table(table: &NftTable, installed: &Installed) -> Transaction {
    let is_empty = table.sets.is_empty() && table.chains.is_empty();
    match (is_empty, installed.has_table) {
        (true, false) => Transaction::default(),
        (true, true) => transaction::removal(),
        (false, _) => replan::replan(table, installed).in_one_group(),
    }
}

/// The replies of terminated connections. A new table must block them again.
#[derive(Debug, Default)]
struct BlockedReplies {
    /// The replies that this process blocked, by set, with the end of the block.
    ours: BTreeMap<(Name, KeyBytes), Instant>,
    /// The replies that the table blocked when it was last read.
    found: Vec<(Name, KeyBytes)>,
}

impl BlockedReplies {
    /// Makes the table drop replies for a while.
    fn block(
        &mut self,
        kernel: &mut Kernel,
        replies: Vec<(Name, KeyBytes, Duration)>,
    ) -> Result<(), ApplyError> {
        let now = Instant::now();
        let mut groups: BTreeMap<(Name, Duration), Vec<KeyBytes>> = BTreeMap::new();
        for (set, key, time) in replies {
            self.ours.insert((set.clone(), key), now + time);
            groups.entry((set, time)).or_default().push(key);
        }
        for ((set, time), keys) in groups {
            let added = kernel.add_for(&set, &keys, time);
            added.map_err(failed("cannot block the replies of terminated connections"))?;
        }
        self.ours.retain(|_, until| *until > now);
        Ok(())
    }

    /// The replies that a new table must block, each with its remaining time.
    ///
    /// The remaining time of a reply that an earlier process blocked is unknown: it starts again.
    fn to_carry_over(&self) -> Vec<(Name, KeyBytes, Duration)> {
        let now = Instant::now();
        let remaining = |until: &Instant| until.saturating_duration_since(now);
        let ours = self.ours.iter().map(|((set, key), until)| (set, *key, remaining(until)));
        let found = self.found.iter().filter(|reply| !self.ours.contains_key(*reply));
        let found = found.map(|(set, key)| (set, *key, block_time(Protocol::Tcp.number())));
        let all = ours.chain(found).filter(|(_, _, time)| !time.is_zero());
        all.map(|(set, key, time)| (set.clone(), key, time)).collect()
    }
}

/// The elements that block replies: their tuple and their sender.
fn replies(reply: &BlockedReply) -> [(Name, KeyBytes, Duration); 2] {
    let Tuple { source, destination, source_port, destination_port } = reply.tuple;
    let (family, time) = (IpFamily::from(source), reply.time());
    let tuple = match reply.protocol_with_ports() {
        Some(protocol) => {
            let (from, to) = ((source, source_port), (destination, destination_port));
            (names::cut(family), wire::cut_key(from, to, protocol), time)
        }
        None => {
            let key = wire::cut_pair_key(source, destination, reply.protocol);
            (names::cut_pairs_set(family), key, time)
        }
    };
    [tuple, (names::cut_senders_set(family), wire::sender_key(source), time)]
}

/// The replies that an element of a set blocks. `None` for a sender.
fn read_blocked(set: &Name, key: &KeyBytes) -> Option<BlockedReply> {
    let is = |name: fn(IpFamily) -> Name| IpFamily::BOTH.into_iter().find(|one| name(*one) == *set);
    if let Some(family) = is(names::cut) {
        let (source, rest) = wire::split_address(family, key.as_slice())?;
        let (source_port, rest) = wire::split_port(rest)?;
        let (destination, rest) = wire::split_address(family, rest)?;
        let (destination_port, rest) = wire::split_port(rest)?;
        let tuple = Tuple { source, destination, source_port, destination_port };
        return Some(BlockedReply { protocol: *rest.first()?, tuple });
    }
    let family = is(names::cut_pairs_set)?;
    let (source, rest) = wire::split_address(family, key.as_slice())?;
    let (destination, rest) = wire::split_address(family, rest)?;
    let tuple = Tuple { source, destination, source_port: 0, destination_port: 0 };
    Some(BlockedReply { protocol: *rest.first()?, tuple })
}

fn failed(what: &'static str) -> impl Fn(KernelError) -> ApplyError {
    move |error| {
        let kind = match &error {
            KernelError::Rejected { source, .. } if !source.is_transient() => {
                ApplyErrorKind::Rejected
            }
            KernelError::TooLong(_) => ApplyErrorKind::Rejected,
            _ => ApplyErrorKind::Unavailable,
        };
        ApplyError { kind, what: what.to_owned(), source: error.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_elements_of_a_blocked_reply_can_be_read_back() {
        let reply = |[source, destination]: [&str; 2], protocol, source_port, destination_port| {
            let [source, destination] =
                [source, destination].map(|text| text.parse().expect("an address"));
            let tuple = Tuple { source, destination, source_port, destination_port };
            BlockedReply { protocol, tuple }
        };
        for one in [
            reply(["10.0.0.2", "10.0.0.1"], 6, 80, 40_000),
            reply(["fd00::2", "fd00::1"], 17, 53, 40_001),
            reply(["10.0.0.2", "10.0.0.1"], 47, 0, 0),
            reply(["fd00::2", "fd00::1"], 6, 0, 0),
        ] {
            let [tuple, sender] = replies(&one);
            assert_eq!(read_blocked(&tuple.0, &tuple.1), Some(one));
            assert_eq!(read_blocked(&sender.0, &sender.1), None);
        }
    }
}
