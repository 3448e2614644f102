//! The kernel's nf_tables over netlink. All I/O of this crate is here.

use std::{io, time::Duration};

use rustix::io::Errno;
use weir_netfilter::wait_for_packets;
use weir_netlink::{
    Attributes, Body, Header, Malformed, Message, MessageWriter, Messages, NetlinkError,
    NetlinkProtocol, Rejection, Socket, TooLong, kind,
};

use crate::{
    Installed, Transaction,
    encode::Batch,
    transaction::{Group, WaitFor},
    uapi::*,
    wire::{self, KeyBytes, TABLE},
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
    /// Whether another program may have changed the table while we received no notifications.
    missed: bool,
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
    #[error("other programs changed table inet weir {MAX_READS} times while it was read")]
    Busy,
}

impl Kernel {
    /// Opens the nf_tables of the calling thread's network namespace.
    pub(crate) fn open() -> Result<Self, KernelError> {
        let socket = Socket::open(NetlinkProtocol::Netfilter)?;
        let changes = Socket::open(NetlinkProtocol::Netfilter)?;
        changes.set_receive_buffer(NOTIFICATION_BUFFER_BYTES)?;
        changes.join(NFNLGRP_NFTABLES)?;
        let port = socket.port()?;
        Ok(Kernel { socket, port, changes, missed: false, buffer: vec![0; 64 * 1024] })
    }

    /// Reads our table.
    pub(crate) fn read(&mut self) -> Result<Installed, KernelError> {
        for _ in 0..MAX_READS {
            // Drain the notifications: only changes to our table during the read matter.
            self.changed()?;
            let mut installed = self.try_read()?;
            if !self.changed()? {
                installed.generation = self.generation()?;
                return Ok(installed);
            }
        }
        Err(KernelError::Busy)
    }

    fn try_read(&mut self) -> Result<Installed, KernelError> {
        let mut installed = Installed::default();
        let mut is_clear =
            self.dump(NFT_MSG_GETTABLE, |_| (), |table| installed.read_table(table))?;
        if !installed.has_table {
            return Ok(installed);
        }
        let in_table = |body: &mut Body<'_>| _ = body.text(wire::TABLE_ATTRIBUTE, TABLE);
        is_clear &= self.dump(NFT_MSG_GETCHAIN, in_table, |chain| {
            if is_ours(chain.clone())? { installed.read_chain(chain) } else { Ok(()) }
        })?;
        for kind in [NFT_MSG_GETOBJ, NFT_MSG_GETFLOWTABLE] {
            is_clear &= self.dump(kind, in_table, |object| {
                installed.is_foreign |= is_ours(object)?;
                Ok(())
            })?;
        }
        is_clear &= self.dump(NFT_MSG_GETRULE, in_table, |rule| installed.read_rule(rule))?;
        is_clear &= self.dump(NFT_MSG_GETSET, in_table, |set| installed.read_set(set))?;
        for (name, set) in &mut installed.sets {
            let in_set = |body: &mut Body<'_>| {
                body.text(NFTA_SET_ELEM_LIST_TABLE, TABLE).text(NFTA_SET_ELEM_LIST_SET, name);
            };
            is_clear &=
                self.dump(NFT_MSG_GETSETELEM, in_set, |elements| set.read_elements(elements))?;
        }
        // weir never writes anything that it cannot decode.
        installed.is_foreign |= !is_clear;
        Ok(installed)
    }

    /// Applies the groups of a transaction in order.
    pub(crate) fn run(&mut self, transaction: &Transaction) -> Result<(), KernelError> {
        let groups = transaction.groups();
        if transaction.elements() <= MAX_NOTIFIED_ELEMENTS {
            return self.run_groups(groups, transaction.generation);
        }
        // So many notifications about our own changes would overflow the buffer and hide those of
        // others. Without notifications, the generation shows whether another program wrote: each
        // of our batches advances it by one.
        let before = self.generation()?;
        self.changes.leave(NFNLGRP_NFTABLES)?;
        let result = self.run_groups(groups, transaction.generation);
        self.changes.join(NFNLGRP_NFTABLES)?;
        result?;
        let ours = u32::try_from(groups.len()).unwrap_or(u32::MAX);
        self.missed |= self.generation()?.wrapping_sub(before) != ours;
        Ok(())
    }

    /// Applies groups in order, each as one batch. The first one is for this generation.
    fn run_groups(
        &mut self,
        groups: &[Group],
        mut generation: Option<u32>,
    ) -> Result<(), KernelError> {
        for Group { steps, wait_for } in groups {
            if *wait_for == WaitFor::PacketsInFlight {
                wait_for_packets();
            }
            let batch = Batch::from_steps(steps, generation.take())?;
            self.send(&batch, |index| Some(steps.get(index?)?.to_string()))?;
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

    /// Whether another program changed our table since the previous call.
    pub(crate) fn changed(&mut self) -> Result<bool, KernelError> {
        let mut changed = std::mem::take(&mut self.missed);
        loop {
            match self.changes.receive(&mut self.buffer, Some(Duration::ZERO)) {
                Ok(None) => return Ok(changed),
                Ok(Some(received)) => {
                    for message in Messages::new(received) {
                        // A malformed notification may be about our table.
                        changed |= message
                            .map_or(Ok(true), |one| is_foreign(&one, self.port))
                            .unwrap_or(true);
                    }
                }
                // Notifications were lost, and one of them may be about our table.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => changed = true,
                Err(error) => {
                    self.missed = true;
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
        number: u16,
        body: impl FnOnce(&mut Body<'_>),
        mut visit: impl FnMut(Attributes<'_>) -> Result<(), Malformed>,
    ) -> Result<bool, KernelError> {
        let request = request(number, kind::DUMP, wire::INET_HEADER, body)?;
        let mut is_clear = true;
        let listed = self.socket.query(&request, |message| {
            is_clear &= visit(message.attributes(NFGENMSG_LENGTH)).is_ok();
        });
        match listed {
            // Some table changed. The notifications show whether it was ours.
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

/// Whether a message about an object of any kind is about our table.
fn is_ours(attributes: Attributes<'_>) -> Result<bool, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == wire::TABLE_ATTRIBUTE {
            return Ok(attribute.value.strip_suffix(&[0]) == Some(TABLE.as_bytes()));
        }
    }
    Ok(false)
}

/// Whether a notification is about a change to our table by another program.
fn is_foreign(message: &Message<'_>, our_port: u32) -> Result<bool, Malformed> {
    let is_inet = message.kind != NFT_MSG_NEWGEN && message.payload.starts_with(&[NFPROTO_INET]);
    Ok(is_inet && message.port != our_port && is_ours(message.attributes(NFGENMSG_LENGTH))?)
}
