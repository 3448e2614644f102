//! The datapath that runs on Windows.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use weir_agent::{DropReports, MachineReports};
use weir_datapath::{Datapath, Mode};
use weir_hcn::{Hcn, HcnSettings, Library, StateFile, Timed};
use weir_model::Program;

use crate::{
    agent::AgentCommand,
    datapath::{DatapathKind, LiveComparison, PacketFilter, RunAgent},
    dump::DumpCommand,
    exit::Exit,
    failure::Failure,
    kernel::UNAVAILABLE,
    status::RuleSettings,
};

/// The datapath of an agent that names none.
pub(crate) const DEFAULT: DatapathKind = DatapathKind::Hcn;

/// Lists the addresses of this machine.
pub(crate) const MACHINE_ADDRESSES: Option<weir_agent::MachineAddresses> = None;

pub(crate) const NFTABLES: PacketFilter = UNAVAILABLE;
pub(crate) const IPTABLES: PacketFilter = UNAVAILABLE;
pub(crate) const EBPF: PacketFilter = UNAVAILABLE;
pub(crate) const HCN: Option<RunAgent> = Some(run);
pub(crate) const HCN_LIVE: LiveComparison = LiveComparison::Compare(difference);

/// The answer to a request for dropped packets.
const NO_DROPS: &str = "HNS does not report them; `weir explain` names the policy that denies a connection, and `pktmon` on the node captures dropped packets";

/// Runs the agent with HNS.
fn run(agent: &AgentCommand) -> anyhow::Result<Exit> {
    let options = agent.options()?;
    if options.mode == Mode::Audit {
        let hint = "leave out --audit; `weir test --datapath hcn` and `weir matrix` show what would be dropped";
        return Err(Failure::new("HNS cannot report what it would drop", hint).into());
    }
    let file =
        state_file().map_err(|error| tracing::warn!(%error, "running without a state file")).ok();
    let datapath = open(file, options.version)?;
    let reports = MachineReports { drops: DropReports::Unsupported(NO_DROPS), connections: None };
    agent.run_datapath(&options, datapath, reports)
}

/// Opens HNS.
fn open(file: Option<StateFile>, version: &'static str) -> Result<Hcn<Timed<Library>>, Failure> {
    let hint = Arc::default();
    let unavailable = |error| Failure::new(error, REQUIREMENTS);
    let library = Library::open(&hint).map_err(unavailable)?;
    let host = Timed::start(library, hint)
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}"), REQUIREMENTS))?;
    // kube-proxy and Calico read the same variable.
    let network = env::var("KUBE_NETWORK").ok().filter(|name| !name.is_empty());
    Ok(Hcn::new(host, HcnSettings { network, version }, file))
}

const REQUIREMENTS: &str = "run it on Windows Server 2019 or later with the Containers feature, as SYSTEM or as an administrator";

/// The difference between the ACLs of this machine's endpoints and a program. Writes nothing. There
/// is no audit mode.
fn difference(program: &Program, _: &RuleSettings) -> Result<String, Failure> {
    let mut installed = open(None, env!("CARGO_PKG_VERSION"))?
        .installed()
        .map_err(|error| Failure::new(error, REQUIREMENTS))?;
    installed.tracker = StateFile::peek(&data_folder());
    Ok(weir_hcn::compare(program, &installed))
}

/// The folder of the state file.
fn data_folder() -> PathBuf {
    let data = env::var_os("ProgramData").map_or_else(|| r"C:\ProgramData".into(), PathBuf::from);
    data.join("weir")
}

/// The state file, in a folder that only the system and administrators can write to.
fn state_file() -> io::Result<StateFile> {
    let folder = data_folder();
    let file = StateFile::at(&folder)?;
    protect(&folder)?;
    Ok(file)
}

/// Restricts the folder to the system and to administrators: every user may create files in
/// ProgramData, and a file of another user cannot be trusted.
fn protect(folder: &Path) -> io::Result<()> {
    let root = env::var_os("SystemRoot").map_or_else(|| r"C:\Windows".into(), PathBuf::from);
    // SIDs, because the names of the accounts depend on the language of the system.
    let status = Command::new(root.join(r"System32\icacls.exe"))
        .arg(folder)
        .args([
            "/inheritance:r",
            "/grant:r",
            "*S-1-5-18:(OI)(CI)F",
            "*S-1-5-32-544:(OI)(CI)F",
            "/q",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("icacls cannot protect {}: {status}", folder.display())))
    }
}

/// Fails: only Linux has eBPF.
pub(crate) fn dump(_: &DumpCommand, _: &mut dyn std::io::Write) -> anyhow::Result<Exit> {
    let hint = "run it on a Linux node whose agent has `--datapath ebpf`";
    Err(Failure::new("this system has no eBPF", hint).into())
}
