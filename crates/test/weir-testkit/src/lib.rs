//! Generators for tests; a dev-dependency only.
//!
//! ```text
//!  pool      the small pools of names, addresses, labels and ports
//!  object    pods, namespaces, nodes, domain names        ┐
//!  policy    policies of every kind, rule, peer and port  ┴─► change(), world()
//!  edit      one changed field of an existing object
//!  changes   sequences of changes and edits             ────► changes(max), crowded(), before_and_after()
//!  flow      connections between addresses of the pool  ────► flow()
//!  fuzz      the same choices, made by a fuzzer's bytes ────► changes_from_bytes()
//!  egress    rules with many peers and ports, as YAML
//!  hostile   policies whose parts multiply                ────► HostileShape, HostileAdminShape,
//!                                                                HostileMixture
//!  midway    the verdicts that a packet can get during a change
//! ```
//!
//! The pools are small on purpose: pods share labels and addresses, policies share priorities and
//! selectors, objects reuse names of removed ones, and policies refer to namespaces that do not exist.
//!
//! *Invariant*: generated objects are valid for the API. A NetworkPolicy only allows, a
//! BaselineAdminNetworkPolicy has the name `default`, a domain name is an allowed destination only, and
//! a rule with a named port has no node or domain name as peer. Strategies shrink towards fewer and
//! simpler objects.

mod changes;
mod edit;
pub mod egress;
mod flow;
mod fuzz;
mod hostile;
mod midway;
mod object;
mod policy;
pub mod pool;
#[cfg(test)]
mod tests;

use proptest::{collection::vec, prelude::*};
use weir_model::{Change, Key, Object, World};

pub use changes::{before_and_after, changes, crowded};
pub use flow::flow;
pub use fuzz::changes_from_bytes;
pub use hostile::{HostileAdminShape, HostileMixture, HostileShape};
pub use midway::Midway;
pub use object::{domain, namespace, node, pod};
pub use policy::{block, policy, policy_id, selector};

/// A change of one object: it is put or removed.
pub fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => object().prop_map(Change::Put),
        1 => key().prop_map(Change::Remove),
    ]
}

/// A world with objects of all kinds.
pub fn world() -> impl Strategy<Value = World> {
    (
        vec(namespace().prop_map(Object::Namespace), 0..=8),
        vec(pod().prop_map(Object::Pod), 0..=16),
        vec(node().prop_map(Object::Node), 0..=3),
        vec(policy().prop_map(Object::Policy), 0..=8),
        vec(domain(), 0..=3),
    )
        .prop_map(|(namespaces, pods, nodes, policies, domains)| {
            [namespaces, pods, nodes, policies, domains].into_iter().flatten().collect()
        })
}

/// An object of any kind.
pub fn object() -> impl Strategy<Value = Object> {
    prop_oneof![
        6 => pod().prop_map(Object::Pod),
        2 => namespace().prop_map(Object::Namespace),
        1 => node().prop_map(Object::Node),
        1 => domain(),
        5 => policy().prop_map(Object::Policy),
    ]
}

/// The key of an object of any kind, which need not exist.
pub fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        6 => object::pod_id().prop_map(Key::Pod),
        2 => pool::name(pool::NAMESPACES).prop_map(Key::Namespace),
        1 => pool::name(pool::NODES).prop_map(Key::Node),
        1 => pool::name(pool::DOMAINS).prop_map(Key::Domain),
        5 => policy_id().prop_map(Key::Policy),
    ]
}
