//! The datapath of a Windows node.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use weir_agent::{Mode, Options};
use weir_hcn::{Hcn, Library, Settings, StateFile, Timed};

use crate::{agent::Agent, exit::Exit, failure::Failure};

/// Its name.
pub(crate) const DATAPATHS: &[&str] = &["hcn"];

/// Opens HNS, and does what was asked for with it.
pub(crate) fn open(agent: &Agent, options: &Options) -> anyhow::Result<Exit> {
    if options.mode == Mode::Audit {
        let hint = "leave out --audit; `weir test --datapath hcn` and `weir matrix` say what would be dropped";
        return Err(Failure::new("HNS cannot tell what it would drop", hint).into());
    }
    let hint = Arc::default();
    let unreached = |error| {
        Failure::new(
            error,
            "run it on Windows Server 2019 or later with the Containers feature, as SYSTEM",
        )
    };
    let library = Library::open(&hint).map_err(unreached)?;
    let host = Timed::start(library, hint)?;
    let file = state_file().map_err(|error| tracing::warn!(%error, "there is no state file")).ok();
    // The name that kube-proxy and Calico use, too.
    let network = env::var("KUBE_NETWORK").ok().filter(|name| !name.is_empty());
    let settings = Settings { network, version: options.version };
    agent.keep(options, Hcn::new(host, settings, file), None)
}

/// The state file, in a folder that only the system and administrators can write to.
fn state_file() -> io::Result<StateFile> {
    let data = env::var_os("ProgramData").map_or_else(|| r"C:\ProgramData".into(), PathBuf::from);
    let folder = data.join("weir");
    let file = StateFile::at(&folder)?;
    protect(&folder)?;
    Ok(file)
}

/// Everybody may make files in ProgramData: what is in our folder would not be ours to believe.
fn protect(folder: &Path) -> io::Result<()> {
    let root = env::var_os("SystemRoot").map_or_else(|| r"C:\Windows".into(), PathBuf::from);
    // The system and the administrators, by their numbers: names differ from language to language.
    let done = Command::new(root.join(r"System32\icacls.exe"))
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
    match done.success() {
        true => Ok(()),
        false => {
            Err(io::Error::other(format!("icacls cannot protect {}: {done}", folder.display())))
        }
    }
}
