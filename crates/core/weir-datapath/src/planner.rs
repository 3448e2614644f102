use std::{collections::BTreeMap, fmt};

use weir_model::{Delta, PodId, PolicyId, Program};

use crate::FormerAddresses;

/// Turns programs into plans for one kind of machine.
///
/// A planner does no I/O. It may keep state: the program that its last plan leads to, in the
/// backend's own terms. Each plan starts from there, so that its cost follows the delta.
pub trait Planner {
    /// The state that [`Datapath::installed`](crate::Datapath::installed) reads back.
    type Installed;
    /// The steps that [`Datapath::apply`](crate::Datapath::apply) takes.
    type Plan: Plan;

    /// Whether the machine has rules of weir, which a program could remove. If in doubt, it has.
    fn has_rules(_installed: &Self::Installed) -> bool {
        true
    }

    /// Plans the steps from the last planned state to `program`. `delta` holds all changes since.
    fn plan(&mut self, program: &Program, delta: &Delta) -> Self::Plan;

    /// Plans the way to `program` from any installed state. Later plans start from `program`.
    fn replan(&mut self, program: &Program, installed: &Self::Installed) -> Self::Plan;

    /// Sets the addresses that domain names had before the program of the next `replan`. Later deltas
    /// of `plan` add to them.
    ///
    /// Only a backend that evaluates established connections by its rules needs them.
    fn set_former(&mut self, _former: FormerAddresses) {}

    /// The machine did not carry out the last plan for these pods.
    ///
    /// The next plan that touches one of them must repeat its steps. A backend whose `apply` never
    /// fails with [`ApplyErrorKind::Partial`](crate::ApplyErrorKind::Partial) needs no such memory.
    fn rejected(&mut self, _pods: &BTreeMap<PodId, String>) {}

    /// The rules of the current program that this backend cannot express and made stricter.
    fn shortfalls(&self) -> Vec<Shortfall> {
        Vec::new()
    }
}

/// A finished plan. It displays as exactly the steps that applying it takes.
pub trait Plan: fmt::Display {
    /// Whether the plan has no steps.
    fn is_empty(&self) -> bool;
}

/// A rule that a backend cannot express. The backend allows less instead, never more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shortfall {
    /// The pod whose rules became stricter.
    pub pod: PodId,
    /// The policy that contains the rule, if it comes from a policy.
    pub policy: Option<PolicyId>,
    /// The part that the backend cannot express.
    pub what: String,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.policy {
            Some(policy) => write!(f, "{policy} for {}: {}", self.pod, self.what),
            None => write!(f, "{}: {}", self.pod, self.what),
        }
    }
}
