use std::{collections::BTreeSet, net::IpAddr};

use hashbrown::HashMap;
use smallvec::SmallVec;

/// The claimants of each address. Usually there is one, and briefly several when an address is
/// reused.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    claimants: HashMap<IpAddr, SmallVec<[u32; 2]>>,
    /// The addresses with several claimants.
    shared: BTreeSet<IpAddr>,
    /// The addresses whose claimants changed while there were several of them.
    changed: BTreeSet<IpAddr>,
}

impl Owners {
    pub(crate) fn insert(&mut self, address: IpAddr, owner: u32) {
        let claimants = self.claimants.entry(address).or_default();
        claimants.push(owner);
        if claimants.len() > 1 {
            self.shared.insert(address);
            self.changed.insert(address);
        }
    }

    pub(crate) fn remove(&mut self, address: IpAddr, owner: u32) {
        let Some(claimants) = self.claimants.get_mut(&address) else { return };
        claimants.retain(|other| *other != owner);
        if claimants.len() < 2 && self.shared.remove(&address) || claimants.len() > 1 {
            self.changed.insert(address);
        }
        if claimants.is_empty() {
            self.claimants.remove(&address);
        }
    }

    pub(crate) fn claimants(&self, address: IpAddr) -> &[u32] {
        self.claimants.get(&address).map(|all| &all[..]).unwrap_or_default()
    }

    /// The addresses with several claimants.
    pub(crate) fn shared(&self) -> impl Iterator<Item = IpAddr> {
        self.shared.iter().copied()
    }

    /// Drains the addresses whose claimants changed while there were several of them.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.changed)
    }
}
