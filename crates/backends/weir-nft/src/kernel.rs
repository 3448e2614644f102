//! The kernel's nf_tables over netlink. All I/O of this crate is here.

use std::{collections::BTreeSet, io, time::Duration};

use rustix::io::Errno;
use weir_netfilter::wait_for_packets;
use weir_netlink::{
    Attributes, Body, Header, Malformed, Message, MessageWriter, Messages, NetlinkError,
    NetlinkProtocol, Rejection, Socket, TooLong, kind,
};

use crate::{
    Installed, TableId, Transaction,
    encode::Batch,
    expr,
    installed::InstalledSet,
    transaction::{Group, WaitFor},
    uapi::*,
    wire::{self, KeyBytes},
};

/// How often to read the table again because another program changed it meanwhile.
const MAX_READS: usize = 10;

/// The receive buffer for notifications about changes.
const NOTIFICATION_BUFFER_BYTES: usize = 4 << 20;

/// Above this number of elements, notifications about our own changes would cost as much as the
/// changes.
const MAX_NOTIFIED_ELEMENTS: usize = 1_000;

/// How much of a rejected step an error message shows.
const MAX_STEP_BYTES: usize = 200;

/// The nf_tables of one network namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    socket: Socket,
    port: u32,
    /// Receives notifications about all changes, including our own.
    changes: Socket,
    /// The tables that another program changed, or may have changed.
    changed: BTreeSet<TableId>,
    buffer: Vec<u8>,
}

