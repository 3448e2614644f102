//! The kernel's sets, over netlink, and its rules, through the programs of iptables: the only I/O here.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::io::Errno;
use weir_model::{IpFamily, Name};
use weir_netfilter::wait_for_packets;
use weir_netlink::{
    Body, Header, Malformed, NetlinkError, Protocol, Socket, TooLong, Writer, kind,
};

use crate::{
    Entry, Installed, Plan, Script, Step,
    home::Home,
    installed::{InstalledSet, Table},
    name, wire,
};

/// Which iptables the rules are for: the two have tables of their own in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `iptables-nft`, on top of nf_tables.
    Nft,
    /// `iptables-legacy`.
    Legacy,
}

/// Where rules and sets of one network namespace are read and written.
#[derive(Debug)]
pub(crate) struct Kernel {
    home: Home,
    socket: Socket,
    sequence: u32,
    families: Vec<IpFamily>,
    variant: Variant,
    /// What the names of the programs have in the middle.
    middle: &'static str,
}

/// Why rules or sets could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    /// The netlink socket failed.
    #[error("the kernel cannot be reached over netlink")]
    Socket(#[source] io::Error),
    /// Sets cannot be listed.
    #[error("the kernel's sets cannot be read")]
    Read(#[from] NetlinkError),
    /// An answer makes no sense.
    #[error("the kernel's sets cannot be read")]
    Malformed(#[from] Malformed),
    /// The kernel rejected a step.
    #[error("the kernel rejected `{step}`")]
    Rejected {
        /// The step, as a command of ipset.
        step: String,
        source: NetlinkError,
    },
    /// A step cannot be written down.
    #[error("an entry does not fit into a netlink message")]
    TooLong(#[from] TooLong),
    /// A program cannot be started.
    #[error("cannot run `{program}`; is iptables installed?")]
    Run {
        /// The program.
        program: String,
        source: io::Error,
    },
    /// A program failed.
    #[error("`{program}` failed: {reason}")]
    Failed {
        /// The program.
        program: String,
        /// What it said.
        reason: String,
    },
}

/// A set that was in use by a rule until just now is let go of by the kernel a little later; so long it is waited for.
const PATIENCE: Duration = Duration::from_millis(2);
const TRIES: usize = 500;
/// The error code of ipset for a set in use. It is outside the range of `errno`.
pub(crate) const IPSET_ERR_BUSY: i32 = 4100;
/// The error code for a set that does not exist.
const ENOENT: i32 = Errno::NOENT.raw_os_error();

impl Kernel {
    /// The rules and sets of the network namespace that this thread is in. Later the thread may be elsewhere.
    pub(crate) fn open(variant: Option<Variant>) -> Result<Self, KernelError> {
        let socket = Socket::open(Protocol::Netfilter).map_err(KernelError::Socket)?;
        let middle = match variant {
            Some(Variant::Nft) => "-nft",
            Some(Variant::Legacy) => "-legacy",
            None => "",
        };
        let variant = variant.map_or_else(found, Ok)?;
        let families = match Path::new("/proc/thread-self/net/if_inet6").exists() {
            true => vec![IpFamily::V4, IpFamily::V6],
            false => vec![IpFamily::V4],
        };
        Ok(Kernel { home: Home::here(), socket, sequence: 0, families, variant, middle })
    }

    /// All that is ours.
    pub(crate) fn read(&mut self) -> Result<Installed, KernelError> {
        let mut installed = Installed { tables: self.tables()?, ..Installed::default() };
        let mut names = Vec::new();
        self.list(wire::names, |message| {
            names.push(wire::name_in(message.attributes(wire::HEADER))?);
            Ok(())
        })?;
        for name in names.into_iter().filter(|name| name::is_our_set(name)) {
            let mut set = InstalledSet::default();
            self.list(
                |body| wire::named(body, &name),
                |message| wire::read(&mut set, message.attributes(wire::HEADER)),
            )?;
            installed.sets.insert(name, set);
        }
        Ok(installed)
    }

    /// Our rules alone.
    pub(crate) fn tables(&self) -> Result<BTreeMap<IpFamily, Table>, KernelError> {
        let read = |family: &IpFamily| {
            let saved = self.run(*family, "save", &["-t", "filter"], "")?;
            Ok((*family, Table::read(&saved)))
        };
        self.families.iter().map(read).collect()
    }

    /// How many entries each set of ours has.
    pub(crate) fn sizes(&mut self) -> Result<Vec<(Name, u32)>, KernelError> {
        let mut sizes = Vec::new();
        self.list(wire::heads, |message| {
            let name = wire::name_in(message.attributes(wire::HEADER))?;
            let mut set = InstalledSet::default();
            wire::read(&mut set, message.attributes(wire::HEADER))?;
            sizes.push((name, set.size));
            Ok(())
        })?;
        sizes.retain(|(name, _)| name::is_our_set(name));
        Ok(sizes)
    }

    /// A number that changes whenever rules do; `None` if nobody counts.
    pub(crate) fn generation(&mut self) -> Result<Option<u32>, KernelError> {
        /// `NFT_MSG_GETGEN` and its answer.
        const GET: u16 = 10 << 8 | 16;
        const NEW: u16 = 10 << 8 | 15;
        if self.variant == Variant::Legacy {
            return Ok(None);
        }
        let request = self.request(GET, kind::ACK, |body| _ = body.fixed(&[0; 4]))?;
        let mut generation = Ok(None);
        self.socket.query(&request, |message| {
            if message.kind == NEW {
                let first = message
                    .attributes(wire::HEADER)
                    .find(|one| one.as_ref().is_ok_and(|attribute| attribute.kind == 1));
                generation =
                    first.transpose().and_then(|one| one.map(|one| one.be_u32()).transpose());
            }
        })?;
        Ok(generation?)
    }

    /// Takes the steps of a plan, one after the other.
    pub(crate) fn perform(&mut self, plan: &Plan) -> Result<(), KernelError> {
        plan.steps.iter().try_for_each(|step| self.step(step))
    }

    fn step(&mut self, step: &Step) -> Result<(), KernelError> {
        match step {
            Step::Create(name, kind, family) => {
                let create = |body: &mut Body<'_>| wire::create(body, name, *kind, *family);
                let request = self.request(wire::CREATE, kind::ACK, create)?;
                self.tell(&request, || step.to_string())
            }
            Step::Add(name, _, entries) => {
                let entries = entries.iter().map(|(entry, word)| (entry, &**word));
                self.entries(wire::ADD, name, entries, None)
            }
            Step::Remove(name, _, entries) => {
                self.entries(wire::REMOVE, name, entries.iter().map(|entry| (entry, "")), None)
            }
            Step::Restore(script) => self.restore(script),
            Step::Settle => {
                wait_for_packets();
                Ok(())
            }
            Step::Destroy(name) => self.destroy(name),
        }
    }

    /// Adds entries to a set for a limited time.
    pub(crate) fn add_for(
        &mut self,
        set: &str,
        entries: &[Entry],
        seconds: u32,
    ) -> Result<(), KernelError> {
        self.entries(wire::ADD, set, entries.iter().map(|entry| (entry, "")), Some(seconds))
    }

    fn entries<'e>(
        &mut self,
        number: u16,
        set: &str,
        entries: impl Iterator<Item = (&'e Entry, &'e str)>,
        seconds: Option<u32>,
    ) -> Result<(), KernelError> {
        let mut entries = entries.peekable();
        while let Some((first, _)) = entries.peek() {
            let first = (*first).clone();
            let some = |body: &mut Body<'_>| wire::entries(body, set, &mut entries, seconds);
            let request = self.request(number, kind::ACK, some)?;
            let word = if number == wire::ADD { "add" } else { "del" };
            self.tell(&request, || format!("{word} {set} {first} …"))?;
        }
        Ok(())
    }

    /// Removes a set. One that rules of others name stays.
    fn destroy(&mut self, name: &str) -> Result<(), KernelError> {
        for _ in 0..TRIES {
            let request = self.request(wire::DESTROY, kind::ACK, |body| wire::named(body, name))?;
            match self.tell(&request, || format!("destroy {name}")) {
                Err(error) if error.code() == Some(IPSET_ERR_BUSY) => thread::sleep(PATIENCE),
                Err(error) if error.code() == Some(ENOENT) => return Ok(()),
                result => return result,
            }
        }
        Ok(())
    }

    fn restore(&self, script: &Script) -> Result<(), KernelError> {
        if !self.families.contains(&script.family) {
            return Ok(());
        }
        let arguments = ["-w", "10", "--noflush"];
        self.run(script.family, "restore", &arguments, &script.to_string()).map(drop)
    }

    fn run(
        &self,
        family: IpFamily,
        what: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, KernelError> {
        let ip = match family {
            IpFamily::V4 => "iptables",
            IpFamily::V6 => "ip6tables",
        };
        let program = format!("{ip}{}-{what}", self.middle);
        let ran = self.home.run(|| run(&program, arguments, input));
        ran.map_err(|source| KernelError::Run { program: program.clone(), source })?
    }

    fn tell(&mut self, request: &[u8], step: impl Fn() -> String) -> Result<(), KernelError> {
        self.socket
            .request(request)
            .map_err(|source| KernelError::Rejected { step: step(), source })
    }

    fn list(
        &mut self,
        body: impl FnOnce(&mut Body<'_>),
        mut visit: impl FnMut(weir_netlink::Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), KernelError> {
        let request = self.request(wire::LIST, kind::DUMP, body)?;
        let mut read = Ok(());
        let listed = self.socket.query(&request, |message| {
            if read.is_ok() {
                read = visit(message);
            }
        });
        match listed {
            Err(NetlinkError::Rejected(rejection)) if rejection.errno() == Some(Errno::NOENT) => (),
            listed => listed?,
        }
        Ok(read?)
    }

    fn request(
        &mut self,
        number: u16,
        flags: u16,
        body: impl FnOnce(&mut Body<'_>),
    ) -> Result<Vec<u8>, TooLong> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut writer = Writer::default();
        let flags = kind::REQUEST | flags;
        writer.message(Header { kind: number, flags, sequence: self.sequence }, body)?;
        Ok(writer.bytes().to_vec())
    }
}

impl KernelError {
    /// The error code of a rejection.
    pub(crate) fn code(&self) -> Option<i32> {
        match self {
            KernelError::Rejected { source: NetlinkError::Rejected(rejection), .. } => {
                rejection.error.raw_os_error()
            }
            _ => None,
        }
    }
}

/// Which iptables the machine uses.
fn found() -> Result<Variant, KernelError> {
    let version = run("iptables", &["--version"], "")?;
    Ok(if version.contains("nf_tables") { Variant::Nft } else { Variant::Legacy })
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, KernelError> {
    let failed = |source| KernelError::Run { program: program.to_owned(), source };
    let start = |path: &str| {
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn()
    };
    // Some systems keep them where the path of an ordinary user does not lead.
    let mut child = match start(program) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            start(&format!("/usr/sbin/{program}"))
        }
        started => started,
    }
    .map_err(failed)?;
    // It reads everything before it says anything. If it ends early, what it said is worth more than a broken pipe.
    let wrote = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        wrote.map_err(failed)?;
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(KernelError::Failed { program: program.to_owned(), reason })
}
