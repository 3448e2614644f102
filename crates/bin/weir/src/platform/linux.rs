//! The datapaths that run on Linux.

mod guarded;
mod surroundings;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use weir_agent::DropReports;
use weir_datapath::{ApplyError, ApplyErrorKind, Datapath, Dropped, Drops, Mode, Plan, Planner};
use weir_inspect::Filter;
use weir_iptables::Iptables;
use weir_model::Program;
use weir_netfilter::{BlockedReply, LogError, PacketLog, report};
use weir_nft::Nft;

use self::{
    guarded::GuardedEbpf,
    surroundings::{LinuxSurroundings, filter_of},
};
use crate::{
    agent::AgentCommand,
    datapath::{DatapathKind, LiveComparison, PacketFilter, RunAgent},
    exit::Exit,
    failure::Failure,
    kernel::{self, KernelLab},
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

    /// The dropped packets that it reports.
    fn reports() -> DropReports {
        DropReports::From(Box::<PacketReports>::default())
    }

    /// Applies the options of the agent that only this datapath has.
    fn configure(self, _agent: &AgentCommand) -> Self {
        self
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

    fn configure(self, agent: &AgentCommand) -> Self {
        self.with_accept_forwarded(agent.accept_forwarded())
    }
}

impl Open for GuardedEbpf {
    const HINT: &'static str = "run it as root on Linux 6.4 or later with a BPF file system at /sys/fs/bpf, or use `--datapath nftables`";

    fn open_with(mode: Mode) -> Result<Self, ApplyError> {
        GuardedEbpf::open(mode)
    }

    fn filter(&self) -> Filter {
        Filter::Ebpf
    }

    fn inherit(self, replies: BTreeSet<BlockedReply>) -> Self {
        self.with_blocked_replies(replies)
    }

    fn enter_lab() -> Result<(), Failure> {
        kernel::enter_with_bpf()
    }

    fn reports() -> DropReports {
        DropReports::Unsupported(NO_EBPF_DROPS)
    }

    fn configure(self, agent: &AgentCommand) -> Self {
        self.with_established(agent.established())
    }
}

/// The answer to a request for dropped packets.
const NO_EBPF_DROPS: &str = "the eBPF datapath counts dropped packets but does not report them yet; `weir explain` names the policy that denies a connection";

const fn packet_filter<D: Open>() -> PacketFilter {
    PacketFilter {
        agent: Some(run::<D>),
        enter: D::enter_lab,
        enforce: KernelLab::enforce_on::<D>,
        live: LiveComparison::Compare(difference::<D>),
    }
}

/// Runs the agent.
fn run<D: Open>(agent: &AgentCommand) -> anyhow::Result<Exit> {
    let mut options = agent.options()?;
    let failed = |error| Failure::new(error, D::HINT);
    let datapath = D::open_with(options.mode).map_err(failed)?.configure(agent);
    let surroundings = LinuxSurroundings { own: datapath.filter(), mode: options.mode };
    let datapath = datapath.inherit(surroundings.blocked_replies().map_err(failed)?);
    options.surroundings = Some(Arc::new(surroundings));
    agent.run_datapath(&options, datapath, D::reports())
}

/// The steps from the rules of this network namespace to a program; empty if it is installed.
/// Writes nothing.
fn difference<D: Open>(program: &Program) -> Result<String, Failure> {
    let compare = || {
        let mut datapath = D::open_with(Mode::Enforce)?;
        let installed = datapath.installed()?;
        let plan = datapath.planner().replan(program, &installed);
        Ok(if plan.is_empty() { String::new() } else { plan.to_string() })
    };
    compare().map_err(|error: ApplyError| {
        let hint = "run it on the node, as root or with CAP_NET_ADMIN, where the agent runs";
        Failure::new(error, hint)
    })
}

/// The packets that the rules report. The socket is opened on the first call, and again after an
/// error.
#[derive(Default)]
struct PacketReports(Option<PacketLog>);

impl Drops for PacketReports {
    fn next(&mut self) -> Result<Vec<Dropped>, ApplyError> {
        let Some(log) = &mut self.0 else {
            self.0 = Some(PacketLog::open(report::GROUP).map_err(unavailable)?);
            // The empty batch reports that drops can be received from now on.
            return Ok(Vec::new());
        };
        let mut packets = Vec::new();
        while packets.is_empty() {
            let received = log.receive(Duration::from_secs(60), |packet| {
                packets.extend(report::dropped(&packet))
            });
            if let Err(error) = received {
                self.0 = None;
                return Err(unavailable(error));
            }
        }
        Ok(packets)
    }
}

fn unavailable(error: LogError) -> ApplyError {
    ApplyError {
        kind: ApplyErrorKind::Unavailable,
        what: "cannot receive reports of dropped packets".into(),
        source: error.into(),
    }
}