/// Why reading or writing the kernel's rules failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    /// The netlink socket failed.
    #[error("cannot reach the kernel over netlink")]
    Socket(#[from] io::Error),
    /// A request for rules failed.
    #[error("cannot read the rules of the kernel")]
    Read(#[from] NetlinkError),
    /// A reply cannot be decoded.
    #[error("cannot decode the rules of the kernel")]
    Malformed(#[from] Malformed),
    /// The kernel rejected a transaction.
    #[error("the kernel rejected `{step}`")]
    Rejected {
        /// The step, as a command of nft.
        step: String,
        source: Rejection,
    },
    /// A transaction cannot be encoded.
    #[error("the rules do not fit into netlink messages")]
    TooLong(#[from] TooLong),
    /// Other programs changed the table during every attempt to read it.
    #[error("other programs changed table {0} {MAX_READS} times while it was read")]
    Busy(TableId),
}

impl KernelError {
    /// Whether the kernel does not have the family of the table.
    pub(crate) fn is_unsupported(&self) -> bool {
        let missing = [Errno::AFNOSUPPORT, Errno::OPNOTSUPP, Errno::PROTONOSUPPORT];
        let KernelError::Rejected { source, .. } = self else { return false };
        source.errno().is_some_and(|errno| missing.contains(&errno))
    }
}

impl Kernel {
    /// Opens the nf_tables of the calling thread's network namespace.
    pub(crate) fn open() -> Result<Self, KernelError> {
        let socket = Socket::open(NetlinkProtocol::Netfilter)?;
        let changes = Socket::open(NetlinkProtocol::Netfilter)?;
        changes.set_receive_buffer(NOTIFICATION_BUFFER_BYTES)?;
        changes.join(NFNLGRP_NFTABLES)?;
        let port = socket.port()?;
        let changed = BTreeSet::new();
        Ok(Kernel { socket, port, changes, changed, buffer: vec![0; 64 * 1024] })
    }

    /// Reads a table.
    pub(crate) fn read(&mut self, table: TableId) -> Result<Installed, KernelError> {
        for _ in 0..MAX_READS {
            // Drain the notifications: only changes to the table during the read matter.
            self.take_changed(table)?;
            let mut installed = self.try_read(table)?;
            if !self.take_changed(table)? {
                installed.generation = self.generation()?;
                return Ok(installed);
            }
        }
        Err(KernelError::Busy(table))
    }

    fn try_read(&mut self, table: TableId) -> Result<Installed, KernelError> {
        let mut installed = Installed::default();
        let mut is_clear =
            self.dump(table, NFT_MSG_GETTABLE, |_| (), |one| installed.read_table(table, one))?;
        if !installed.has_table {
            return Ok(installed);
        }
        let in_table = |body: &mut Body<'_>| _ = body.text(wire::TABLE_ATTRIBUTE, table.name());
        is_clear &= self.dump(table, NFT_MSG_GETCHAIN, in_table, |chain| {
            if is_in(table, chain.clone())? { installed.read_chain(chain) } else { Ok(()) }
        })?;
        for kind in [NFT_MSG_GETOBJ, NFT_MSG_GETFLOWTABLE] {
            is_clear &= self.dump(table, kind, in_table, |object| {
                installed.is_foreign |= is_in(table, object)?;
                Ok(())
            })?;
        }
        is_clear &=
            self.dump(table, NFT_MSG_GETRULE, in_table, |rule| installed.read_rule(rule))?;
        is_clear &= self.dump(table, NFT_MSG_GETSET, in_table, |set| installed.read_set(set))?;
        // The rules fill some sets. Their elements are no part of the desired state.
        let is_stored = |(_, set): &(_, &mut InstalledSet)| set.declared.flags & NFT_SET_EVAL == 0;
        for (name, set) in installed.sets.iter_mut().filter(is_stored) {
            let in_set = |body: &mut Body<'_>| {
                body.text(NFTA_SET_ELEM_LIST_TABLE, table.name())
                    .text(NFTA_SET_ELEM_LIST_SET, name);
            };
            is_clear &= self
                .dump(table, NFT_MSG_GETSETELEM, in_set, |elements| set.read_elements(elements))?;
        }
        // weir never writes anything that it cannot decode.
        installed.is_foreign |= !is_clear;
        Ok(installed)
    }

    /// The number of packets that the rules of a chain counted; 0 if it does not exist.
    pub(crate) fn count(&mut self, table: TableId, chain: &str) -> Result<u64, KernelError> {
        let in_chain = |body: &mut Body<'_>| {
            body.text(NFTA_RULE_TABLE, table.name()).text(NFTA_RULE_CHAIN, chain);
        };
        let mut sum = 0_u64;
        self.dump(table, NFT_MSG_GETRULE, in_chain, |rule| {
            sum = sum.saturating_add(expr::counted_packets(rule)?);
            Ok(())
        })?;
        Ok(sum)
    }

    /// Applies the groups of a transaction to a table in order.
    pub(crate) fn run(
        &mut self,
        table: TableId,
        transaction: &Transaction,
    ) -> Result<(), KernelError> {
        let groups = transaction.groups();
        if transaction.elements() <= MAX_NOTIFIED_ELEMENTS {
            return self.run_groups(table, groups, transaction.generation);
        }
        // So many notifications about our own changes would overflow the buffer and hide those of
        // others. Without notifications, the generation shows whether another program wrote: each
        // of our batches advances it by one.
        let before = self.generation()?;
        self.changes.leave(NFNLGRP_NFTABLES)?;
        let result = self.run_groups(table, groups, transaction.generation);
        self.changes.join(NFNLGRP_NFTABLES)?;
        result?;
        let ours = u32::try_from(groups.len()).unwrap_or(u32::MAX);
        if self.generation()?.wrapping_sub(before) != ours {
            self.changed.extend(TableId::ALL);
        }
        Ok(())
    }

    /// Applies groups in order, each as one batch. The first one is for this generation.
    fn run_groups(
        &mut self,
        table: TableId,
        groups: &[Group],
        mut generation: Option<u32>,
    ) -> Result<(), KernelError> {
        for Group { steps, wait_for } in groups {
            if *wait_for == WaitFor::PacketsInFlight {
                wait_for_packets();
            }
            let batch = Batch::from_steps(table, steps, generation.take())?;
            let step = |index: Option<usize>| Some(steps.get(index?)?.in_table(table).to_string());
            self.send(&batch, step)?;
        }
        Ok(())
    }

    /// Adds keys to a set for a limited time.
    pub(crate) fn add_for(
        &mut self,
        set: &str,
        keys: &[KeyBytes],
        time: Duration,
    ) -> Result<(), KernelError> {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        let batch = Batch::with_timeout(set, keys, milliseconds)?;
        self.send(&batch, |_| Some(format!("add element inet weir {set}")))
    }

    /// Whether another program changed a table since the previous call.
    pub(crate) fn take_changed(&mut self, table: TableId) -> Result<bool, KernelError> {
        self.receive_changes()?;
        Ok(self.changed.remove(&table))
    }

    fn receive_changes(&mut self) -> Result<(), KernelError> {
        loop {
            match self.changes.receive(&mut self.buffer, Some(Duration::ZERO)) {
                Ok(None) => return Ok(()),
                Ok(Some(received)) => {
                    for message in Messages::new(received) {
                        match message.and_then(|one| changed_by_others(&one, self.port)) {
                            Ok(table) => self.changed.extend(table),
                            // A malformed notification may be about any table.
                            Err(_) => self.changed.extend(TableId::ALL),
                        }
                    }
                }
                // Notifications were lost, and one of them may be about our tables.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {
                    self.changed.extend(TableId::ALL);
                }
                Err(error) => {
                    self.changed.extend(TableId::ALL);
                    return Err(error.into());
                }
            }
        }
    }

    fn generation(&mut self) -> Result<u32, KernelError> {
        let mut found = Ok(0);
        let request = request(NFT_MSG_GETGEN, kind::ACK, wire::UNSPEC_HEADER, |_| ())?;
        self.socket.query(&request, |message| {
            if message.kind == NFT_MSG_NEWGEN {
                found = read_generation(message);
            }
        })?;
        Ok(found?)
    }

    /// Visits all objects of a kind. Returns whether all of them could be decoded.
    fn dump(
        &mut self,
        table: TableId,
        number: u16,
        body: impl FnOnce(&mut Body<'_>),
        mut visit: impl FnMut(Attributes<'_>) -> Result<(), Malformed>,
    ) -> Result<bool, KernelError> {
        let request = request(number, kind::DUMP, wire::table_header(table), body)?;
        let mut is_clear = true;
        let listed = self.socket.query(&request, |message| {
            is_clear &= visit(message.attributes(NFGENMSG_LENGTH)).is_ok();
        });
        match listed {
            // Some table changed. The notifications show whether it was this one.
            Ok(()) | Err(NetlinkError::Interrupted) => Ok(is_clear),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a batch. The kernel replies while it handles the batch, so no reply means success.
    fn send(
        &mut self,
        batch: &Batch,
        step: impl Fn(Option<usize>) -> Option<String>,
    ) -> Result<(), KernelError> {
        self.socket.send(batch.bytes())?;
        let mut first = None;
        while let Some(received) = self.socket.receive(&mut self.buffer, Some(Duration::ZERO))? {
            for message in Messages::new(received) {
                let message = message?;
                if let (None, Some(Err(source))) = (&first, message.verdict()) {
                    let mut step = step(batch.owner(message.sequence)).unwrap_or_default();
                    step.truncate(step.floor_char_boundary(MAX_STEP_BYTES));
                    first = Some(KernelError::Rejected { step, source });
                }
            }
        }
        first.map_or(Ok(()), Err)
    }
}

fn request(
    number: u16,
    flags: u16,
    header: [u8; NFGENMSG_LENGTH],
    body: impl FnOnce(&mut Body<'_>),
) -> Result<Vec<u8>, TooLong> {
    let mut writer = MessageWriter::default();
    let header_of = Header { kind: number, flags: kind::REQUEST | flags, sequence: 1 };
    writer.message(header_of, |message| {
        message.fixed(&header);
        body(message);
    })?;
    Ok(writer.bytes().to_vec())
}

fn read_generation(message: Message<'_>) -> Result<u32, Malformed> {
    for attribute in message.attributes(NFGENMSG_LENGTH) {
        let attribute = attribute?;
        if attribute.kind == NFTA_GEN_ID {
            return attribute.be_u32();
        }
    }
    Err(Malformed::Message)
}

/// Whether a message about an object of any kind is about an object in this table.
fn is_in(table: TableId, attributes: Attributes<'_>) -> Result<bool, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == wire::TABLE_ATTRIBUTE {
            return Ok(attribute.value.strip_suffix(&[0]) == Some(table.name().as_bytes()));
        }
    }
    Ok(false)
}

/// The table of ours that another program changed, according to a notification.
fn changed_by_others(message: &Message<'_>, our_port: u32) -> Result<Option<TableId>, Malformed> {
    if message.kind == NFT_MSG_NEWGEN || message.port == our_port {
        return Ok(None);
    }
    for table in TableId::ALL {
        let is_of_family = message.payload.starts_with(&[table.family()]);
        if is_of_family && is_in(table, message.attributes(NFGENMSG_LENGTH))? {
            return Ok(Some(table));
        }
    }
    Ok(None)
}
