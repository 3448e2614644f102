//! What a real kernel says: the nodes and pods of a world as network namespaces, their rules in force, connections tried.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use weir_datapath::{ApplyError, Established, Ledger, Mode, Outcome};
use weir_engine::Locality;
use weir_lab::{Lab, LabError, Layout};
use weir_model::{Delta, Flow, Name, Program, Verdict, World};
use weir_netfilter::{LogError, Logged, PacketLog};

use crate::{datapath::PacketFilter, failure::Failure, platform::Open};

/// How long a connection may take to be answered. Nothing but a rule loses packets here, and if the machine is too busy
/// for silence to mean anything, the lab tries again for longer.
const PATIENCE: Duration = Duration::from_millis(150);

/// Makes sure that namespaces can be made. To be called before there is a second thread.
pub(crate) fn enter() -> Result<(), Failure> {
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

    /// Makes every node enforce the policies of a world with the same pods, as an agent does that starts there.
    pub(crate) fn enforce(&self, world: &World, filter: PacketFilter) -> Result<(), Failure> {
        let mut world = world.clone();
        weir_lab::settle(&mut world);
        for node in &self.nodes {
            let program = weir_engine::compile(&world, Locality::Node(node.clone()));
            (filter.enforce)(self, node, &program)?;
        }
        Ok(())
    }

    /// Installs a program on a node, with a datapath that is opened there.
    pub(crate) fn enforce_on<D: Open>(
        &self,
        node: &Name,
        program: &Program,
    ) -> Result<(), Failure> {
        let open = || D::open_with(Mode::Enforce);
        let datapath = self.lab.on_node(node, open).map_err(failed)?.map_err(refused)?;
        let mut ledger = Ledger::new(datapath, Established::Keep);
        ledger.want(Delta::from(program));
        ledger.set_in_sync();
        if let Outcome::Failed { error, .. } = ledger.apply_pending() {
            return Err(refused(error));
        }
        match ledger.rejected().first_key_value() {
            None => Ok(()),
            Some((pod, held)) => {
                let what = format!("the kernel refuses the rules of {pod}: {}", held.error);
                Err(Failure::new(what, REPORT))
            }
        }
    }

    /// Tries all flows at once; the answers in order.
    pub(crate) fn probe(&self, flows: &[Flow]) -> Result<Vec<Verdict>, Failure> {
        self.lab.probe(flows, PATIENCE).map_err(failed)
    }

    /// Tries a flow, and says what the first packet of it was that a node reported: in words, and which rules dropped it.
    pub(crate) fn reported(&self, flow: Flow) -> Result<Option<String>, Failure> {
        let mut logs = Vec::new();
        for node in &self.nodes {
            let log = self.lab.on_node(node, || PacketLog::open(weir_netfilter::report::GROUP));
            logs.push(log.map_err(failed)?.map_err(unheard)?);
        }
        self.probe(&[flow])?;
        let mut first = None;
        for log in &mut logs {
            log.receive(PATIENCE, |packet| _ = first.get_or_insert_with(|| words(&packet)))
                .map_err(unheard)?;
        }
        Ok(first)
    }
}

/// Tries all flows in a world whose nodes enforce their policies; the answers in order.
pub(crate) fn verdicts(
    world: &World,
    flows: &[Flow],
    filter: PacketFilter,
) -> Result<Vec<Verdict>, Failure> {
    let kernel = Kernel::build(world, flows)?;
    kernel.enforce(world, filter)?;
    kernel.probe(flows)
}

/// A packet as it was reported: where it came from and went to, and what it was marked with.
fn words(packet: &Logged) -> String {
    let end = |address: IpAddr, port: Option<u16>| match port {
        Some(port) => SocketAddr::new(address, port).to_string(),
        None => address.to_string(),
    };
    format!(
        "{} → {}, protocol {}, {} bytes, marked \"{}\"",
        end(packet.source, packet.source_port),
        end(packet.destination, packet.destination_port),
        packet.protocol,
        packet.length,
        packet.prefix
    )
}

const REPORT: &str = "please report this, with the output of `weir render` for this datapath";

fn refused(error: ApplyError) -> Failure {
    Failure::new(error, REPORT)
}

fn unheard(error: LogError) -> Failure {
    Failure::new(error, "please report this")
}

fn failed(error: LabError) -> Failure {
    let hint = error.hint().unwrap_or("run it as root, or where everyone may make user namespaces");
    Failure::new(error, hint)
}
