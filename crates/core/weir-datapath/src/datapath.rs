use std::{collections::BTreeSet, net::IpAddr};

use weir_model::Flow;

use crate::{ApplyError, Planner};

/// A machine that enforces plans. All I/O of a backend is here, and no decision.
pub trait Datapath {
    /// The planner whose plans this datapath applies.
    type Planner: Planner;

    /// A planner for this datapath that knows no program yet.
    fn planner(&self) -> Self::Planner;

    /// Reads the installed state, so that a restarted agent compares instead of rewriting it.
    fn installed(&mut self) -> Result<<Self::Planner as Planner>::Installed, ApplyError>;

    /// Applies a plan as a whole or not at all, unless the error is
    /// [`ApplyErrorKind::Partial`](crate::ApplyErrorKind::Partial).
    ///
    /// After any other error the caller reads `installed` and replans.
    fn apply(&mut self, plan: &<Self::Planner as Planner>::Plan) -> Result<(), ApplyError>;

    /// Compares the machine with the planner's current program. Cheap, and never blocks.
    fn drift(&mut self, planner: &Self::Planner) -> Result<Drift, ApplyError>;

    /// Removes everything that weir installed, and nothing else.
    fn remove(&mut self) -> Result<(), ApplyError>;

    /// The means to end established connections, if the machine has one.
    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<Self::Planner>> {
        None
    }

    /// Further facts for the agent's status and metrics, if the backend has any.
    fn diagnostics(&self) -> Option<&dyn Diagnostics<Self::Planner>> {
        None
    }
}

/// How the machine differs from the last plan, since the previous check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// No difference was found.
    None,
    /// Another program changed something that weir installed.
    Changed,
    /// The machine can now take steps that the last plan had to leave out.
    Resumable,
}

/// Ends established connections. Backends whose machine tracks connections implement it.
pub trait TerminateFlows<P> {
    /// Ends the forbidden connections that involve one of `addresses`. Returns how many it ended.
    fn terminate(
        &mut self,
        planner: &mut P,
        addresses: &BTreeSet<IpAddr>,
        is_forbidden: &dyn Fn(&Flow) -> bool,
    ) -> Result<usize, ApplyError>;
}

/// Facts about the machine that only some backends have.
pub trait Diagnostics<P> {
    /// Conditions that keep rules out of force without being errors.
    fn warnings(&self, planner: &P) -> Vec<String>;

    /// The number of rules, in the backend's own terms, that the backend maintains.
    fn rule_count(&self, planner: &P) -> usize;
}
