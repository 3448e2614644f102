//! Findings about a world: policies that do nothing, that do less than they seem to, or more.
//!
//! ```text
//!  World ──► Index (pods by namespace and label) ──► one check per file ──► Vec<Finding>, sorted
//! ```
//!
//! *Invariant*: a finding is about something a person wrote, names the line and offers a way out. What cannot be known
//! from the world (no pods, no namespaces given) is not complained about. Each distinct selector is evaluated once.

mod admin;
mod block;
mod code;
mod cover;
mod dns;
mod index;
mod moot;
mod peer;
mod pod;
mod port;
mod reserved;
mod rule;
mod select;
mod site;
mod subject;
#[cfg(test)]
mod tests;

pub use code::CODES;

use index::Index;
use weir_model::{Finding, World};

/// A check looks at the whole world and adds what it finds.
type Check = fn(&Index<'_>, &mut Vec<Finding>);

const CHECKS: [Check; 11] = [
    subject::check,
    peer::check,
    block::check,
    port::check,
    reserved::check,
    rule::check,
    moot::check,
    admin::shadowed,
    admin::same_priority,
    dns::check,
    pod::check,
];

/// All that is worth saying about a world, sorted by place.
pub fn lint(world: &World) -> Vec<Finding> {
    let index = Index::new(world);
    let mut findings = Vec::new();
    for check in CHECKS {
        check(&index, &mut findings);
    }
    findings.sort();
    findings.dedup();
    findings
}
