//! The time until the last packet of connections that a change forbids.

use std::{
    net::{IpAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use weir_datapath::{Datapath, Established};
use weir_iptables::Variant;
use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::PodId;

use super::{
    backend::{ebpf, iptables, nftables},
    cluster::{PORT, PolicyLoad, server},
    control::ChangeCost,
    node::{ApplyResult, BenchAgent},
};
use crate::{
    measure::{Spread, cpu},
    workload::NODE,
};

/// The number of pods that send: one has too few ports.
const CLIENTS: usize = 4;
/// The first port that a client sends from.
const FIRST_PORT: u16 = 10_000;
/// The policy whose peers are the clients.
const CLUSTER: PolicyLoad = PolicyLoad { policies: 1, members: CLIENTS };

/// One measurement: the backend, the CPU time and the elapsed time.
struct Cut {
    how: &'static str,
    busy: Duration,
    elapsed: Duration,
}

/// The measurements of all rounds.
#[derive(Default)]
pub(super) struct Cuts(Vec<Cut>);

const HOWS: [&str; 3] = ["weir", "weir, iptables", "weir, ebpf"];

impl Cuts {
    /// Measures every backend once.
    pub(super) fn round(&mut self, connections: usize) -> Result<()> {
        let [nft, ipt, bpf] = HOWS;
        self.0.push(cut(connections, nft, nftables)?);
        self.0.push(cut(connections, ipt, || iptables(Variant::Nft))?);
        self.0.push(cut(connections, bpf, ebpf)?);
        Ok(())
    }

    pub(super) fn rows(&self, connections: usize) -> Vec<ChangeCost> {
        let row = |how: &'static str, what: &str, of: fn(&Cut) -> Duration| {
            let ours = self.0.iter().filter(|cut| cut.how == how);
            let values: Vec<f64> = ours.map(|cut| of(cut).as_secs_f64() * 1e3).collect();
            (!values.is_empty()).then(|| ChangeCost {
                task: None,
                what: format!("forbid {connections} open connections: {what}"),
                how,
                unit: "ms",
                spread: Spread::from_values(values),
                times_bare: None,
            })
        };
        let busy = HOWS.into_iter().filter_map(|how| row(how, "CPU", |cut| cut.busy));
        let elapsed =
            HOWS.into_iter().filter_map(|how| row(how, "last packet after", |cut| cut.elapsed));
        busy.chain(elapsed).collect()
    }
}

/// Opens connections, forbids them, and measures until the datapath has ended them.
fn cut<D: Datapath>(
    connections: usize,
    how: &'static str,
    open: impl FnOnce() -> Result<D> + Send,
) -> Result<Cut> {
    let lab = Lab::build(&layout(CLUSTER))?;
    let receiver = lab.at(server(), || UdpSocket::bind((server(), PORT)))??;
    receiver.set_nonblocking(true)?;
    let senders: Vec<IpAddr> = CLUSTER.peers(0).collect();
    lab.on_node(NODE, || {
        let mut node = BenchAgent::with_established(open()?, Established::Cut);
        node.compile(CLUSTER.changes());
        ensure!(node.apply()? == ApplyResult::Applied, "a first load wrote nothing");
        for sender in &senders {
            lab.at(*sender, || send_from_many(*sender, connections / CLIENTS, PORT))??;
        }
        ensure!(drain(&receiver) > 0, "no packet of an allowed connection arrived");
        let start = Instant::now();
        let (busy, done) = cpu(|| -> Result<()> {
            node.compile([CLUSTER.forbid()]);
            ensure!(node.apply()? == ApplyResult::Applied, "the change wrote nothing");
            node.terminate()
        });
        done?;
        let elapsed = start.elapsed();
        for sender in &senders {
            lab.at(*sender, || send_from_many(*sender, 10, PORT))??;
        }
        ensure!(drain(&receiver) == 0, "a packet of a forbidden connection arrived");
        Ok(Cut { how, busy, elapsed })
    })?
    .with_context(|| format!("cannot cut connections by {how}"))
}

/// Sends a datagram from each of many ports to a port of the server.
pub(super) fn send_from_many(address: IpAddr, count: usize, to: u16) -> Result<()> {
    for port in (FIRST_PORT..).take(count) {
        UdpSocket::bind((address, port))?.send_to(b"weir", (server(), to))?;
    }
    Ok(())
}

/// Receives what has arrived. Returns the number of packets.
pub(super) fn drain(receiver: &UdpSocket) -> usize {
    std::iter::from_fn(|| receiver.recv(&mut [0; 64]).ok()).count()
}

/// The server, and the peers of the first policy as pods of the same node.
pub(super) fn layout(cluster: PolicyLoad) -> Layout {
    let pod = |name: String, address| LabPod {
        id: PodId::new("shop", name),
        addresses: vec![address],
        node: NODE.into(),
        host_network: false,
    };
    let clients = cluster.peers(0).enumerate();
    let clients = clients.map(|(number, address)| pod(format!("client-{number}"), address));
    Layout {
        nodes: vec![LabNode { name: NODE.into(), addresses: Vec::new() }],
        pods: clients.chain([pod("server".into(), server())]).collect(),
        ..Layout::default()
    }
}
