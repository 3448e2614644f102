//! A lab on this machine: builds the nodes and pods of a world as network namespaces, installs
//! rules and tries connections.

mod names;

use std::{
    cell::RefCell,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use weir_datapath::{ApplyError, Datapath, Established, Ledger, Mode, Outcome};
use weir_engine::{Engine, Locality};
use weir_lab::{Lab, LabError, Layout};
use weir_model::{Delta, Flow, Name, Program, Verdict, World};
use weir_netfilter::{DnsWatch, LogError, Logged, PacketLog};

use self::names::Resolvers;
use crate::{datapath::PacketFilter, failure::Failure, platform::Open};

/// The time that a connection may take. Only rules drop packets in a lab; if the machine is too
/// busy for this timeout, the lab tries again with a longer one.
const PROBE_TIMEOUT: Duration = Duration::from_millis(150);

/// Enters a user namespace if that is needed to create network namespaces. Must run before a second
/// thread starts.
pub(crate) fn enter() -> Result<(), Failure> {
    weir_lab::enter().map_err(failed)
}

/// The same for eBPF programs, which need root.
pub(crate) fn enter_with_bpf() -> Result<(), Failure> {
    weir_lab::enter_with_bpf().map_err(|error| {
        let hint = "run it as root on Linux 6.6 or later, or use `--datapath nftables`, which needs neither";
        Failure::new(error, hint)
    })
}

/// A cluster of network namespaces on this machine.
pub(crate) struct KernelLab {
    /// The nodes that observe DNS.
    watches: RefCell<Vec<DnsWatch>>,
    lab: Lab,
    nodes: Vec<Name>,
    resolvers: Resolvers,
}

impl KernelLab {
    /// Builds the nodes and pods of a world, without rules, and the outside addresses of the flows.
    pub(crate) fn build(world: &World, flows: &[Flow]) -> Result<Self, Failure> {
        let layout = Layout::from_world(world, flows);
        let lab = Lab::build(&layout).map_err(failed)?;
        let nodes = layout.nodes.into_iter().map(|node| node.name).collect();
        let resolvers = Resolvers::outside(world, flows);
        Ok(KernelLab { watches: RefCell::default(), lab, nodes, resolvers })
    }

    /// Installs the policies of a world with the same pods on every node, as a starting agent does.
    pub(crate) fn enforce(&self, world: &World, filter: PacketFilter) -> Result<(), Failure> {
        let mut world = world.clone();
        weir_lab::assign_nodes(&mut world);
        self.watches.borrow_mut().clear();
        for node in &self.nodes {
            (filter.enforce)(self, node, &world)?;
        }
        Ok(())
    }

    /// Installs the policies of a world on a node, with a datapath that is opened there. The node
    /// learns the addresses of domain names from the answers of a resolver.
    pub(crate) fn enforce_on<D: Open>(&self, node: &Name, world: &World) -> Result<(), Failure> {
        let open = || D::open_with(Mode::Enforce);
        let datapath = self.lab.on_node(node, open).map_err(failed)?.map_err(rejected)?;
        let mut engine = Engine::new(Locality::Node(node.clone()));
        let has_names = !world.domains.is_empty();
        let changes = world.changes().filter(|change| !names::is_name(change));
        let asking = has_names.then(|| self.resolvers.policy());
        let mut ledger = install(datapath, engine.apply(changes.chain(asking)))?;
        if has_names {
            let state = (&mut engine, &mut ledger);
            let watch = names::learn(&self.lab, node, world, self.resolvers, state)
                .map_err(|error| Failure::new(error, UNNAMED))?;
            self.watches.borrow_mut().extend(watch);
        }
        Ok(())
    }

    /// Tries all flows concurrently. Returns the verdicts in order.
    pub(crate) fn probe(&self, flows: &[Flow]) -> Result<Vec<Verdict>, Failure> {
        self.lab.probe(flows, PROBE_TIMEOUT).map_err(failed)
    }

    /// Tries a flow and describes the first packet of it that a node reports as dropped.
    pub(crate) fn reported(&self, flow: Flow) -> Result<Option<String>, Failure> {
        let mut logs = Vec::new();
        for node in &self.nodes {
            let log = self.lab.on_node(node, || PacketLog::open(weir_netfilter::report::GROUP));
            logs.push(log.map_err(failed)?.map_err(unreported)?);
        }
        self.probe(&[flow])?;
        let mut first = None;
        for log in &mut logs {
            log.receive(PROBE_TIMEOUT, |packet| {
                first.get_or_insert_with(|| describe(&packet));
            })
            .map_err(unreported)?;
        }
        Ok(first)
    }
}

/// Installs a program in the network namespace of this thread, with a datapath that is opened there.
pub(crate) fn install_here<D: Open>(program: &Program) -> Result<(), Failure> {
    install(D::open_with(Mode::Enforce).map_err(rejected)?, program.into()).map(drop)
}

/// Installs everything that a delta adds, as a starting agent does.
fn install<D: Datapath>(datapath: D, delta: Delta) -> Result<Ledger<D>, Failure> {
    let mut ledger = Ledger::new(datapath, Established::Keep);
    ledger.add_delta(delta);
    ledger.set_in_sync();
    if let Outcome::Failed { error, .. } = ledger.apply_pending() {
        return Err(rejected(error));
    }
    match ledger.rejected().first_key_value() {
        None => Ok(ledger),
        Some((pod, held)) => {
            let what = format!("the kernel rejects the rules of {pod}: {}", held.error);
            Err(Failure::new(what, REPORT))
        }
    }
}

/// Builds a lab with the policies of a world and tries all flows. Returns the verdicts in order.
pub(crate) fn verdicts(
    world: &World,
    flows: &[Flow],
    filter: PacketFilter,
) -> Result<Vec<Verdict>, Failure> {
    let kernel = KernelLab::build(world, flows)?;
    kernel.enforce(world, filter)?;
    kernel.probe(flows)
}

/// Describes a reported packet: source, destination, protocol, length and the prefix of the rule.
fn describe(packet: &Logged) -> String {
    let end = |address: IpAddr, port: Option<u16>| match port {
        Some(port) => SocketAddr::new(address, port).to_string(),
        None => address.to_string(),
    };
    let protocol = match packet.protocol {
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        132 => "SCTP".to_owned(),
        number => format!("protocol {number}"),
    };
    format!(
        "{} → {}, {}, {} bytes, log prefix \"{}\"",
        end(packet.source, packet.source_port),
        end(packet.destination, packet.destination_port),
        protocol,
        packet.length,
        packet.prefix
    )
}

const UNNAMED: &str = "domain names need nf_tables and `nfnetlink_queue`; use `weir test` without `--datapath` where the kernel lacks them";
const REPORT: &str = "please report this, with the output of `weir render` for this datapath";

fn rejected(error: ApplyError) -> Failure {
    Failure::new(error, REPORT)
}

fn unreported(error: LogError) -> Failure {
    Failure::new(error, "this is a bug; please report it with the manifests")
}

fn failed(error: LabError) -> Failure {
    let hint = error
        .hint()
        .unwrap_or("run it as root, or on a system that allows unprivileged user namespaces");
    Failure::new(error, hint)
}
