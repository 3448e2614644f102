//! The node around the rules: rules of other policy engines, and pods that the rules do not see.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
};

use serde::Serialize;
use weir_datapath::ApplyError;
use weir_model::Program;

/// The most pods that a message lists.
const MAX_LISTED_PODS: usize = 5;

/// Inspects the node around the rules.
pub trait Surroundings: fmt::Debug + Send + Sync {
    /// Looks for other rules, and for pods of a program that the rules do not see. Cheap.
    fn inspect(&self, program: &Program) -> io::Result<Inspection>;

    /// Removes the rules that those of the current datapath replace.
    fn remove_superseded(&self) -> Result<(), ApplyError>;
}

/// The result of an inspection.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The rules of other policy engines, and of weir's other datapaths.
    pub leftovers: Vec<Leftover>,
    /// The pods to which the rules do not apply.
    pub blind_spots: BTreeSet<BlindSpot>,
}

/// Rules that filter the packets of pods beside those of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// The program that installed them.
    pub owner: &'static str,
    /// The rules.
    pub rules: String,
    /// What to do about them.
    pub hint: &'static str,
    /// Whether the agent removes them when its own rules are in force.
    #[serde(skip)]
    pub kind: LeftoverKind,
}

/// The origin of a leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverKind {
    /// Another datapath of weir, or a policy engine whose rules the agent replaces.
    Superseded,
    /// Another policy engine.
    Foreign,
}

/// A pod to which the rules do not apply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlindSpot {
    /// Whether the agent is ready meanwhile.
    pub effect: Effect,
    /// The reason, which many pods can share.
    pub cause: String,
    /// What to do about it.
    pub hint: &'static str,
    /// The pod with details, or a link of a pod.
    pub pod: String,
}

/// The effect of a blind spot on the agent's readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The agent is not ready.
    NotReady,
    /// The agent is ready and warns.
    Warning,
}

impl Leftover {
    /// A line for the log.
    pub(crate) fn line(&self) -> String {
        let Leftover { owner, rules, hint, .. } = self;
        format!("rules of {owner} also filter packets of pods ({rules}): {hint}")
    }
}

/// One line for all pods with the same cause.
pub(crate) fn lines<'a>(spots: impl Iterator<Item = &'a BlindSpot>) -> Vec<String> {
    let mut causes: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for BlindSpot { cause, hint, pod, .. } in spots {
        causes.entry((cause, hint)).or_default().push(pod);
    }
    let line = |((cause, hint), pods): ((&str, &str), Vec<&str>)| {
        let listed = pods.iter().take(MAX_LISTED_PODS).copied().collect::<Vec<_>>().join(", ");
        let more = match pods.len().saturating_sub(MAX_LISTED_PODS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{cause}: {listed}{more}; {hint}")
    };
    causes.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_with_the_same_cause_share_a_line() {
        let spot = |number: usize| BlindSpot {
            effect: Effect::NotReady,
            cause: "policies do not apply to pods behind eth0".into(),
            hint: "use veth pairs",
            pod: format!("shop/pod-{number}"),
        };
        let spots: BTreeSet<BlindSpot> = (0..7).map(spot).collect();
        let expected = "policies do not apply to pods behind eth0: shop/pod-0, shop/pod-1, shop/pod-2, shop/pod-3, shop/pod-4 and 2 more; use veth pairs";
        assert_eq!(lines(spots.iter()), [expected]);
    }
}
