//! A direct transcription of the API documentation: slow, short, and independent of the engine.
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
//! Codes such as C6 refer to the rules in `cases/semantics`, which has a case for each of them.
//!
//! *Invariant*: the oracle keeps no state and walks the whole world for every flow. It shares only
//! data types with the engine. It repeats even the simple methods of those types (the addresses
//! that a pod owns, the contents of a block, the ports of a range), so that a mistake in them shows
//! as a disagreement.

mod peer;
mod select;
mod side;
#[cfg(test)]
mod tests;

use weir_model::{Direction, Flow, Verdict, World};

/// Whether a connection is allowed. Replies to an allowed connection are allowed as well (I7).
pub fn verdict(world: &World, flow: &Flow) -> Verdict {
    // I3, I4: both ends must allow it. C9: an Accept at one end does not affect the other end.
    side(world, flow, Direction::Egress).and(side(world, flow, Direction::Ingress))
}

/// The verdict of the rules for one direction: those of the source or of the destination.
pub fn side(world: &World, flow: &Flow, direction: Direction) -> Verdict {
    if side::allows(world, flow, direction) { Verdict::Allow } else { Verdict::Deny }
}
