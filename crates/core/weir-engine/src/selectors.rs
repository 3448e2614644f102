use hashbrown::HashMap;
use smallvec::{SmallVec, smallvec};
use weir_model::{Requirement, Selector};

use crate::{
    labels::{KeyId, LabelTable, PairId},
    postings::PostingEntry,
    slab::Slab,
};

/// A distinct selector.
pub(crate) type SelectorId = u32;

/// The distinct selectors in use, compiled to pair ids.
#[derive(Debug, Default)]
pub(crate) struct Selectors {
    table: Slab<CompiledSelector>,
    ids: HashMap<Selector, SelectorId>,
}

#[derive(Debug)]
struct CompiledSelector {
    selector: Selector,
    conditions: Box<[LabelCondition]>,
    anchors: Anchors,
    uses: u32,
}

#[derive(Debug)]
enum LabelCondition {
    In(Box<[PairId]>),
    NotIn(Box<[PairId]>),
    Exists(KeyId),
    Absent(KeyId),
}

/// A property that every object must have for the selector to match. Objects are indexed by it, so
/// that a change of one object evaluates only the selectors that could match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Anchor {
    /// This pair.
    Pair(PairId),
    /// Some pair with this key.
    Key(KeyId),
    /// No particular property.
    Anything,
}

/// An object needs at least one of these. If there are none, the selector matches nothing.
pub(crate) type Anchors = SmallVec<[Anchor; 1]>;

impl Selectors {
    /// Interns a selector and adds a reference to it.
    pub(crate) fn acquire(&mut self, selector: &Selector, labels: &mut LabelTable) -> SelectorId {
        if let Some(&id) = self.ids.get(selector) {
            self.table[id].uses += 1;
            return id;
        }
        let conditions: Box<[LabelCondition]> =
            selector.requirements().iter().map(|r| LabelCondition::new(r, labels)).collect();
        let anchors = anchors(&conditions, labels);
        let id = self.table.insert(CompiledSelector {
            selector: selector.clone(),
            conditions,
            anchors,
            uses: 1,
        });
        self.ids.insert(selector.clone(), id);
        id
    }

    /// Releases a reference to a selector.
    pub(crate) fn release(&mut self, id: SelectorId, labels: &mut LabelTable) {
        self.table[id].uses -= 1;
        if self.table[id].uses > 0 {
            return;
        }
        let gone = self.table.remove(id);
        self.ids.remove(&gone.selector);
        for condition in gone.conditions {
            match condition {
                LabelCondition::In(pairs) | LabelCondition::NotIn(pairs) => {
                    pairs.into_iter().for_each(|pair| labels.release(pair))
                }
                LabelCondition::Exists(key) | LabelCondition::Absent(key) => {
                    labels.release_key(key)
                }
            }
        }
    }

    pub(crate) fn anchors(&self, id: SelectorId) -> &Anchors {
        &self.table[id].anchors
    }

    /// Whether the selector matches an object with these labels.
    pub(crate) fn matches(
        &self,
        id: SelectorId,
        row: &[PostingEntry],
        labels: &LabelTable,
    ) -> bool {
        let has_one_of = |pairs: &[PairId]| row.iter().any(|entry| pairs.contains(&entry.pair));
        let has_key = |key: KeyId| row.iter().any(|entry| labels.key_of(entry.pair) == key);
        self.table[id].conditions.iter().all(|condition| match condition {
            LabelCondition::In(pairs) => has_one_of(pairs),
            LabelCondition::NotIn(pairs) => !has_one_of(pairs),
            LabelCondition::Exists(key) => has_key(*key),
            LabelCondition::Absent(key) => !has_key(*key),
        })
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl LabelCondition {
    fn new(requirement: &Requirement, labels: &mut LabelTable) -> Self {
        match requirement {
            Requirement::In(key, values) => {
                LabelCondition::In(values.iter().map(|value| labels.acquire(key, value)).collect())
            }
            Requirement::NotIn(key, values) => LabelCondition::NotIn(
                values.iter().map(|value| labels.acquire(key, value)).collect(),
            ),
            Requirement::Exists(key) => LabelCondition::Exists(labels.acquire_key(key)),
            Requirement::Absent(key) => LabelCondition::Absent(labels.acquire_key(key)),
        }
    }
}

/// The properties to index a selector by: the pairs with the fewest uses, else a key, else nothing.
fn anchors(conditions: &[LabelCondition], labels: &LabelTable) -> Anchors {
    let pairs = conditions.iter().filter_map(|condition| match condition {
        LabelCondition::In(pairs) => Some(pairs),
        LabelCondition::NotIn(_) | LabelCondition::Exists(_) | LabelCondition::Absent(_) => None,
    });
    let rarest = pairs.min_by_key(|pairs| pairs.iter().map(|pair| labels.uses(*pair)).sum::<u64>());
    let key = conditions.iter().find_map(|condition| match condition {
        LabelCondition::Exists(key) => Some(*key),
        LabelCondition::In(_) | LabelCondition::NotIn(_) | LabelCondition::Absent(_) => None,
    });
    match (rarest, key) {
        (Some(pairs), _) => pairs.iter().map(|pair| Anchor::Pair(*pair)).collect(),
        (None, Some(key)) => smallvec![Anchor::Key(key)],
        (None, None) => smallvec![Anchor::Anything],
    }
}
