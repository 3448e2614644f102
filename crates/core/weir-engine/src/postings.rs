use smallvec::SmallVec;

use crate::{
    labels::{LabelTable, PairId},
    selectors::{Anchor, Anchors},
};

/// An index of label pairs and the objects that have them, in both directions. Adding and removing
/// an object takes constant time per pair.
///
/// Each row stores the position of its member in the list of each pair, so that removal from a list
/// of a million members needs no search.
#[derive(Debug, Default)]
pub(crate) struct Postings {
    rows: Vec<Row>,
    lists: Vec<SmallVec<[u32; 4]>>,
}

type Row = Box<[PostingEntry]>;

/// One pair of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostingEntry {
    pub(crate) pair: PairId,
    position: u32,
}

impl Postings {
    /// Adds a member that does not exist yet.
    pub(crate) fn insert(&mut self, member: u32, pairs: &[PairId]) {
        if self.rows.len() <= member as usize {
            self.rows.resize(member as usize + 1, Row::default());
        }
        let lists = &mut self.lists;
        let entries = pairs.iter().map(|&pair| {
            if lists.len() <= pair as usize {
                lists.resize(pair as usize + 1, SmallVec::new());
            }
            let list = &mut lists[pair as usize];
            let position = u32::try_from(list.len()).expect("members are numbered by u32");
            list.push(member);
            PostingEntry { pair, position }
        });
        self.rows[member as usize] = entries.collect();
    }

    /// Removes a member and returns its pairs.
    pub(crate) fn remove(&mut self, member: u32) -> impl Iterator<Item = PairId> {
        let row = self.rows.get_mut(member as usize).map(std::mem::take).unwrap_or_default();
        for entry in &row {
            let list = &mut self.lists[entry.pair as usize];
            list.swap_remove(entry.position as usize);
            if let Some(&moved) = list.get(entry.position as usize) {
                let its_row = &mut self.rows[moved as usize];
                if let Some(its_entry) = its_row.iter_mut().find(|e| e.pair == entry.pair) {
                    its_entry.position = entry.position;
                }
            }
            if list.is_empty() {
                *list = SmallVec::new();
            }
        }
        row.into_iter().map(|entry| entry.pair)
    }

    /// The pairs of a member.
    pub(crate) fn row(&self, member: u32) -> &[PostingEntry] {
        self.rows.get(member as usize).map(|row| &row[..]).unwrap_or_default()
    }

    /// Lists that together contain every member that a selector with these anchors can match;
    /// `None` if any member can match.
    pub(crate) fn lists<'a>(
        &'a self,
        anchors: &Anchors,
        labels: &LabelTable,
    ) -> Option<Vec<&'a [u32]>> {
        let mut lists = Vec::new();
        for anchor in anchors {
            match *anchor {
                Anchor::Pair(pair) => lists.push(self.members(pair)),
                Anchor::Key(key) => {
                    lists.extend(labels.pairs_of(key).map(|pair| self.members(pair)))
                }
                Anchor::Anything => return None,
            }
        }
        Some(lists)
    }

    /// The members that have a pair, in no particular order.
    pub(crate) fn members(&self, pair: PairId) -> &[u32] {
        self.lists.get(pair as usize).map(|list| &list[..]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_a_list_keeps_the_others_findable() {
        let mut postings = Postings::default();
        for member in 0..5 {
            postings.insert(member, &[7, 9 + member % 2]);
        }
        for member in [0, 3, 4, 1, 2] {
            let had: Vec<PairId> = postings.remove(member).collect();
            assert_eq!(had, [7, 9 + member % 2]);
            assert!(!postings.members(7).contains(&member));
        }
        assert!(postings.members(7).is_empty());
    }
}
