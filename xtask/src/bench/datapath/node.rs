use anyhow::{Result, bail, ensure};
use weir_datapath::{Established, Ledger, Outcome};
use weir_engine::{Engine, Locality};
use weir_model::{Change, Delta, Program};
use weir_nft::{Mode, Nft};

use crate::bench::workload::NODE;

/// What an agent is without a source: changes come in, and the nftables of the namespace it was opened in follow.
pub(crate) struct Node {
    engine: Engine,
    ledger: Ledger<Nft>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Something was written.
    Applied,
    /// All was in force already.
    Unchanged,
}

/// Enforces a program in the namespace that this thread is in.
pub(crate) fn enforce(program: &Program) -> Result<()> {
    let mut node = Node::open()?;
    node.ledger.want(Delta::from(program));
    node.settle().map(drop)
}

impl Node {
    /// A node that has heard of nothing yet.
    pub(crate) fn open() -> Result<Node> {
        let mut ledger = Ledger::new(Nft::open(Mode::Enforce)?, Established::Keep);
        ledger.in_sync();
        Ok(Node { engine: Engine::new(Locality::Node(NODE.into())), ledger })
    }

    /// Compiles what changed.
    pub(crate) fn hear(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.ledger.want(self.engine.apply(changes));
    }

    /// Makes the kernel follow.
    pub(crate) fn settle(&mut self) -> Result<Settled> {
        let settled = match self.ledger.settle() {
            Outcome::Applied => Settled::Applied,
            Outcome::Unchanged => Settled::Unchanged,
            Outcome::Waiting => bail!("a node that is in sync waits"),
            Outcome::Failed { error, .. } => bail!("{}", error.with_causes()),
        };
        let held = self.ledger.held().first_key_value();
        ensure!(held.is_none(), "the kernel refuses rules: {held:?}");
        Ok(settled)
    }
}
