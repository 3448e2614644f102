use anyhow::{Result, bail, ensure};
use weir_datapath::{Datapath, Established, Ledger, Outcome};
use weir_engine::{Engine, Locality};
use weir_model::{Change, Delta, Program};

use crate::workload::NODE;

/// An agent without a source: it compiles changes and applies them to a datapath.
pub(crate) struct BenchAgent<D: Datapath> {
    engine: Engine,
    ledger: Ledger<D>,
}

/// The result of applying changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApplyResult {
    /// The datapath wrote rules.
    Applied,
    /// All rules were already in force.
    Unchanged,
}

impl<D: Datapath> BenchAgent<D> {
    /// A node without objects.
    pub(crate) fn open(datapath: D) -> Self {
        Self::with_established(datapath, Established::Keep)
    }

    /// The same with a choice for connections that a change forbids.
    pub(crate) fn with_established(datapath: D, established: Established) -> Self {
        let mut ledger = Ledger::new(datapath, established);
        ledger.set_in_sync();
        BenchAgent { engine: Engine::new(Locality::Node(NODE.into())), ledger }
    }

    /// Enforces a compiled program.
    pub(crate) fn enforce(mut self, program: &Program) -> Result<()> {
        self.load(program)
    }

    /// The same for an agent that goes on.
    pub(crate) fn load(&mut self, program: &Program) -> Result<()> {
        self.ledger.add_delta(Delta::from(program));
        self.apply().map(drop)
    }

    /// The warnings of the datapath.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.ledger.warnings()
    }

    /// Compiles changes.
    pub(crate) fn compile(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.ledger.add_delta(self.engine.apply(changes));
    }

    /// Ends the connections that the rules forbid.
    pub(crate) fn terminate(&mut self) -> Result<()> {
        ensure!(self.ledger.has_flows_to_terminate(), "no connections have to end");
        Ok(self.ledger.terminate_flows().map(drop)?)
    }

    /// Applies the pending rules.
    pub(crate) fn apply(&mut self) -> Result<ApplyResult> {
        let applied = match self.ledger.apply_pending() {
            Outcome::Applied => ApplyResult::Applied,
            Outcome::Unchanged => ApplyResult::Unchanged,
            Outcome::Waiting => bail!("the ledger waits although the node is in sync"),
            Outcome::Failed { error, .. } => bail!("{}", error.with_causes()),
        };
        let held = self.ledger.rejected().first_key_value();
        ensure!(held.is_none(), "the kernel rejected rules: {held:?}");
        Ok(applied)
    }
}
