//! Desired against installed rules.
//!
//! ```text
//!           add_delta()           plan_pending()               apply()
//!   Engine ─────────────► pending ────────────────► program, Plan ────────► machine
//!                            ▲                                      │ the machine rejects
//!                            │ retry()                              ▼ the new rules of a pod
//!                            └───────────────────────────────── rejected
//! ```
//!
//! - `program` is the last program that the machine accepted. A rejected pod appears in it with the
//!   rules that are in force for that pod.
//! - `pending` is one delta: the desired changes beyond `program`. A slow machine never
//!   causes a queue, because later deltas merge into this one.
//! - `rejected` holds the desired rules of the pods whose new rules the machine does not accept.
//! - `trusted` is true while the machine has the rules that the last plan led to. Then `pending` is
//!   enough for the next plan. Otherwise the ledger reads `installed` and replans.
//!
//! In equations:
//!
//! ```text
//!   desired   = program + rejected + pending
//!   installed = program, if trusted
//! ```

mod attempt;
mod connections;
mod denying;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use weir_model::{Delta, Endpoint, PodId, Program, SetDelta, SetId};

use crate::{
    ApplyError, Datapath, Drift, EnforceGuard, FormerAddresses, Journal, PacketPath, Planner,
    Shortfall,
};

pub use attempt::PlannedDelta;
use attempt::Written;
use connections::Affected;
pub use connections::Established;
use denying::DenyingSets;

/// Keeps a datapath equal to the desired program. The module documentation explains its states.
///
/// A ledger has no clock: its caller decides when to apply and how long to back off.
#[derive(Debug)]
pub struct Ledger<D: Datapath> {
    datapath: D,
    planner: D::Planner,
    /// The last program that the machine accepted.
    program: Program,
    /// The changes that are not in `program` yet.
    pending: Delta,
    rejected: BTreeMap<PodId, Rejected>,
    /// Sets that the engine removed but that the rules of rejected pods still name.
    retained_sets: BTreeSet<SetId>,
    in_sync: bool,
    /// Whether the machine has what the last plan led to.
    trusted: bool,
    failures: u32,
    established: Established,
    /// The connections that the changes since then may forbid.
    affected: Affected,
    /// Those of earlier changes. They end when all packets have left the previous rules.
    ending: Affected,
    /// Sets named by a rule that denies or passes on: a new member may lose connections.
    denying: DenyingSets,
    /// Addresses that domain names had before. Their connections continue.
    former: FormerAddresses,
}

/// A pod whose new rules the machine rejected.
///
/// Its old rules stay in force. A pod without old rules passes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The endpoint with its desired rules.
    pub desired: Endpoint,
    /// The reason for the rejection.
    pub error: String,
    /// The number of attempts so far.
    pub attempts: u32,
}

/// The result of [`Ledger::apply_pending`].
#[derive(Debug)]
pub enum Outcome {
    /// The source is not in sync. The ledger read and wrote nothing.
    Waiting,
    /// The desired program was in force already. The ledger wrote nothing.
    Unchanged,
    /// The desired program is in force, except for rejected pods.
    Applied,
    /// The attempt failed and the previous program is still in force.
    Failed {
        /// The cause.
        error: ApplyError,
        /// The number of failed attempts in a row.
        attempts: u32,
    },
}

impl<D: Datapath> Ledger<D> {
    /// A ledger that has no desired program and does not trust the machine.
    pub fn new(datapath: D, established: Established) -> Self {
        Ledger {
            planner: datapath.planner(),
            datapath,
            program: Program::default(),
            pending: Delta::default(),
            rejected: BTreeMap::new(),
            retained_sets: BTreeSet::new(),
            in_sync: false,
            trusted: false,
            failures: 0,
            established,
            affected: Affected::default(),
            ending: Affected::default(),
            denying: DenyingSets::default(),
            former: FormerAddresses::default(),
        }
    }

    /// Adds changes to the desired program.
    pub fn add_delta(&mut self, delta: Delta) {
        self.pending = mem::take(&mut self.pending).then(delta);
    }

    /// Allows writes: the source has delivered its complete state.
    pub fn set_in_sync(&mut self) {
        self.in_sync = true;
    }

    /// Allows writes although a part of the source is unknown, unless the machine has rules: they
    /// may come from the unknown part. Returns whether writes are allowed.
    pub fn set_partial(&mut self) -> Result<bool, ApplyError> {
        if !self.in_sync {
            self.in_sync = !D::Planner::has_rules(&self.datapath.installed()?);
        }
        Ok(self.in_sync)
    }

