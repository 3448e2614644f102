//! Findings about a world: policies that have no effect, or less or more effect than intended.
//!
//! ```text
//!  World ──► Index (pods by namespace and label) ──► one check per file ──► Vec<Finding>, sorted
//! ```
//!
//! ```
//! use weir_api::ManifestReader;
//! use weir_model::World;
//!
//! let mut reader = ManifestReader::new();
//! reader.read_file("shop.yaml".into(), br#"
//! apiVersion: v1
//! kind: Pod
//! metadata: {name: web, namespace: shop, labels: {app: web}}
//! status: {podIP: 10.0.0.1}
//! ---
//! apiVersion: v1
//! kind: Pod
//! metadata: {name: db, namespace: shop, labels: {app: db}}
//! status: {podIP: 10.0.0.2}
//! ---
//! apiVersion: networking.k8s.io/v1
//! kind: NetworkPolicy
//! metadata: {name: db, namespace: shop}
//! spec:
//!   podSelector: {matchLabels: {app: db}}
//!   ingress:
//!   - from: [{podSelector: {matchLabels: {app: wbe}}}]
//!     ports: [{port: 5432}]
//! "#);
//! let world: World = reader.finish().objects.into_iter().collect();
//! let findings = weir_lint::lint(&world);
//! assert_eq!(findings[0].field, "spec.ingress[0].from[0]");
//! println!("{}: {}; {}", findings[0].code, findings[0].message, findings[0].hint);
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
mod resolver;
mod rule;
mod select;
mod site;
mod subject;
#[cfg(test)]
mod tests;
mod unselected;

pub use code::CODES;
pub use unselected::unselected;

use std::{collections::BTreeMap, net::IpAddr};

use index::Index;
use weir_model::{Finding, PodId, World};

/// Lists with more entries than this are compared only for equal entries, or not at all, to bound the
/// quadratic cost. No such list is written by hand.
const MAX_COMPARED: usize = 64;

/// Checks the whole world and adds its findings.
type Check = fn(&Index<'_>, &mut Vec<Finding>);

const CHECKS: [Check; 13] = [
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
    resolver::check,
    pod::check,
];

/// All findings about a world, sorted by location.
pub fn lint(world: &World) -> Vec<Finding> {
    lint_with(world, &BTreeMap::new())
}

/// The same, with the DNS servers of the pods that use neither those of the cluster nor those of
/// their node.
pub fn lint_with(world: &World, resolvers: &BTreeMap<PodId, Vec<IpAddr>>) -> Vec<Finding> {
    let index = Index::new(world, resolvers);
    let mut findings = Vec::new();
    for check in CHECKS {
        check(&index, &mut findings);
    }
    findings.sort();
    findings.dedup();
    findings
}
