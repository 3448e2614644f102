use std::net::IpAddr;

use hashbrown::HashMap;
use smallvec::SmallVec;

/// The claimants of each address. Usually there is one, and briefly several when an address is
/// reused.
#[derive(Debug, Default)]
pub(crate) struct Owners(HashMap<IpAddr, SmallVec<[u32; 2]>>);

impl Owners {
    pub(crate) fn insert(&mut self, address: IpAddr, owner: u32) {
        self.0.entry(address).or_default().push(owner);
    }

    pub(crate) fn remove(&mut self, address: IpAddr, owner: u32) {
        let Some(owners) = self.0.get_mut(&address) else { return };
        owners.retain(|other| *other != owner);
        if owners.is_empty() {
            self.0.remove(&address);
        }
    }

    pub(crate) fn claimants(&self, address: IpAddr) -> &[u32] {
        self.0.get(&address).map(|owners| &owners[..]).unwrap_or_default()
    }
}