    /// Forbids writes: the source possibly describes another machine.
    pub fn set_out_of_sync(&mut self) {
        self.in_sync = false;
    }

    /// Makes the next attempt read the installed state and replan.
    pub fn distrust(&mut self) {
        self.trusted = false;
    }

    /// Checks the machine for drift. After any drift, the ledger no longer trusts the machine.
    pub fn drift(&mut self) -> Result<Drift, ApplyError> {
        if !self.trusted {
            return Ok(Drift::None);
        }
        let drift = self.datapath.drift(&self.planner)?;
        self.trusted = drift == Drift::None;
        Ok(drift)
    }

    /// The machine's means to check packets of pods beyond policies.
    pub fn guard(&mut self) -> Option<&mut dyn EnforceGuard> {
        self.datapath.guard()
    }

    /// The machine's means to keep records for the next agent.
    pub fn journal(&mut self) -> Option<&mut dyn Journal> {
        self.datapath.journal()
    }

    /// The machine's counters of denied packets.
    pub fn denied(&mut self) -> Result<Vec<u64>, ApplyError> {
        self.datapath.denied()
    }

    /// The rules that the backend cannot express and made stricter.
    pub fn shortfalls(&self) -> Vec<Shortfall> {
        self.planner.shortfalls()
    }

    /// The backend's warnings about the machine.
    pub fn warnings(&self) -> Vec<String> {
        let diagnostics = self.datapath.diagnostics();
        diagnostics.map(|them| them.warnings(&self.planner)).unwrap_or_default()
    }

    /// The number of rules in the backend's own terms, if the backend counts them.
    pub fn rule_count(&self) -> Option<usize> {
        self.datapath.diagnostics()?.rule_count()
    }

    /// The way of packets, if the backend remembers connections itself.
    pub fn packet_path(&self) -> Option<PacketPath> {
        self.datapath.diagnostics()?.packet_path()
    }

    /// Moves the rejected pods back to `pending`.
    pub fn retry(&mut self) {
        for (id, rejected) in &self.rejected {
            let desired = || Some(rejected.desired.clone());
            self.pending.endpoints.entry(id.clone()).or_insert_with(desired);
        }
    }

    /// Whether [`apply_pending`](Ledger::apply_pending) has nothing to do.
    pub fn is_up_to_date(&self) -> bool {
        !self.in_sync || (self.trusted && self.pending.is_empty())
    }

    /// Whether the changes that are not in force yet concern rules, not only members of sets.
    pub fn has_pending_rules(&self) -> bool {
        let is_change = |change: &SetDelta| matches!(change, SetDelta::Change { .. });
        !self.pending.endpoints.is_empty() || !self.pending.sets.values().all(is_change)
    }

    /// The last program that the machine accepted.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The pods whose new rules the machine rejected.
    pub fn rejected(&self) -> &BTreeMap<PodId, Rejected> {
        &self.rejected
    }

    /// Plans the way to the desired program; `None` if there is nothing to do.
    ///
    /// Reads the installed state if the ledger does not trust the machine. If the caller drops the
    /// result instead of applying it, the next plan starts from the installed state.
    pub fn plan_pending(&mut self) -> Option<PlannedDelta<D>> {
        if self.is_up_to_date() {
            return None;
        }
        let mut delta = mem::take(&mut self.pending);
        self.defer_set_removal(&mut delta);
        Some(self.plan(delta))
    }

    /// Applies a plan of [`plan_pending`](Ledger::plan_pending).
    pub fn apply(&mut self, planned: PlannedDelta<D>) -> Outcome {
        match self.apply_or_bisect(planned) {
            Ok(written) => {
                self.failures = 0;
                if written == Written::Nothing { Outcome::Unchanged } else { Outcome::Applied }
            }
            Err(error) => {
                self.failures += 1;
                Outcome::Failed { error, attempts: self.failures }
            }
        }
    }

    /// Brings the machine to the desired program: plans and applies.
    pub fn apply_pending(&mut self) -> Outcome {
        if !self.in_sync {
            return Outcome::Waiting;
        }
        match self.plan_pending() {
            Some(planned) => self.apply(planned),
            None => Outcome::Unchanged,
        }
    }
}
