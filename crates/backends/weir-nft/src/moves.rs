use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use crate::{
    ElementKey,
    layout::{Level, Place, Slot},
};

/// The places of an address before and after a change.
pub(crate) struct Move {
    pub(crate) address: IpAddr,
    pub(crate) old: Arc<[Place]>,
    pub(crate) new: Arc<[Place]>,
}

impl Move {
    /// The elements that the address gets at a level.
    pub(crate) fn added<'a>(
        &'a self,
        slots: &'a [Slot],
        level: Level,
    ) -> impl Iterator<Item = (&'a Slot, ElementKey)> {
        let old: BTreeSet<&Place> = self.old.iter().collect();
        let added = self.new.iter().filter(move |place| !old.contains(place));
        self.elements(slots, added).filter(move |(slot, _)| slot.level == level)
    }

    /// The elements that the address loses.
    pub(crate) fn removed<'a>(
        &'a self,
        slots: &'a [Slot],
    ) -> impl Iterator<Item = (&'a Slot, ElementKey)> {
        let new: BTreeSet<&Place> = self.new.iter().collect();
        let removed = self.old.iter().filter(move |place| !new.contains(place));
        self.elements(slots, removed)
    }

    fn elements<'a>(
        &'a self,
        slots: &'a [Slot],
        places: impl Iterator<Item = &'a Place>,
    ) -> impl Iterator<Item = (&'a Slot, ElementKey)> {
        let element = |(slot, port): &'a Place| {
            let slot = slots.get(*slot)?;
            Some((slot, slot.element(self.address, *port)))
        };
        places.filter_map(element)
    }
}
