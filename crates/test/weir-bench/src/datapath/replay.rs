//! Sends the bytes that weir writes, and nothing else: the lower bound for a client that writes the same.

use std::time::Duration;

use anyhow::{Context, Result};
use weir_datapath::{Mode, Planner as _};
use weir_engine::{Engine, Locality};
use weir_model::{Change, Delta, Program};
use weir_netlink::{Messages, NetlinkProtocol, Socket};
use weir_nft::Planner;

use super::{backend::nftables, node::BenchAgent};
use crate::{measure::cpu, workload::NODE};

/// A node whose changes are planned first, and then sent as one transaction.
pub(super) struct Replay {
    engine: Engine,
    program: Program,
    planner: Planner,
    socket: Socket,
    buffer: Vec<u8>,
}

impl Replay {
    /// Enforces the rules of a cluster.
    pub(super) fn open(changes: impl IntoIterator<Item = Change>) -> Result<Self> {
        let mut engine = Engine::new(Locality::Node(NODE.into()));
        let mut program = Program::default();
        program.apply(engine.apply(changes));
        BenchAgent::open(nftables()?).enforce(&program)?;
        let planner = Planner::from_program(&program, Mode::Enforce);
        let socket = Socket::open(NetlinkProtocol::Netfilter)?;
        Ok(Replay { engine, program, planner, socket, buffer: vec![0; 64 * 1024] })
    }

    /// The time of sending what weir writes for an event. The kernel answers only to errors.
    pub(super) fn send(&mut self, changes: impl IntoIterator<Item = Change>) -> Result<Duration> {
        let delta: Delta = self.engine.apply(changes);
        self.program.apply(delta.clone());
        let bytes = self.planner.plan(&self.program, &delta).as_one_batch()?;
        let (time, sent) = cpu(|| self.socket.send(&bytes));
        sent.context("cannot send a transaction")?;
        while let Some(received) = self.socket.receive(&mut self.buffer, Some(Duration::ZERO))? {
            for message in Messages::new(received) {
                message?.verdict().transpose().context("the kernel rejected a transaction")?;
            }
        }
        Ok(time)
    }
}
