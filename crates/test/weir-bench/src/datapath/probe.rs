//! A probe that owns both ends of a connection in one thread. The kernel runs the whole path of a packet
//! in the context of this thread, so the thread's CPU time is the cost of the path.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::{PodId, Verdict};

use super::cluster::{PORT, client, server};
use crate::{measure::cpu, workload::NODE};

/// A measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Connect, request, reply, close.
    Connection,
    /// A request of 64 bytes and its reply on an open connection.
    RoundTrip,
    /// A datagram without a reply.
    OneWay,
    /// A new socket and the first datagram from it.
    FirstDatagram,
    /// A datagram to a port that no policy allows. Without rules it arrives.
    Refused,
}

impl Operation {
    pub(crate) const ALL: [Operation; OPERATIONS] = [
        Operation::Connection,
        Operation::RoundTrip,
        Operation::OneWay,
        Operation::FirstDatagram,
        Operation::Refused,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Connection => "new connection (CRR)",
            Operation::RoundTrip => "TCP round trip (RR)",
            Operation::OneWay => "one-way UDP packet",
            Operation::FirstDatagram => "first UDP packet",
            Operation::Refused => "refused UDP packet",
        }
    }

    /// The number of operations in a slice, and the number that is timed together, because the timer is
    /// imprecise for short operations.
    fn repeats(self) -> (usize, usize) {
        match self {
            Operation::Connection | Operation::FirstDatagram => (60, 1),
            Operation::RoundTrip | Operation::OneWay | Operation::Refused => (10, 20),
        }
    }
}

/// The number of operations.
pub(crate) const OPERATIONS: usize = 5;

/// Microseconds of CPU per operation, by operation in order.
pub(crate) type Samples = [Vec<f64>; OPERATIONS];

/// A request, and a reply.
const MESSAGE: [u8; 64] = [b'w'; 64];
/// A packet that has not arrived after this time counts as dropped.
const DROP_TIMEOUT: Duration = Duration::from_millis(100);
/// The number of unmeasured operations when the probe returns to a lab.
const WARM_UP: usize = 3;

/// Two pods and their node, with rules, and sockets at both ends.
pub(crate) struct PacketProbe {
    lab: Lab,
    listener: TcpListener,
    receiver: UdpSocket,
    /// A receiver at a port that no policy allows.
    closed: UdpSocket,
}

/// The sockets that stay open between operations.
struct Open {
    near: TcpStream,
    far: TcpStream,
    sender: UdpSocket,
    refused: UdpSocket,
}

impl PacketProbe {
    /// Builds a lab and loads rules into its node.
    pub(crate) fn new(load: impl FnOnce() -> Result<()> + Send) -> Result<PacketProbe> {
        let lab = Lab::build(&layout())?;
        lab.on_node(NODE, load)??;
        let bind = || -> Result<_> {
            let receiver = |port| -> Result<UdpSocket> {
                let socket = UdpSocket::bind((server(), port))?;
                socket.set_read_timeout(Some(DROP_TIMEOUT))?;
                Ok(socket)
            };
            Ok((TcpListener::bind((server(), PORT))?, receiver(PORT)?, receiver(PORT + 1)?))
        };
        let (listener, receiver, closed) = lab.at(server(), bind)??;
        Ok(PacketProbe { lab, listener, receiver, closed })
    }

    /// Checks that allowed packets arrive, and that other packets get the verdict `rest`.
    pub(crate) fn check(&self, rest: Verdict) -> Result<()> {
        self.inside(|| {
            let _ = self.open().context("an allowed packet was dropped")?;
            let sender = UdpSocket::bind((client(), 0))?;
            sender.send_to(&MESSAGE, (server(), PORT + 1))?;
            let arrived = self.closed.recv(&mut [0; 64]).is_ok();
            ensure!(arrived == (rest == Verdict::Allow), "the rules have the wrong effect");
            Ok(self.closed.set_nonblocking(true)?)
        })
    }

    /// Runs one slice of every operation.
    pub(crate) fn slice(&self, samples: &mut Samples) -> Result<()> {
        self.inside(|| {
            let mut open = self.open()?;
            for (operation, samples) in Operation::ALL.into_iter().zip(samples) {
                for _ in 0..WARM_UP {
                    self.perform(operation, &mut open)?;
                }
                let (repeats, together) = operation.repeats();
                for _ in 0..repeats {
                    let work =
                        || (0..together).try_for_each(|_| self.perform(operation, &mut open));
                    let (time, done) = cpu(work);
                    done.with_context(|| format!("cannot measure {}", operation.name()))?;
                    samples.push(time.as_secs_f64() * 1e6 / together as f64);
                }
            }
            Ok(())
        })
    }

    fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.lab.at(client(), work)?
    }

    fn open(&self) -> Result<Open> {
        let near = TcpStream::connect_timeout(&SocketAddr::new(server(), PORT), DROP_TIMEOUT)?;
        let (far, _) = self.listener.accept()?;
        Ok(Open { near, far, sender: sender(PORT)?, refused: sender(PORT + 1)? })
    }

    fn perform(&self, operation: Operation, open: &mut Open) -> Result<()> {
        match operation {
            Operation::Connection => {
                let mut near = TcpStream::connect((server(), PORT))?;
                let (mut far, _) = self.listener.accept()?;
                round_trip(&mut near, &mut far)?;
                // The end that closes first keeps the connection in TIME_WAIT, and the client needs its ports
                // again.
                drop(far);
                drop(near);
            }
            Operation::RoundTrip => round_trip(&mut open.near, &mut open.far)?,
            Operation::OneWay => self.datagram(&open.sender)?,
            Operation::FirstDatagram => self.datagram(&sender(PORT)?)?,
            Operation::Refused => {
                // Some rules answer with an error, which the next call returns.
                let is_refusal = |error: &io::Error| {
                    matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused
                    )
                };
                let sent = open.refused.send(&MESSAGE).map(drop);
                for result in [sent, self.closed.recv(&mut [0; 64]).map(drop)] {
                    if let Err(error) = result
                        && !is_refusal(&error)
                    {
                        return Err(error.into());
                    }
                }
            }
        }
        Ok(())
    }

    fn datagram(&self, sender: &UdpSocket) -> Result<()> {
        sender.send(&MESSAGE)?;
        self.receiver.recv(&mut [0; 64])?;
        Ok(())
    }
}

fn sender(port: u16) -> Result<UdpSocket> {
    let sender = UdpSocket::bind((client(), 0))?;
    sender.connect((server(), port))?;
    Ok(sender)
}

fn round_trip(near: &mut TcpStream, far: &mut TcpStream) -> Result<()> {
    let mut buffer = [0; MESSAGE.len()];
    near.write_all(&MESSAGE)?;
    far.read_exact(&mut buffer)?;
    far.write_all(&MESSAGE)?;
    near.read_exact(&mut buffer)?;
    Ok(())
}

fn layout() -> Layout {
    let pod = |name: &str, address| LabPod {
        id: PodId::new("shop", name),
        addresses: vec![address],
        node: NODE.into(),
        host_network: false,
    };
    Layout {
        nodes: vec![LabNode { name: NODE.into(), addresses: Vec::new() }],
        pods: vec![pod("client", client()), pod("server", server())],
        ..Layout::default()
    }
}
