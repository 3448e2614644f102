use smallvec::SmallVec;

use crate::{
    labels::{LabelTable, PairId},
    selectors::{Anchor, Anchors},
};

/// Who has which pair, both ways, with constant cost to enter and to leave.
///
/// A row remembers where its member stands in the list of each pair, so that leaving a list of a million does not search it.
#[derive(Debug, Default)]
pub(crate) struct Postings {
    rows: Vec<Row>,
    lists: Vec<Vec<u32>>,
}

type Row = SmallVec<[Entry; 4]>;

/// One pair of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) pair: PairId,
    position: u32,
}

impl Postings {
    /// Enters a member that is not there.
    pub(crate) fn insert(&mut self, member: u32, pairs: impl IntoIterator<Item = PairId>) {
        if self.rows.len() <= member as usize {
            self.rows.resize(member as usize + 1, Row::new());
        }
        for pair in pairs {
            if self.lists.len() <= pair as usize {
                self.lists.resize(pair as usize + 1, Vec::new());
            }
            let list = &mut self.lists[pair as usize];
            let position = u32::try_from(list.len()).expect("members are numbered by u32");
            list.push(member);
            self.rows[member as usize].push(Entry { pair, position });
        }
    }

    /// Takes a member out and tells which pairs it had.
    pub(crate) fn remove(&mut self, member: u32) -> impl Iterator<Item = PairId> {
        let row = self.rows.get_mut(member as usize).map(std::mem::take).unwrap_or_default();
        for entry in &row {
            let list = &mut self.lists[entry.pair as usize];
            list.swap_remove(entry.position as usize);
            if let Some(&moved) = list.get(entry.position as usize) {
                let its_row = &mut self.rows[moved as usize];
                if let Some(place) = its_row.iter_mut().find(|e| e.pair == entry.pair) {
                    place.position = entry.position;
                }
            }
            if list.is_empty() {
                *list = Vec::new();
            }
        }
        row.into_iter().map(|entry| entry.pair)
    }

    /// The pairs of a member.
    pub(crate) fn row(&self, member: u32) -> &[Entry] {
        self.rows.get(member as usize).map(|row| &row[..]).unwrap_or_default()
    }

    /// The lists in which everyone stands for whom a selector with these anchors holds; `None` if that may be anyone.
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
            postings.insert(member, [7, 9 + member % 2]);
        }
        for member in [0, 3, 4, 1, 2] {
            let had: Vec<PairId> = postings.remove(member).collect();
            assert_eq!(had, [7, 9 + member % 2]);
            assert!(!postings.members(7).contains(&member));
        }
        assert!(postings.members(7).is_empty());
    }
}
