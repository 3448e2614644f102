use std::net::IpAddr;

use hashbrown::HashMap;
use weir_model::{DomainPattern, Name};

use crate::{owners::Owners, slab::Slab};

/// Domain names and their addresses.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    table: Slab<(Name, Vec<IpAddr>)>,
    ids: HashMap<Name, u32>,
    owners: Owners,
}

impl Domains {
    /// Sets the addresses of a name. An empty list removes the name.
    pub(crate) fn put(&mut self, name: &Name, addresses: &[IpAddr]) {
        if let Some(id) = self.ids.remove(name) {
            let (_, old) = self.table.remove(id);
            for &address in &old {
                self.owners.remove(address, id, |other| has(&self.table, other, address));
            }
        }
        if !addresses.is_empty() {
            let mut addresses = addresses.to_vec();
            addresses.sort_unstable();
            addresses.dedup();
            let id = self.table.insert((name.clone(), addresses.clone()));
            self.ids.insert(name.clone(), id);
            for &address in &addresses {
                self.owners.insert(address, id, |other| has(&self.table, other, address));
            }
        }
        // Several names of an address are nothing to report.
        self.owners.take_changed();
    }

    pub(crate) fn addresses(&self, name: &str) -> &[IpAddr] {
        self.ids.get(name).map(|id| &self.table[*id].1[..]).unwrap_or_default()
    }

    /// Whether a name that matches has the address.
    pub(crate) fn any_has(&self, pattern: &DomainPattern, address: IpAddr) -> bool {
        let claimants = self.owners.claimants(address, |id| has(&self.table, id, address));
        claimants.iter().any(|id| fits(pattern, &self.table[*id].0))
    }

    /// The addresses of the names that match.
    pub(crate) fn matching<'a>(
        &'a self,
        pattern: &'a DomainPattern,
    ) -> impl Iterator<Item = IpAddr> + 'a {
        self.table
            .iter()
            .filter(|(_, (name, _))| fits(pattern, name))
            .flat_map(|(_, (_, addresses))| addresses.iter().copied())
    }
}

/// Whether a name has an address.
fn has(table: &Slab<(Name, Vec<IpAddr>)>, id: u32, address: IpAddr) -> bool {
    table[id].1.contains(&address)
}

/// Whether a pattern matches a name.
pub(crate) fn fits(pattern: &DomainPattern, name: &str) -> bool {
    match pattern {
        DomainPattern::Exact(exact) => *name == **exact,
        DomainPattern::Under(parent) => name
            .strip_suffix(&**parent)
            .is_some_and(|front| front.len() > 1 && front.ends_with('.')),
    }
}
