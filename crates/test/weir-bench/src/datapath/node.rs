use anyhow::{Result, bail, ensure};
use weir_datapath::{Datapath, Established, Ledger, Outcome};
use weir_engine::{Engine, Locality};
use weir_model::{Change, Delta, Program};

use crate::workload::NODE;

/// What an agent is without a source: changes come in, and a datapath follows.
pub(crate) struct Node<D: Datapath> {
    engine: Engine,
    ledger: Ledger<D>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Something was written.
    Applied,
    /// All was in force already.
    Unchanged,
}

impl<D: Datapath> Node<D> {
    /// A node that has heard of nothing yet.
    pub(crate) fn open(datapath: D) -> Self {
        let mut ledger = Ledger::new(datapath, Established::Keep);
        ledger.set_in_sync();
        Node { engine: Engine::new(Locality::Node(NODE.into())), ledger }
    }

    /// Enforces what was compiled elsewhere.
    pub(crate) fn enforce(mut self, program: &Program) -> Result<()> {
        self.ledger.want(Delta::from(program));
        self.settle().map(drop)
    }

    /// Compiles what changed.
    pub(crate) fn hear(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.ledger.want(self.engine.apply(changes));
    }

    /// Makes the kernel follow.
    pub(crate) fn settle(&mut self) -> Result<Settled> {
        let settled = match self.ledger.apply_pending() {
            Outcome::Applied => Settled::Applied,
            Outcome::Unchanged => Settled::Unchanged,
            Outcome::Waiting => bail!("a node that is in sync waits"),
            Outcome::Failed { error, .. } => bail!("{}", error.with_causes()),
        };
        let held = self.ledger.rejected().first_key_value();
        ensure!(held.is_none(), "the kernel refuses rules: {held:?}");
        Ok(settled)
    }
}
