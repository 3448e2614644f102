//! The I/O of this crate: kernel sets over netlink, and rules through the iptables programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    net::IpAddr,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::io::Errno;
use weir_model::{IpFamily, Name};
use weir_netfilter::wait_for_packets;
use weir_netlink::{
    Body, Header, Malformed, MessageWriter, NetlinkError, NetlinkProtocol, Socket, TooLong, kind,
};

use crate::{
    Entry, Installed, IpSet, IpSetKind, IptablesPlan, Script, Step,
    installed::{InstalledSet, Table},
    ipvs::IpvsAddresses,
    name,
    namespace::NetNamespace,
    skeleton, wire,
};

/// The iptables variant. Each has separate tables in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `iptables-nft`, on top of nf_tables.
    Nft,
    /// `iptables-legacy`.
    Legacy,
}

/// Reads and writes the rules and sets of one network namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    namespace: NetNamespace,
    socket: Socket,
    sequence: u32,
    ipvs: IpvsAddresses,
    /// The entries of the sets of IPVS addresses, unless unknown.
    ipvs_written: Option<BTreeSet<IpAddr>>,
    families: Vec<IpFamily>,
    variant: Variant,
    /// The infix of the names of the programs.
    middle: &'static str,
    /// The retries that are left for destroying sets in use.
    destroy_attempts: usize,
}

