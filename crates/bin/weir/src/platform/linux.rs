//! The datapaths that run on Linux.

mod dump;
mod reports;
mod surroundings;

use std::{collections::BTreeSet, sync::Arc};

use weir_agent::{AgentOptions, DropReports, MachineReports};
use weir_datapath::{ApplyError, Datapath, Guarded, Mode, Plan, Planner, Rejection};
use weir_ebpf::{Ebpf, EbpfConnections};
use weir_inspect::Filter;
use weir_iptables::Iptables;
use weir_model::Program;
use weir_netfilter::BlockedReply;
use weir_nft::Nft;

pub(crate) use self::dump::dump;
use self::{
    reports::{GuardedReports, PacketReports},
    surroundings::{LinuxSurroundings, filter_of},
};
use crate::{
    agent::AgentCommand,
    datapath::{DatapathKind, LiveComparison, PacketFilter, RunAgent},
    exit::Exit,
    failure::Failure,
    kernel::{self, KernelLab},
    status::RuleSettings,
};

/// The datapath of an agent that names none.
pub(crate) const DEFAULT: DatapathKind = DatapathKind::Nftables;

/// Lists the addresses of this machine.
pub(crate) const MACHINE_ADDRESSES: Option<weir_agent::MachineAddresses> =
    Some(weir_netfilter::own_addresses);

pub(crate) const NFTABLES: PacketFilter = packet_filter::<Nft>();
pub(crate) const IPTABLES: PacketFilter = packet_filter::<Iptables>();
pub(crate) const EBPF: PacketFilter = packet_filter::<GuardedEbpf>();
pub(crate) const HCN: Option<RunAgent> = None;
pub(crate) const HCN_LIVE: LiveComparison = LiveComparison::Unsupported {
    reason: "writes ACLs on Windows nodes",
    hint: "run it on the Windows node; without `--live`, `weir render` prints the ACLs that its endpoints should have",
};

/// eBPF programs evaluate the policies. The checks of source addresses and tunnels, and the records
/// for the next agent, are in nftables.
type GuardedEbpf = Guarded<Ebpf, Nft>;

/// A datapath that can be opened in the current network namespace.
pub(crate) trait Open: Datapath + Send + Sized {
    /// The hint of the error if it cannot be opened.
    const HINT: &'static str;

    fn open_with(mode: Mode) -> Result<Self, ApplyError>;

    /// The packet filter of the kernel that it writes to.
    fn filter(&self) -> Filter;

    /// Takes over the replies that a replaced datapath blocks.
    fn inherit(self, replies: BTreeSet<BlockedReply>) -> Self;

    /// Prepares this process for labs.
    fn enter_lab() -> Result<(), Failure> {
        kernel::enter()
    }

    /// The dropped packets and the connections that it reports.
    fn reports(_options: &AgentOptions) -> MachineReports {
        let drops = DropReports::From(Box::<PacketReports>::default());
        MachineReports { drops, connections: None }
    }

    /// Sets which senders of denied packets get an answer from rules. With ebpf, the reader of the
    /// reports answers.
    fn answer(self, _rejection: Rejection) -> Self {
        self
    }

    /// Applies the options of the agent that only this datapath has.
    fn configure(self, _agent: &AgentCommand) -> Result<Self, ApplyError> {
        Ok(self)
    }
}

impl Open for Nft {
    const HINT: &'static str =
        "run it as root, or with CAP_NET_ADMIN, on a kernel that has nftables";

    fn open_with(mode: Mode) -> Result<Self, ApplyError> {
        Nft::open(mode)
    }

    fn filter(&self) -> Filter {
        Filter::Nftables
    }

    fn inherit(self, replies: BTreeSet<BlockedReply>) -> Self {
        self.with_blocked_replies(replies)
    }

    fn answer(self, rejection: Rejection) -> Self {
        self.with_rejection(rejection)
    }
}

impl Open for Iptables {
    const HINT: &'static str = "run it as root, or with CAP_NET_ADMIN, where iptables and ip6tables are installed and the kernel has ipset";

    fn open_with(mode: Mode) -> Result<Self, ApplyError> {
        Iptables::open(mode, None)
    }

    fn filter(&self) -> Filter {
        filter_of(self.variant())
    }

    fn inherit(self, replies: BTreeSet<BlockedReply>) -> Self {
        self.with_blocked_replies(replies)
    }

