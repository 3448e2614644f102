//! Findings about a world: policies that have no effect, or less or more effect than intended.
//!
//! ```text
//!  World ──► Index (pods by namespace and label) ──► one check per file ──► Vec<Finding>, sorted
//! ```
//!
//! *Invariant*: a finding is about something that a person wrote, names the line and suggests a
//! fix. Checks that need objects which the world lacks, such as pods, are skipped. Each distinct
//! selector is evaluated once.

mod admin;
mod block;
mod code;
mod cover;
mod dns;
mod index;
mod local_dns;
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
mod unselected;

pub use code::CODES;
pub use unselected::unselected;

use index::Index;
use weir_model::{Finding, World};

/// Lists with more entries than this are compared only for equal entries, or not at all, to bound the
/// quadratic cost. No such list is written by hand.
const MAX_COMPARED: usize = 64;

/// Checks the whole world and adds its findings.
type Check = fn(&Index<'_>, &mut Vec<Finding>);

const CHECKS: [Check; 12] = [
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
    local_dns::check,
    pod::check,
];

/// All findings about a world, sorted by location.
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
