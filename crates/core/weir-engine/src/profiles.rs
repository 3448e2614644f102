use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;

use crate::{
    labels::{LabelTable, PairId},
    pods::PodIndex,
    postings::{PostingEntry, Postings},
    selectors::Anchors,
};

/// The pods of a namespace that have the same labels.
pub(crate) type ProfileId = u32;

/// The profiles of all pods that own addresses, indexed by label and by namespace.
///
/// Most pods have the labels of their template, so the engine indexes and compares the labels of
/// many pods together.
#[derive(Debug, Default)]
pub(crate) struct Profiles {
    /// The labels of each profile and, first, the pseudo label of its namespace.
    postings: Postings,
    members: Vec<SmallVec<[PodIndex; 4]>>,
    free: Vec<ProfileId>,
    by_labels: HashTable<ProfileId>,
    hasher: DefaultHashBuilder,
}

/// The place of a pod among the members of its profile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProfileSlot {
    pub(crate) profile: ProfileId,
    pub(crate) position: u32,
}

impl Profiles {
    /// Adds a pod to the profile with these labels. Returns its place, and whether the profile is
    /// new.
    pub(crate) fn join(&mut self, pod: PodIndex, pairs: &[PairId]) -> (ProfileSlot, bool) {
        let hash = self.hasher.hash_one(pairs);
        let has_labels = |id: &ProfileId| pairs_of(&self.postings, *id).eq(pairs.iter().copied());
        let known = self.by_labels.find(hash, has_labels).copied();
        let profile = known.unwrap_or_else(|| self.insert(hash, pairs));
        let members = &mut self.members[profile as usize];
        let position = u32::try_from(members.len()).expect("pods are numbered by u32");
        members.push(pod);
        (ProfileSlot { profile, position }, known.is_none())
    }

    fn insert(&mut self, hash: u64, pairs: &[PairId]) -> ProfileId {
        let profile = self.free.pop().unwrap_or_else(|| {
            self.members.push(SmallVec::new());
            u32::try_from(self.members.len() - 1).expect("fewer than 2^32 pods fit in memory")
        });
        self.postings.insert(profile, pairs);
        let (postings, hasher) = (&self.postings, &self.hasher);
        self.by_labels.insert_unique(hash, profile, |id| {
            let pairs: SmallVec<[PairId; 16]> = pairs_of(postings, *id).collect();
            hasher.hash_one(&pairs[..])
        });
        profile
    }

    /// Removes the pod at a place. Returns the pod that takes the place, and the labels of the
    /// profile if that is gone.
    pub(crate) fn leave(
        &mut self,
        slot: ProfileSlot,
    ) -> (Option<PodIndex>, SmallVec<[PairId; 16]>) {
        let ProfileSlot { profile, position } = slot;
        let members = &mut self.members[profile as usize];
        members.swap_remove(position as usize);
        if !members.is_empty() {
            return (members.get(position as usize).copied(), SmallVec::new());
        }
        *members = SmallVec::new();
        self.free.push(profile);
        let pairs: SmallVec<[PairId; 16]> = self.postings.remove(profile).collect();
        if let Ok(entry) =
            self.by_labels.find_entry(self.hasher.hash_one(&pairs[..]), |other| *other == profile)
        {
            entry.remove();
        }
        (None, pairs)
    }

    /// The labels of a profile; the first one is the pseudo label of its namespace.
    pub(crate) fn row(&self, profile: ProfileId) -> &[PostingEntry] {
        self.postings.row(profile)
    }

    /// The pods of a profile.
    pub(crate) fn members(&self, profile: ProfileId) -> &[PodIndex] {
        &self.members[profile as usize]
    }

    /// The profiles that have a label.
    pub(crate) fn having(&self, pair: PairId) -> &[ProfileId] {
        self.postings.members(pair)
    }

    /// Lists that together contain every profile that a selector with these anchors can match;
    /// `None` if any profile can match.
    pub(crate) fn lists<'a>(
        &'a self,
        anchors: &Anchors,
        labels: &LabelTable,
    ) -> Option<Vec<&'a [ProfileId]>> {
        self.postings.lists(anchors, labels)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_labels.is_empty()
    }
}

fn pairs_of(postings: &Postings, profile: ProfileId) -> impl Iterator<Item = PairId> {
    postings.row(profile).iter().map(|entry| entry.pair)
}