/// Reading or writing rules or sets failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    /// The netlink socket failed.
    #[error("the kernel cannot be reached over netlink")]
    Socket(#[source] io::Error),
    /// Sets cannot be listed.
    #[error("the kernel's sets cannot be read")]
    Read(#[from] NetlinkError),
    /// The addresses of IPVS services cannot be read.
    #[error("the addresses of IPVS services cannot be read")]
    Ipvs(#[source] NetlinkError),
    /// A response is invalid.
    #[error("the kernel's sets cannot be read")]
    Malformed(#[from] Malformed),
    /// The kernel rejected a step.
    #[error("the kernel rejected `{step}`")]
    Rejected {
        /// The step, as an ipset command.
        step: String,
        source: NetlinkError,
    },
    /// A message is too long.
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
        /// Its error output.
        reason: String,
    },
}

/// The kernel releases a set a little after the last rule that used it. This is the retry interval
/// for destroying it.
const DESTROY_RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// The maximum number of retries in one plan, for all its sets.
const DESTROY_ATTEMPTS: usize = 500;
/// The error code of ipset for a set in use. It is outside the range of `errno`.
pub(crate) const IPSET_ERR_BUSY: i32 = 4100;
/// The error code for a set that does not exist.
const ENOENT: i32 = Errno::NOENT.raw_os_error();

impl Kernel {
    /// Opens the rules and sets of the current network namespace of this thread. They stay the same
    /// when the thread moves.
    pub(crate) fn open(variant: Option<Variant>) -> Result<Self, KernelError> {
        let socket = Socket::open(NetlinkProtocol::Netfilter).map_err(KernelError::Socket)?;
        let ipvs = IpvsAddresses::open().map_err(KernelError::Socket)?;
        let middle = match variant {
            Some(Variant::Nft) => "-nft",
            Some(Variant::Legacy) => "-legacy",
            None => "",
        };
        let variant = variant.map_or_else(detect_variant, Ok)?;
        let families = if Path::new("/proc/thread-self/net/if_inet6").exists() {
            vec![IpFamily::V4, IpFamily::V6]
        } else {
            vec![IpFamily::V4]
        };
        Ok(Kernel {
            namespace: NetNamespace::current(),
            socket,
            sequence: 0,
            ipvs,
            ipvs_written: None,
            families,
            variant,
            middle,
            destroy_attempts: DESTROY_ATTEMPTS,
        })
    }

    /// Reads our rules and sets.
    pub(crate) fn read_installed(&mut self) -> Result<Installed, KernelError> {
        let mut installed = Installed { tables: self.read_tables()?, ..Installed::default() };
        let names = self.read_set_names()?;
        for name in names.into_iter().filter(|name| name::is_our_set(name)) {
            let set = self.read_set(&name)?;
            installed.sets.insert(name, set);
        }
        Ok(installed)
    }

    /// The names of all sets.
    pub(crate) fn read_set_names(&mut self) -> Result<Vec<Name>, KernelError> {
        let mut names = Vec::new();
        self.list_sets(wire::request_names, |message| {
            names.push(wire::parse_name(message.attributes(wire::NFGENMSG_LENGTH))?);
            Ok(())
        })?;
        Ok(names)
    }

    /// The entries of a set; none if it does not exist.
    pub(crate) fn read_entries(&mut self, name: &str) -> Result<Vec<Entry>, KernelError> {
        Ok(self.read_set(name)?.entries.into_keys().collect())
    }

    /// The iptables variant that has the rules.
    pub(crate) fn variant(&self) -> Variant {
        self.variant
    }

    /// Reads a set with its entries. It has no type if the set does not exist.
    pub(crate) fn read_set(&mut self, name: &str) -> Result<InstalledSet, KernelError> {
        let mut set = InstalledSet::default();
        self.list_sets(
            |body| wire::write_name(body, name),
            |message| wire::parse_message(&mut set, message.attributes(wire::NFGENMSG_LENGTH)),
        )?;
        Ok(set)
    }

    /// Whether a set in the kernel has the type and the entries of a desired one.
    pub(crate) fn set_matches(&mut self, name: &str, desired: &IpSet) -> Result<bool, KernelError> {
        let mut set = InstalledSet::default();
        let (mut found, mut differs) = (0, false);
        self.list_sets(
            |body| wire::write_name(body, name),
            |message| {
                wire::parse_set(&mut set, message.attributes(wire::NFGENMSG_LENGTH))?;
                wire::visit_entries(message.attributes(wire::NFGENMSG_LENGTH), |entry| {
                    found += 1;
                    differs |= entry.is_none_or(|(entry, comment)| {
                        desired.entries.get(&entry) != Some(&comment)
                    });
                })
            },
        )?;
        Ok(!differs && found == desired.entries.len() && set.fits(desired))
    }

    /// Compares a set of IPVS addresses with those that were written. If they differ, the next
    /// update reads and writes it.
    pub(crate) fn check_ipvs_set(&mut self, family: IpFamily) -> Result<(), KernelError> {
        let written = self.ipvs_written.iter().flatten();
        let written = written.filter(|one| IpFamily::from(**one) == family);
        let entries = written.map(|one| (Entry::Address(*one), Name::from(""))).collect();
        let desired = IpSet { kind: IpSetKind::Ipvs, family, entries };
        if !self.set_matches(&skeleton::ipvs(family), &desired)? {
            self.ipvs_written = None;
        }
        Ok(())
    }

    /// Writes the addresses of IPVS services to their sets, if these exist.
    pub(crate) fn update_ipvs_sets(&mut self) -> Result<(), KernelError> {
        let addresses = self.ipvs.read().map_err(KernelError::Ipvs)?;
        let Some(addresses) = addresses.filter(|now| Some(now) != self.ipvs_written.as_ref())
        else {
            return Ok(());
        };
        self.ipvs_written = None;
        for family in IpFamily::BOTH {
            let name = skeleton::ipvs(family);
            let installed = self.read_set(&name)?;
            if installed.type_name.is_empty() {
                return Ok(());
            }
            let of_family = addresses.iter().filter(|one| IpFamily::from(**one) == family);
            let desired: BTreeSet<Entry> = of_family.copied().map(Entry::Address).collect();
            let missing = desired.iter().filter(|one| !installed.entries.contains_key(*one));
            let added = missing.map(|entry| (entry, ""));
            self.send_entries(wire::IPSET_CMD_ADD, &name, added, None)?;
            let extra = installed.entries.keys().filter(|one| !desired.contains(*one));
            let removed = extra.map(|entry| (entry, ""));
            self.send_entries(wire::IPSET_CMD_DEL, &name, removed, None)?;
        }
        self.ipvs_written = Some(addresses);
        Ok(())
    }

    /// Whether the set of a family has as many entries as there are addresses of IPVS services. If
    /// not, the next update reads and writes it.
    pub(crate) fn has_ipvs_entries(&mut self, family: IpFamily, size: usize) -> bool {
        let written = self.ipvs_written.iter().flatten();
        let matches = written.filter(|one| IpFamily::from(**one) == family).count() == size;
        if !matches {
            self.ipvs_written = None;
        }
        matches
    }

    /// Reads our rules.
    pub(crate) fn read_tables(&self) -> Result<BTreeMap<IpFamily, Table>, KernelError> {
        let read = |family: &IpFamily| {
            let saved = self.run_program(*family, "-save", &["-t", "filter"], "")?;
            Ok((*family, Table::parse(&saved)))
        };
        self.families.iter().map(read).collect()
    }

    /// The number of packets that reached the last rule of a chain, in each family.
    pub(crate) fn count_last_rule(&self, chain: &str) -> Result<Vec<u64>, KernelError> {
        let count = |family: &IpFamily| {
            let arguments = ["-w", "10", "-t", "filter", "-nvxL", chain];
            let listed = self.run_program(*family, "", &arguments, "")?;
            let last = listed.lines().next_back().unwrap_or_default();
            let packets = last.split_whitespace().next().and_then(|word| word.parse().ok());
            Ok(packets.unwrap_or(0))
        };
        self.families.iter().map(count).collect()
    }

    /// The number of entries of each of our sets.
    pub(crate) fn read_set_sizes(&mut self) -> Result<Vec<(Name, u32)>, KernelError> {
        let mut sizes = Vec::new();
        self.list_sets(wire::request_headers, |message| {
            let name = wire::parse_name(message.attributes(wire::NFGENMSG_LENGTH))?;
            let mut set = InstalledSet::default();
            wire::parse_message(&mut set, message.attributes(wire::NFGENMSG_LENGTH))?;
            sizes.push((name, set.size));
            Ok(())
        })?;
        sizes.retain(|(name, _)| name::is_our_set(name));
        Ok(sizes)
    }

    /// A number that changes with every change of rules. `None` with iptables-legacy.
    pub(crate) fn read_generation(&mut self) -> Result<Option<u32>, KernelError> {
        /// `NFT_MSG_GETGEN` and its response.
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
                    .attributes(wire::NFGENMSG_LENGTH)
                    .find(|one| one.as_ref().is_ok_and(|attribute| attribute.kind == 1));
                generation =
                    first.transpose().and_then(|one| one.map(|one| one.be_u32()).transpose());
            }
        })?;
        Ok(generation?)
    }

    /// Runs the steps of a plan in order.
    pub(crate) fn run_plan(&mut self, plan: &IptablesPlan) -> Result<(), KernelError> {
        self.destroy_attempts = DESTROY_ATTEMPTS;
        plan.steps.iter().try_for_each(|step| self.run_step(step))
    }

    pub(crate) fn run_step(&mut self, step: &Step) -> Result<(), KernelError> {
        match step {
            Step::Create(name, kind, family) => {
                let create = |body: &mut Body<'_>| wire::write_set(body, name, *kind, *family);
                let request = self.request(wire::IPSET_CMD_CREATE, kind::ACK, create)?;
                self.send_step(&request, || step.to_string())?;
                // Fill it before a rule uses it.
                if *kind == IpSetKind::Ipvs {
                    self.ipvs_written = None;
                    self.update_ipvs_sets()?;
                }
                Ok(())
            }
            Step::Add(name, _, entries) => {
                let entries = entries.iter().map(|(entry, word)| (entry, &**word));
                self.send_entries(wire::IPSET_CMD_ADD, name, entries, None)
            }
            Step::Remove(name, _, entries) => self.send_entries(
                wire::IPSET_CMD_DEL,
                name,
                entries.iter().map(|entry| (entry, "")),
                None,
            ),
            Step::Restore(script) => self.restore_rules(script),
            Step::WaitForPackets => {
                wait_for_packets();
                Ok(())
            }
            Step::Destroy(name) => self.destroy_set(name),
        }
    }

    /// Adds entries to a set for a limited time.
    pub(crate) fn add_for(
        &mut self,
        set: &str,
        entries: &[Entry],
        seconds: u32,
    ) -> Result<(), KernelError> {
        self.send_entries(
            wire::IPSET_CMD_ADD,
            set,
            entries.iter().map(|entry| (entry, "")),
            Some(seconds),
        )
    }

    fn send_entries<'e>(
        &mut self,
        number: u16,
        set: &str,
        entries: impl Iterator<Item = (&'e Entry, &'e str)>,
        seconds: Option<u32>,
    ) -> Result<(), KernelError> {
        let mut entries = entries.peekable();
        while let Some((first, _)) = entries.peek() {
            let first = (*first).clone();
            let some = |body: &mut Body<'_>| wire::write_entries(body, set, &mut entries, seconds);
            let request = self.request(number, kind::ACK, some)?;
            let word = if number == wire::IPSET_CMD_ADD { "add" } else { "del" };
            self.send_step(&request, || format!("{word} {set} {first} …"))?;
        }
        Ok(())
    }

    /// Destroys a set. A set that foreign rules use stays.
    fn destroy_set(&mut self, name: &str) -> Result<(), KernelError> {
        loop {
            let request = self
                .request(wire::IPSET_CMD_DESTROY, kind::ACK, |body| wire::write_name(body, name))?;
            match self.send_step(&request, || format!("destroy {name}")) {
                Err(error) if error.code() == Some(IPSET_ERR_BUSY) => {
                    if self.destroy_attempts == 0 {
                        return Ok(());
                    }
                    self.destroy_attempts -= 1;
                    thread::sleep(DESTROY_RETRY_INTERVAL);
                }
                Err(error) if error.code() == Some(ENOENT) => return Ok(()),
                result => return result,
            }
        }
    }

    fn restore_rules(&self, script: &Script) -> Result<(), KernelError> {
        if !self.families.contains(&script.family) {
            return Ok(());
        }
        self.restore_text(script.family, &script.to_string())
    }

    pub(crate) fn restore_text(&self, family: IpFamily, script: &str) -> Result<(), KernelError> {
        let arguments = ["-w", "10", "--noflush"];
        self.run_program(family, "-restore", &arguments, script).map(drop)
    }

    pub(crate) fn namespace(&self) -> &NetNamespace {
        &self.namespace
    }

    pub(crate) fn families(&self) -> &[IpFamily] {
        &self.families
    }

    pub(crate) fn run_program(
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
        let program = format!("{ip}{}{what}", self.middle);
        let ran = self.namespace.run(|| run(&program, arguments, input));
        ran.map_err(|source| KernelError::Run { program: program.clone(), source })?
    }

    fn send_step(&mut self, request: &[u8], step: impl Fn() -> String) -> Result<(), KernelError> {
        self.socket
            .request(request)
            .map_err(|source| KernelError::Rejected { step: step(), source })
    }

    fn list_sets(
        &mut self,
        body: impl FnOnce(&mut Body<'_>),
        mut visit: impl FnMut(weir_netlink::Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), KernelError> {
        let request = self.request(wire::IPSET_CMD_LIST, kind::DUMP, body)?;
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
        let mut writer = MessageWriter::default();
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

/// The iptables variant of the machine.
fn detect_variant() -> Result<Variant, KernelError> {
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
    // Some systems install them outside the PATH of an ordinary user.
    let mut child = match start(program) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            start(&format!("/usr/sbin/{program}"))
        }
        started => started,
    }
    .map_err(failed)?;
    // The program reads all input before it prints anything. If it ends early, its error output is
    // more useful than a broken pipe.
    let wrote = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        wrote.map_err(failed)?;
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(KernelError::Failed { program: program.to_owned(), reason })
}
