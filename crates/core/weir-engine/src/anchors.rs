use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::{
    labels::LabelTable,
    postings::PostingEntry,
    selectors::{Anchor, Anchors},
};

/// Finds the selectors that could match an object, by their anchors and by scope.
#[derive(Debug)]
pub(crate) struct AnchorIndex<S> {
    lists: HashMap<(S, Anchor), SmallVec<[u32; 2]>>,
    by_key: usize,
}

impl<S> Default for AnchorIndex<S> {
    fn default() -> Self {
        AnchorIndex { lists: HashMap::new(), by_key: 0 }
    }
}

impl<S: Copy + Eq + std::hash::Hash> AnchorIndex<S> {
    /// Adds an entry for a selector with these anchors.
    pub(crate) fn insert(&mut self, scope: S, anchors: &Anchors, id: u32) {
        for anchor in anchors {
            self.lists.entry((scope, *anchor)).or_default().push(id);
            self.by_key += usize::from(matches!(anchor, Anchor::Key(_)));
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, scope: S, anchors: &Anchors, id: u32) {
        for anchor in anchors {
            let Some(list) = self.lists.get_mut(&(scope, *anchor)) else { continue };
            if let Some(at) = list.iter().position(|other| *other == id) {
                list.swap_remove(at);
                self.by_key -= usize::from(matches!(anchor, Anchor::Key(_)));
            }
            if list.is_empty() {
                self.lists.remove(&(scope, *anchor));
            }
        }
    }

    /// Calls `visit` once for every entry whose selector could match an object with these labels.
    pub(crate) fn candidates(
        &self,
        scope: S,
        row: &[PostingEntry],
        labels: &LabelTable,
        mut visit: impl FnMut(u32),
    ) {
        let mut visit_list = |anchor| {
            self.lists.get(&(scope, anchor)).into_iter().flatten().for_each(|id| visit(*id))
        };
        visit_list(Anchor::Anything);
        for entry in row {
            visit_list(Anchor::Pair(entry.pair));
            if self.by_key > 0 {
                visit_list(Anchor::Key(labels.key_of(entry.pair)));
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }
}
