//! A flood of new connections past the size of the table of connections.

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_ebpf::layout::MAX_FLOWS;
use weir_lab::Lab;

use super::{
    backend::MeasuredBackend,
    cluster::{PORT, PolicyLoad, server},
    cut::{drain, layout, send_from_many},
};
use crate::{
    measure::{Spread, cpu},
    workload::NODE,
};

/// The number of pods that send: one has too few ports.
const CLIENTS: usize = 8;
/// The policy whose peers are the clients.
const CLUSTER: PolicyLoad = PolicyLoad { policies: 1, members: CLIENTS };
/// The number of connections that are established before the flood.
const CONNECTIONS: usize = 1000;
/// The number of denied packets after the flood.
const DENIED: usize = 1000;
/// The number of new connections in each half of the flood: as many as the table has room for.
const HALF: usize = MAX_FLOWS as usize;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A packet that has not arrived after this time counts as dropped. TCP sends it again later only.
const DROP_TIMEOUT: Duration = Duration::from_millis(100);

/// The figures of one flood.
pub(crate) struct Flood {
    /// The established connections on which the client's next packet and the reply to it arrived.
    continued: usize,
    /// The denied packets that arrived.
    opened: usize,
    /// The CPU time of a packet in each half of the flood, in microseconds.
    times: [f64; 2],
}

impl Flood {
    pub(crate) fn json(&self) -> Value {
        let Flood { continued, opened, times } = self;
        json!({"continued": continued, "denied_arrived": opened, "microseconds": times})
    }
}

/// Measures eBPF.
pub(super) fn measure(rounds: usize) -> Result<Vec<Flood>> {
    let round = |round: usize| {
        eprintln!("round {}: a flood of {} connections", round + 1, 2 * HALF);
        flood().context("cannot measure a flood")
    };
    (0..rounds).map(round).collect()
}

/// The figures as a table. Of the counts, the worst of all rounds.
pub(super) fn table(floods: &[Flood]) -> String {
    let continued = floods.iter().map(|flood| flood.continued).min().unwrap_or_default();
    let opened = floods.iter().map(|flood| flood.opened).max().unwrap_or_default();
    let time = |half: usize| {
        Spread::from_values(floods.iter().map(|flood| flood.times[half]).collect()).text(1, " µs")
    };
    let mut table = String::from("| what | weir, ebpf |\n| --- | ---: |\n");
    let rows = [
        (format!("connections that continue, of {CONNECTIONS} established"), continued.to_string()),
        (format!("packets that arrive, of {DENIED} denied"), opened.to_string()),
        (format!("CPU of a packet, the first {HALF}"), time(0)),
        (format!("CPU of a packet, the next {HALF}"), time(1)),
    ];
    for (what, figure) in rows {
        _ = writeln!(table, "| {what} | {figure} |");
    }
    table
}

fn flood() -> Result<Flood> {
    let lab = Lab::build(&layout(CLUSTER))?;
    lab.on_node(NODE, || MeasuredBackend::Ebpf.enforce(&CLUSTER.program()))??;
    let (receiver, closed) = (receiver(&lab, PORT)?, receiver(&lab, PORT + 1)?);
    let mut connections = connect_all(&lab)?;
    let clients: Vec<IpAddr> = CLUSTER.peers(0).collect();
    let mut times = [0.0; 2];
    for (time, clients) in times.iter_mut().zip(clients.chunks(CLIENTS / 2)) {
        *time = send_half(&lab, clients)?.as_secs_f64() * 1e6 / HALF as f64;
        ensure!(drain(&receiver) > 0, "no packet of the flood arrived");
    }
    lab.at(clients[0], || send_from_many(clients[0], DENIED, PORT + 1))??;
    thread::sleep(DROP_TIMEOUT);
    let opened = drain(&closed);
    let continued = connections.iter_mut().map(continues).filter(|continues| *continues).count();
    Ok(Flood { continued, opened, times })
}

/// A socket of the server.
fn receiver(lab: &Lab, port: u16) -> Result<UdpSocket> {
    let socket = lab.at(server(), || UdpSocket::bind((server(), port)))??;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Opens connections from all clients: the client's end and the server's end of each.
fn connect_all(lab: &Lab) -> Result<Vec<[TcpStream; 2]>> {
    let listener = lab.at(server(), || TcpListener::bind((server(), PORT)))??;
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for client in CLUSTER.peers(0) {
        for _ in 0..CONNECTIONS / CLIENTS {
            connections.push(lab.at(client, || connect(&listener))??);
        }
    }
    let established = connections.iter_mut().map(continues).filter(|continues| *continues).count();
    ensure!(established == CONNECTIONS, "only {established} connections were established");
    Ok(connections)
}

fn connect(listener: &TcpListener) -> Result<[TcpStream; 2]> {
    let near = TcpStream::connect_timeout(&SocketAddr::new(server(), PORT), CONNECT_TIMEOUT)?;
    let (far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_read_timeout(Some(DROP_TIMEOUT))?;
    }
    Ok([near, far])
}

/// Whether the client's next packet arrives, and then the server's.
fn continues([near, far]: &mut [TcpStream; 2]) -> bool {
    passes(near, far) && passes(far, near)
}

fn passes(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    from.write_all(b"w").is_ok() && to.read_exact(&mut [0]).is_ok()
}

/// Sends half of the flood: each packet comes from a port of its own. Returns the CPU time.
fn send_half(lab: &Lab, clients: &[IpAddr]) -> Result<Duration> {
    let mut total = Duration::ZERO;
    for client in clients {
        let (time, sent) =
            lab.at(*client, || cpu(|| send_from_many(*client, HALF / clients.len(), PORT)))?;
        sent?;
        total += time;
    }
    Ok(total)
}