    fn answer(self, rejection: Rejection) -> Self {
        self.with_rejection(rejection)
    }

    fn configure(self, agent: &AgentCommand) -> Result<Self, ApplyError> {
        Ok(self.with_accept_forwarded(agent.accept_forwarded()))
    }
}

impl Open for GuardedEbpf {
    const HINT: &'static str = "run it as root on Linux 6.6 or later with a BPF file system at /sys/fs/bpf, or use `--datapath nftables`";

    fn open_with(mode: Mode) -> Result<Self, ApplyError> {
        Ok(Guarded { policies: Ebpf::open(mode)?, guard: Nft::open(mode)? })
    }

    fn filter(&self) -> Filter {
        Filter::Ebpf
    }

    fn inherit(self, replies: BTreeSet<BlockedReply>) -> Self {
        Guarded { policies: self.policies.with_blocked_replies(replies), ..self }
    }

    fn enter_lab() -> Result<(), Failure> {
        kernel::enter_with_bpf()
    }

    fn reports(options: &AgentOptions) -> MachineReports {
        let rejection = match options.mode {
            Mode::Enforce => options.rejection.clone(),
            // Denied packets pass, so none is answered.
            Mode::Audit => Rejection::default(),
        };
        let drops = DropReports::From(Box::new(GuardedReports::new(rejection)));
        MachineReports { drops, connections: Some(Box::new(EbpfConnections)) }
    }

    fn configure(self, agent: &AgentCommand) -> Result<Self, ApplyError> {
        let policies = self.policies.with_established(agent.established());
        let policies = if agent.has_fast_lane() { policies.with_fast_lane()? } else { policies };
        Ok(Guarded { policies, ..self })
    }
}

const fn packet_filter<D: Open>() -> PacketFilter {
    PacketFilter {
        agent: Some(run::<D>),
        enter: D::enter_lab,
        enforce: KernelLab::enforce_on::<D>,
        live: LiveComparison::Compare(difference::<D>),
        check: check::<D>,
    }
}

/// Runs the agent.
fn run<D: Open>(agent: &AgentCommand) -> anyhow::Result<Exit> {
    let mut options = agent.options()?;
    let failed = |error| Failure::new(error, D::HINT);
    let datapath = D::open_with(options.mode).and_then(|datapath| datapath.configure(agent));
    let datapath = datapath.map_err(failed)?;
    let datapath = datapath.answer(options.rejection.clone());
    // A cleanup removes what weir installed, and nothing of kube-router.
    let mode = if agent.is_cleanup() { Mode::Audit } else { options.mode };
    let surroundings = LinuxSurroundings { own: datapath.filter(), mode };
    let datapath = datapath.inherit(surroundings.blocked_replies().map_err(failed)?);
    options.surroundings = Some(Arc::new(surroundings));
    let reports = D::reports(&options);
    agent.run_datapath(&options, datapath, reports)
}

/// What this node lacks. Tries a program in a network namespace, in which this process then stays.
fn check<D: Open>(program: &Program) -> Result<Vec<String>, Failure> {
    let own = match D::open_with(Mode::Enforce) {
        Ok(datapath) => datapath.filter(),
        Err(error) => return Ok(vec![format!("{:#}; {}", anyhow::Error::from(error), D::HINT)]),
    };
    let mut lacks = weir_agent::check_node(&LinuxSurroundings { own, mode: Mode::Enforce });
    D::enter_lab()?;
    if let Err(failure) = kernel::install_here::<D>(program) {
        lacks.push(format!("the kernel lacks a feature: {:#}", anyhow::Error::from(failure)));
    }
    Ok(lacks)
}

/// The steps from the rules of this network namespace to a program; empty if it is installed.
/// Writes nothing.
fn difference<D: Open>(program: &Program, settings: &RuleSettings) -> Result<String, Failure> {
    let compare = || {
        let mut datapath = D::open_with(settings.mode)?.answer(settings.rejection.clone());
        let installed = datapath.installed()?;
        let plan = datapath.planner().replan(program, &installed);
        Ok(if plan.is_empty() { String::new() } else { plan.to_string() })
    };
    compare().map_err(|error: ApplyError| {
        let hint = "run it on the node, as root or with CAP_NET_ADMIN, where the agent runs";
        Failure::new(error, hint)
    })
}
