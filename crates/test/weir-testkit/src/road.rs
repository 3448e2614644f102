//! Changes one after the other, many of which edit what is there by then.

use proptest::{collection::vec, prelude::*};
use weir_model::{Change, Object, World};

use crate::{change, edit, edit::Edit, policy};

/// A change before it is known what it meets: with an edit it only makes something that is there more like its object.
type Draw = (Change, Option<Edit>);

fn draws(max: usize) -> impl Strategy<Value = Vec<Draw>> {
    vec((change(), prop::option::weighted(0.4, edit::edit())), 0..=max)
}

/// So many policies at first, and then so many changes.
fn crowd(policies: usize, changes: usize) -> impl Strategy<Value = Vec<Draw>> {
    (vec(policy(), 0..policies), draws(changes)).prop_map(|(policies, changes)| {
        let policies = policies.into_iter().map(|policy| Change::Put(Object::Policy(policy)));
        policies.map(|policy| (policy, None)).chain(changes).collect()
    })
}

/// The changes that the draws are in a world that has seen those before them.
fn happen(draws: Vec<Draw>) -> Vec<Change> {
    let mut world = World::default();
    let changes = draws.into_iter().map(|draw| {
        let change = match draw {
            (Change::Put(like), Some(edit)) => Change::Put(edit.of(&world, like)),
            (change, _) => change,
        };
        world.apply(change.clone());
        change
    });
    changes.collect()
}

/// Up to `max` changes, one after the other.
pub fn changes(max: usize) -> impl Strategy<Value = Vec<Change>> {
    draws(max).prop_map(happen)
}

/// Changes in a world that is crowded with policies, so that rules have to be merged.
pub fn crowded() -> impl Strategy<Value = Vec<Change>> {
    crowd(40, 60).prop_map(happen)
}

/// A world that is crowded with policies, and changes to it.
pub fn before_and_after() -> impl Strategy<Value = (Vec<Change>, Vec<Change>)> {
    (crowd(20, 60), draws(12)).prop_map(|(mut draws, after)| {
        let before = draws.len();
        draws.extend(after);
        let mut changes = happen(draws);
        let after = changes.split_off(before);
        (changes, after)
    })
}
