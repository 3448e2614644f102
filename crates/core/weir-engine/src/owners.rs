use std::{collections::BTreeSet, hash::BuildHasher, net::IpAddr};

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;

/// The claimants of each address. Usually there is one, and briefly several when an address is
/// reused.
///
/// The index stores no addresses: `has` answers whether an object has the address in question.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    claims: HashTable<AddressClaim>,
    hasher: DefaultHashBuilder,
    /// The addresses with several claimants.
    shared: BTreeSet<IpAddr>,
    /// The addresses whose claimants changed while there were several of them.
    changed: BTreeSet<IpAddr>,
}

/// An object that claims an address with this hash.
#[derive(Debug)]
struct AddressClaim {
    hash: u32,
    owner: u32,
}

impl AddressClaim {
    /// The hash for the table, which uses its lowest and its highest bits.
    fn table_hash(&self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.hash)
    }
}

/// The claimants of one address.
pub(crate) type Claimants = SmallVec<[u32; 2]>;

impl Owners {
    /// Adds a claim. `has` is true for the other claimants.
    pub(crate) fn insert(&mut self, address: IpAddr, owner: u32, has: impl Fn(u32) -> bool) {
        let is_shared = !self.claimants(address, |other| other != owner && has(other)).is_empty();
        let claim = self.claim(address, owner);
        self.claims.insert_unique(claim.table_hash(), claim, AddressClaim::table_hash);
        if is_shared {
            self.shared.insert(address);
            self.changed.insert(address);
        }
    }

    /// Removes a claim. `has` is true for the other claimants.
    pub(crate) fn remove(&mut self, address: IpAddr, owner: u32, has: impl Fn(u32) -> bool) {
        let claim = self.claim(address, owner);
        let is_it = |other: &AddressClaim| other.hash == claim.hash && other.owner == owner;
        if let Ok(entry) = self.claims.find_entry(claim.table_hash(), is_it) {
            entry.remove();
        }
        if self.shared.contains(&address) {
            self.changed.insert(address);
            if self.claimants(address, |other| other != owner && has(other)).len() < 2 {
                self.shared.remove(&address);
            }
        }
    }

    /// The objects that claim an address.
    pub(crate) fn claimants(&self, address: IpAddr, has: impl Fn(u32) -> bool) -> Claimants {
        let wanted = self.claim(address, 0);
        let claims = self.claims.iter_hash(wanted.table_hash());
        let claims = claims.filter(|claim| claim.hash == wanted.hash && has(claim.owner));
        let mut found: Claimants = claims.map(|claim| claim.owner).collect();
        // Two addresses of an object can have the same hash.
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    /// The addresses with several claimants.
    pub(crate) fn shared(&self) -> impl Iterator<Item = IpAddr> {
        self.shared.iter().copied()
    }

    /// Drains the addresses whose claimants changed while there were several of them.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.changed)
    }

    fn claim(&self, address: IpAddr, owner: u32) -> AddressClaim {
        AddressClaim { hash: self.hasher.hash_one(address) as u32, owner }
    }
}
