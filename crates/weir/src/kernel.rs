//! What a real kernel says: the nodes and pods of a world as network namespaces, their rules loaded, connections tried.

use std::{
    env,
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

use weir_engine::Locality;
use weir_lab::{Lab, LabError, Layout};
use weir_model::{Flow, Name, Verdict, World};

use crate::failure::Failure;

/// How long a connection may take to be answered. Nothing but a rule loses packets here, and if the machine is too busy
/// for silence to mean anything, the lab tries again for longer.
const PATIENCE: Duration = Duration::from_millis(150);

/// What to do without nft.
const INSTALL: &str = "install nftables, on Debian with `apt-get install nftables`";

/// Debian keeps nft where an ordinary user's path does not lead.
const ELSEWHERE: &str = "/usr/sbin/nft";

/// The program nft, ready to be given arguments.
fn nft() -> Command {
    let on_path = env::var_os("PATH")
        .into_iter()
        .flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    let mut there = on_path.map(|folder| folder.join("nft")).filter(|nft| nft.is_file());
    Command::new(there.next().unwrap_or_else(|| ELSEWHERE.into()))
}

/// Makes sure that namespaces can be made and rules loaded. To be called before there is a second thread.
pub(crate) fn enter() -> Result<(), Failure> {
    let asked = nft().arg("--version").stdout(Stdio::null()).status();
    asked.map_err(|error| Failure::new(format!("cannot run `nft`: {error}"), INSTALL))?;
    weir_lab::enter().map_err(failed)
}

/// A cluster of network namespaces on this machine.
pub(crate) struct Kernel {
    lab: Lab,
    nodes: Vec<Name>,
}

impl Kernel {
    /// Builds the nodes and pods of a world. Nothing is enforced yet. The flows say which addresses will be tried.
    pub(crate) fn build(world: &World, flows: &[Flow]) -> Result<Self, Failure> {
        let layout = Layout::of(world, flows);
        let lab = Lab::build(&layout).map_err(failed)?;
        Ok(Kernel { lab, nodes: layout.nodes.into_iter().map(|node| node.name).collect() })
    }

    /// Makes every node enforce the policies of a world with the same pods, in place of what it enforced before.
    pub(crate) fn enforce(&self, world: &World) -> Result<(), Failure> {
        let mut world = world.clone();
        weir_lab::settle(&mut world);
        for node in &self.nodes {
            let program = weir_engine::compile(&world, Locality::Node(node.clone()));
            // One transaction: the old table goes as the new one comes.
            let ruleset = format!(
                "add table inet weir\ndelete table inet weir\n{}",
                weir_nft::render(&program)
            );
            self.lab.on_node(node, || load(&ruleset)).map_err(failed)??;
        }
        Ok(())
    }

    /// Tries all flows at once; the answers in order.
    pub(crate) fn probe(&self, flows: &[Flow]) -> Result<Vec<Verdict>, Failure> {
        self.lab.probe(flows, PATIENCE).map_err(failed)
    }
}

/// Tries all flows in a world whose nodes enforce their policies with nftables; the answers in order.
pub(crate) fn verdicts(world: &World, flows: &[Flow]) -> Result<Vec<Verdict>, Failure> {
    let kernel = Kernel::build(world, flows)?;
    kernel.enforce(world)?;
    kernel.probe(flows)
}

/// Hands a ruleset to the kernel of the namespace that this thread is in.
fn load(ruleset: &str) -> Result<(), Failure> {
    let mut child = nft()
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::new(format!("cannot run `nft`: {error}"), INSTALL))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If nft gives up early it says why; a broken pipe adds nothing to that.
        _ = stdin.write_all(ruleset.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(|error| Failure::new(format!("cannot run `nft`: {error}"), INSTALL))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let hint = "please report this, with the output of `weir render --datapath nftables`";
    Err(Failure::new(format!("the kernel refuses the ruleset: {said}"), hint))
}

fn failed(error: LabError) -> Failure {
    let hint = error.hint().unwrap_or("run it as root, or where everyone may make user namespaces");
    Failure::new(error, hint)
}
