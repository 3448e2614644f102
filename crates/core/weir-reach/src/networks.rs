//! Networks other than the cluster network, whose connections are not judged.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Attachments, Name, PodId};

/// Whether two ends can connect over networks other than the cluster network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OtherNetworks {
    /// They have only the cluster network in common.
    #[default]
    None,
    /// They also have another network in common, or one end is outside and can be on it.
    Also,
    /// An end is not on the cluster network.
    Only,
}

/// The networks of a row's ends.
pub(crate) struct LineNetworks<'a> {
    missing: Missing,
    secondary: BTreeSet<&'a Name>,
    /// Whether the ends are outside the cluster, on any network.
    is_outside: bool,
}

/// Which ends of a row are without the cluster network.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    NoEnd,
    SomeEnds,
    AllEnds,
}

impl<'a> LineNetworks<'a> {
    /// The networks of these pods.
    pub(crate) fn new<'p>(
        attachments: &'a BTreeMap<PodId, Attachments>,
        pods: impl IntoIterator<Item = &'p PodId>,
    ) -> Self {
        let (mut all, mut missing, mut secondary) = (0_usize, 0_usize, BTreeSet::new());
        for id in pods {
            all += 1;
            let Some(attached) = attachments.get(id) else { continue };
            missing += usize::from(attached.primary.is_some());
            secondary.extend(&attached.secondary);
        }
        let missing = match missing {
            0 => Missing::NoEnd,
            _ if missing == all => Missing::AllEnds,
            _ => Missing::SomeEnds,
        };
        LineNetworks { missing, secondary, is_outside: false }
    }

    /// The networks of everything outside the cluster.
    pub(crate) fn outside() -> Self {
        LineNetworks { missing: Missing::NoEnd, secondary: BTreeSet::new(), is_outside: true }
    }

    /// The networks between two rows.
    pub(crate) fn between(&self, other: &Self) -> OtherNetworks {
        if [self.missing, other.missing].contains(&Missing::AllEnds) {
            return OtherNetworks::Only;
        }
        let reaches_outside = (self.is_outside && !other.secondary.is_empty())
            || (other.is_outside && !self.secondary.is_empty());
        let is_mixed = [self.missing, other.missing].contains(&Missing::SomeEnds);
        if reaches_outside || is_mixed || !self.secondary.is_disjoint(&other.secondary) {
            return OtherNetworks::Also;
        }
        OtherNetworks::None
    }
}
