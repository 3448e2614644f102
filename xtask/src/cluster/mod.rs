//! `cargo xtask cluster`: a cluster of real nodes on this machine.

mod build;
mod guide;

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpListener},
    os::{
        fd::AsFd,
        unix::{fs::symlink, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use anyhow::{Context, Result, bail};
pub(crate) use build::run as build;
pub(crate) use guide::test as test_guide;
use weir_testbed::{NodePrograms, Options, Testbed};

use crate::{image, test};

/// Runs a task about clusters.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["build"] => build(),
        ["up", options @ ..] => up(options),
        ["down"] => down(),
        // For `up`: its standard input is the listener.
        ["relay", target] => relay(target.parse().context("the target is an address")?),
        _ => bail!("unknown arguments; use `cluster build`, `cluster up` or `cluster down`"),
    }
}

/// The folder of the cluster.
fn folder() -> Result<PathBuf> {
    let cache = weir_programs::cache().context("neither XDG_CACHE_HOME nor HOME names a folder")?;
    Ok(cache.join("weir-testbed"))
}

/// A running cluster, for programs outside its network.
struct Started {
    kubeconfig: PathBuf,
    /// The folder with `kubectl-weir`.
    bin: PathBuf,
}

/// The options of `cluster up`.
struct UpOptions {
    nodes: u8,
    kubernetes: Option<PathBuf>,
    images: Vec<PathBuf>,
}

impl UpOptions {
    fn parse(mut words: &[&str]) -> Result<Self> {
        const MAX_NODES: u8 = 20;
        let mut options = UpOptions { nodes: 2, kubernetes: None, images: Vec::new() };
        while let [name, rest @ ..] = words {
            let [value, rest @ ..] = rest else { bail!("{name} needs a value") };
            match *name {
                "--nodes" => {
                    let nodes = value.parse().ok().filter(|nodes| (1..=MAX_NODES).contains(nodes));
                    options.nodes = nodes
                        .with_context(|| format!("--nodes needs a number from 1 to {MAX_NODES}"))?;
                }
                "--kubernetes" => options.kubernetes = Some(value.into()),
                "--image" => options.images.push(value.into()),
                _ => bail!("unknown option {name}; use --nodes, --kubernetes or --image"),
            }
            words = rest;
        }
        Ok(options)
    }
}

fn up(words: &[&str]) -> Result<()> {
    let Started { kubeconfig, bin } = start(UpOptions::parse(words)?)?;
    writeln!(std::io::stdout(), "export KUBECONFIG={}", kubeconfig.display())?;
    writeln!(std::io::stdout(), "export PATH={}:$PATH", bin.display())?;
    Ok(())
}

/// Starts the cluster, which exists until [`down`].
fn start(options: UpOptions) -> Result<Started> {
    let UpOptions { nodes, kubernetes, images } = options;
    let folder = folder()?;
    if folder.exists() {
        bail!("a cluster exists already; remove it with `cargo xtask cluster down`");
    }
    test::kernel_tools()?;
    let programs = match NodePrograms::find(kubernetes.as_deref()) {
        Err(missing) if missing.folder.is_none() => {
            build()?;
            NodePrograms::find(kubernetes.as_deref())?
        }
        found => found?,
    };
    let (images, weir) = if images.is_empty() {
        let own = image::write_native()?;
        (own.archives, Some(own.weir))
    } else {
        (images, None)
    };
    let start = Instant::now();
    let options = Options { folder: folder.clone(), nodes, images };
    let started = Testbed::up(&programs, &options).map_err(anyhow::Error::from);
    let started = started.and_then(|testbed| start_relay(&testbed, &folder));
    let started = started.and_then(|()| link_plugin(weir.as_deref(), &folder));
    if let Err(error) = started {
        let logs = read_logs(&folder);
        weir_testbed::remove(&folder)?;
        return Err(error
            .context(format!("the cluster did not start; the last lines of its logs:\n{logs}")));
    }
    eprintln!(
        "Started {nodes} nodes in {} s. Logs: {}",
        start.elapsed().as_secs(),
        folder.display()
    );
    Ok(Started { kubeconfig: folder.join("kubeconfig-outside"), bin: folder.join("bin") })
}

/// Makes `kubectl weir` available in a folder of the cluster, if this task has built it.
fn link_plugin(weir: Option<&Path>, folder: &Path) -> Result<()> {
    let bin = folder.join("bin");
    fs::create_dir(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let Some(weir) = weir else { return Ok(()) };
    symlink(weir, bin.join("kubectl-weir")).context("cannot link kubectl-weir")
}

/// The ends of all logs.
fn read_logs(folder: &Path) -> String {
    let mut folders = vec![folder.to_path_buf()];
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path())
        {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "log") {
                let log = fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let end = lines[lines.len().saturating_sub(5)..].join("\n");
                text.push_str(&format!("== {}\n{end}\n", path.display()));
            }
        }
    }
    text
}

/// Makes the API server reachable at a port of the loopback interface, for which it writes a kubeconfig.
/// The network of the cluster is a namespace of its own, without a link to the machine.
fn start_relay(testbed: &Testbed, folder: &Path) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on the loopback")?;
    let address = listener.local_addr()?;
    let target = SocketAddr::from(testbed.api_address());
    let mut relay = testbed.service(&std::env::current_exe()?);
    relay.args(["cluster", "relay", &target.to_string()]);
    relay.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    relay.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    relay.spawn().context("cannot start the relay")?;
    fs::write(folder.join("kubeconfig-outside"), testbed.outside_kubeconfig(address)?)?;
    Ok(())
}

fn relay(target: SocketAddr) -> Result<()> {
    let listener = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    Ok(weir_testbed::relay(&listener, target)?)
}

fn down() -> Result<()> {
    let folder = folder()?;
    if !folder.exists() {
        eprintln!("There is no cluster.");
        return Ok(());
    }
    Ok(weir_testbed::remove(&folder)?)
}
