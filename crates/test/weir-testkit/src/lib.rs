//! Generators for tests; a dev-dependency only.
//!
//! ```text
//!  pool      the few names, addresses, labels and ports that everything is drawn from
//!  object    pods, namespaces, nodes, domain names        ┐
//!  policy    policies of every kind, rule, peer and port  ┴─► change(), world()
//!  edit      one thing changed in an object that is there
//!  road      changes and edits, one after the other     ────► changes(max), crowded(), before_and_after()
//!  flow      connections between addresses of the pool  ────► flow()
//!  fuzz      the same draws, made by a fuzzer's bytes   ────► changes_from_bytes()
//!  midway    what a packet may meet while rules change
//! ```
//!
//! The pools are small on purpose: pods share labels and addresses, policies share priorities and selectors, objects
//! come back under the name of others, and namespaces are mentioned that do not exist.
//!
//! *Invariant*: what is generated is what the API lets through. A NetworkPolicy only allows, a
//! BaselineAdminNetworkPolicy is called `default`, a domain name is only allowed and only as a destination, and a rule
//! that names a port has no peers that are nodes or domain names. Strategies shrink towards fewer and simpler objects.

mod edit;
mod flow;
mod fuzz;
mod midway;
mod object;
mod policy;
pub mod pool;
mod road;
#[cfg(test)]
mod tests;

use proptest::{collection::vec, prelude::*};
use weir_model::{Change, Key, Object, World};

pub use flow::flow;
pub use fuzz::changes_from_bytes;
pub use midway::Midway;
pub use object::{domain, namespace, node, pod};
pub use policy::{block, policy, policy_id, selector};
pub use road::{before_and_after, changes, crowded};

/// Something happens to one object: it is now so, or it is gone.
pub fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => object().prop_map(Change::Put),
        1 => key().prop_map(Change::Remove),
    ]
}

/// A world with something of everything.
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

/// What identifies an object of any kind; it may be one that was never there.
pub fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        6 => object::pod_id().prop_map(Key::Pod),
        2 => pool::name(pool::NAMESPACES).prop_map(Key::Namespace),
        1 => pool::name(pool::NODES).prop_map(Key::Node),
        1 => pool::name(pool::DOMAINS).prop_map(Key::Domain),
        5 => policy_id().prop_map(Key::Policy),
    ]
}
