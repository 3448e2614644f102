//! The kernel's nf_tables, over netlink: the only I/O here.

use std::{io, time::Duration};

use weir_netfilter::wait_for_packets;
use weir_netlink::{
    Attributes, Header, Malformed, Message, Messages, NetlinkError, Protocol, Refusal, Socket,
    TooLong, Writer, kind,
};

use crate::{
    Installed, Transaction,
    encode::Batch,
    transaction::{Group, When},
    wire::{self, KeyBytes, TABLE},
};

/// The length of the header before the attributes.
const HEADER: usize = 4;

/// What others wrote meanwhile is worth so many tries.
const TRIES: usize = 10;

/// Changes of others that may wait to be seen.
const WAITING: usize = 4 << 20;

/// With more elements than this, telling ourselves of each would cost as much as writing them.
const MANY: usize = 1_000;

/// The nf_tables of one network namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    socket: Socket,
    port: u32,
    /// Hears of all changes, ours and those of others.
    changes: Socket,
    /// Others may have written while we did not listen.
    missed: bool,
    buffer: Vec<u8>,
}

/// Why the kernel's rules could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    /// The netlink socket failed.
    #[error("the kernel cannot be reached over netlink")]
    Socket(#[from] io::Error),
    /// A question had no answer.
    #[error("the kernel's rules cannot be read")]
    Read(#[from] NetlinkError),
    /// An answer makes no sense.
    #[error("the kernel's rules cannot be read")]
    Malformed(#[from] Malformed),
    /// A transaction was refused.
    #[error("the kernel refused `{step}`")]
    Refused {
        /// The step, as a command of nft.
        step: String,
        source: Refusal,
    },
    /// A transaction cannot be written down.
    #[error("the rules do not fit into netlink messages")]
    TooLong(#[from] TooLong),
    /// Others write faster than we can read.
    #[error("the rules of others changed {TRIES} times while ours were read")]
    Busy,
}

impl Kernel {
    /// The nf_tables of the network namespace that this thread is in.
    pub(crate) fn open() -> Result<Self, KernelError> {
        let socket = Socket::open(Protocol::Netfilter)?;
        let changes = Socket::open(Protocol::Netfilter)?;
        changes.set_receive_buffer(WAITING)?;
        changes.join(wire::CHANGES)?;
        let port = socket.port()?;
        Ok(Kernel { socket, port, changes, missed: false, buffer: vec![0; 64 * 1024] })
    }

    /// Our table as it is.
    pub(crate) fn read(&mut self) -> Result<Installed, KernelError> {
        for _ in 0..TRIES {
            // What happened before is read now; only what happens meanwhile matters, and only to our table.
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
        let mut clear = self.dump(wire::GET_TABLE, |_| (), |table| installed.table(table))?;
        if !installed.table {
            return Ok(installed);
        }
        let ours = |body: &mut weir_netlink::Body<'_>| _ = body.text(1, TABLE);
        clear &= self.dump(wire::GET_CHAIN, ours, |chain| match is_ours(chain.clone())? {
            true => installed.chain(chain),
            false => Ok(()),
        })?;
        for kind in [wire::GET_OBJECT, wire::GET_FLOWTABLE] {
            clear &= self.dump(kind, ours, |object| {
                installed.strange |= is_ours(object)?;
                Ok(())
            })?;
        }
        clear &= self.dump(wire::GET_RULE, ours, |rule| installed.rule(rule))?;
        clear &= self.dump(wire::GET_SET, ours, |set| installed.set(set))?;
        for (name, set) in &mut installed.sets {
            let of_set = |body: &mut weir_netlink::Body<'_>| _ = body.text(1, TABLE).text(2, name);
            clear &= self.dump(wire::GET_ELEMENTS, of_set, |elements| set.read(elements))?;
        }
        // Whatever cannot be read, we did not write.
        installed.strange |= !clear;
        Ok(installed)
    }

    /// Takes the steps of a transaction, group by group.
    pub(crate) fn run(&mut self, transaction: &Transaction) -> Result<(), KernelError> {
        let groups = transaction.groups();
        if transaction.elements() <= MANY {
            return self.take(groups, transaction.generation);
        }
        // Hearing of so many changes of our own would drown those of others. Nobody else wrote meanwhile if the generation
        // went on by one for each of ours.
        let before = self.generation()?;
        self.changes.leave(wire::CHANGES)?;
        let taken = self.take(groups, transaction.generation);
        self.changes.join(wire::CHANGES)?;
        taken?;
        let ours = u32::try_from(groups.len()).unwrap_or(u32::MAX);
        self.missed |= self.generation()?.wrapping_sub(before) != ours;
        Ok(())
    }

    /// Takes groups one after the other, each of them as a whole or not at all. The first one is for this generation.
    fn take(&mut self, groups: &[Group], mut generation: Option<u32>) -> Result<(), KernelError> {
        for Group { steps, when } in groups {
            if *when == When::PacketsHaveArrived {
                wait_for_packets();
            }
            let batch = Batch::of(steps, generation.take())?;
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
        let batch = Batch::for_a_while(set, keys, milliseconds)?;
        self.send(&batch, |_| Some(format!("add element inet weir {set}")))
    }

    /// Whether somebody else changed our table since this was asked last.
    pub(crate) fn changed(&mut self) -> Result<bool, KernelError> {
        let mut changed = std::mem::take(&mut self.missed);
        loop {
            match self.changes.receive(&mut self.buffer, Some(Duration::ZERO)) {
                Ok(None) => return Ok(changed),
                Ok(Some(received)) => {
                    for message in Messages::new(received) {
                        // What cannot be read may be about us.
                        changed |= message
                            .map_or(Ok(true), |one| is_foreign(&one, self.port))
                            .unwrap_or(true);
                    }
                }
                // Some were lost: anything may have happened.
                Err(error) if error.raw_os_error() == Some(NO_BUFFERS) => changed = true,
                Err(error) => {
                    self.missed = true;
                    return Err(error.into());
                }
            }
        }
    }

    fn generation(&mut self) -> Result<u32, KernelError> {
        let mut found = Ok(0);
        let request = request(wire::GET_GENERATION, kind::ACK, wire::ANY, |_| ())?;
        self.socket.query(&request, |message| {
            if message.kind == wire::NEW_GENERATION {
                found = generation(message);
            }
        })?;
        Ok(found?)
    }

    /// Visits everything of a kind. Returns whether all of it could be read.
    fn dump(
        &mut self,
        number: u16,
        body: impl FnOnce(&mut weir_netlink::Body<'_>),
        mut visit: impl FnMut(Attributes<'_>) -> Result<(), Malformed>,
    ) -> Result<bool, KernelError> {
        let request = request(number, kind::DUMP, wire::INET, body)?;
        let mut clear = true;
        let listed = self.socket.query(&request, |message| {
            clear &= visit(message.attributes(HEADER)).is_ok();
        });
        match listed {
            // Somebody wrote something somewhere; whether it was our table is told elsewhere.
            Ok(()) | Err(NetlinkError::Interrupted) => Ok(clear),
            Err(error) => Err(error.into()),
        }
    }

    /// The kernel has its answers ready when the batch is sent: no answer means that all went well.
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
                    step.truncate(step.floor_char_boundary(200));
                    first = Some(KernelError::Refused { step, source });
                }
            }
        }
        first.map_or(Ok(()), Err)
    }
}

/// `ENOBUFS`.
const NO_BUFFERS: i32 = 105;

fn request(
    number: u16,
    flags: u16,
    header: [u8; 4],
    body: impl FnOnce(&mut weir_netlink::Body<'_>),
) -> Result<Vec<u8>, TooLong> {
    let mut writer = Writer::default();
    let header_of = Header { kind: number, flags: kind::REQUEST | flags, sequence: 1 };
    writer.message(header_of, |message| {
        message.fixed(&header);
        body(message);
    })?;
    Ok(writer.bytes().to_vec())
}

fn generation(message: Message<'_>) -> Result<u32, Malformed> {
    for attribute in message.attributes(HEADER) {
        let attribute = attribute?;
        if attribute.kind == 1 {
            return attribute.be_u32();
        }
    }
    Err(Malformed::Message)
}

/// Whether the first attribute, which names a table in every message, names ours.
fn is_ours(attributes: Attributes<'_>) -> Result<bool, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == 1 {
            return Ok(attribute.value.strip_suffix(&[0]) == Some(TABLE.as_bytes()));
        }
    }
    Ok(false)
}

/// Whether this tells of a change to our table that somebody else made.
fn is_foreign(message: &Message<'_>, ours: u32) -> Result<bool, Malformed> {
    let about_a_table = message.kind != wire::NEW_GENERATION && message.payload.starts_with(&[1]);
    Ok(about_a_table && message.port != ours && is_ours(message.attributes(HEADER))?)
}
