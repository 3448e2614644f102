//! Sequences of changes, many of which edit an object of an earlier change.

use proptest::{collection::vec, prelude::*};
use weir_model::{Change, Object, World};

use crate::{change, edit, edit::ObjectEdit, policy};

/// A change, and an edit that replaces it if the world has an object of that kind.
type Draw = (Change, Option<ObjectEdit>);

fn draws(max: usize) -> impl Strategy<Value = Vec<Draw>> {
    vec((change(), prop::option::weighted(0.4, edit::edit())), 0..=max)
}

/// Up to `policies` policies, then up to `changes` changes.
fn policies_then_changes(policies: usize, changes: usize) -> impl Strategy<Value = Vec<Draw>> {
    (vec(policy(), 0..policies), draws(changes)).prop_map(|(policies, changes)| {
        let policies = policies.into_iter().map(|policy| Change::Put(Object::Policy(policy)));
        policies.map(|policy| (policy, None)).chain(changes).collect()
    })
}

/// Resolves each draw against the world left by the previous ones.
fn resolve(draws: Vec<Draw>) -> Vec<Change> {
    let mut world = World::default();
    let changes = draws.into_iter().map(|draw| {
        let change = match draw {
            (Change::Put(like), Some(edit)) => Change::Put(edit.apply(&world, like)),
            (change, _) => change,
        };
        world.apply(change.clone());
        change
    });
    changes.collect()
}

/// A sequence of up to `max` changes.
pub fn changes(max: usize) -> impl Strategy<Value = Vec<Change>> {
    draws(max).prop_map(resolve)
}

/// Changes of a world with many policies, so that the engine has to merge rules.
pub fn crowded() -> impl Strategy<Value = Vec<Change>> {
    policies_then_changes(40, 60).prop_map(resolve)
}

/// The changes that build a world with many policies, and further changes of it.
pub fn before_and_after() -> impl Strategy<Value = (Vec<Change>, Vec<Change>)> {
    (policies_then_changes(20, 60), draws(12)).prop_map(|(mut draws, after)| {
        let before = draws.len();
        draws.extend(after);
        let mut changes = resolve(draws);
        let after = changes.split_off(before);
        (changes, after)
    })
}
