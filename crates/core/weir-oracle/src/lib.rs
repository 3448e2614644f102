//! The API documents read aloud: slow, short, and sharing nothing with the engine but the words.
//!
//! ```text
//!            ┌ egress side of the pod at `from` ┐
//!  Flow ───► │                                  │ ──► both must allow
//!            └ ingress side of the pod at `to`  ┘
//!
//!  a side:  Admin ──► NetworkPolicies, if any isolates ──► (final)
//!                 └─► else Baseline ──► else allow
//! ```
//!
//! Numbers such as C6 are those of the rules in `cases/semantics`, where each has a case.
//!
//! *Invariant*: nothing is remembered. Every question walks the whole world again, and what the words could decide for
//! us (which addresses are a pod's own, what a block holds, which ports a range has) is written out here once more,
//! so that a mistake there shows as a disagreement.

mod peer;
mod select;
mod side;
#[cfg(test)]
mod tests;

use weir_model::{Direction, Flow, Verdict, World};

/// Whether a connection passes. Replies to it then pass as well (I7), so there is nothing to ask about them.
pub fn verdict(world: &World, flow: &Flow) -> Verdict {
    // I3, I4: both ends must agree. C9: that the one accepts says nothing about the other.
    let sides = [Direction::Egress, Direction::Ingress];
    match sides.into_iter().all(|direction| side::passes(world, flow, direction)) {
        true => Verdict::Allow,
        false => Verdict::Deny,
    }
}
