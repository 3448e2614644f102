//! Kinds of addresses and networks: which ones rules can tell apart.

use std::{collections::BTreeSet, mem, net::IpAddr};

use ipnet::IpNet;

use super::LiveKind;
use crate::{
    layout::MAX_KINDS,
    planner::{Address, EbpfPlanner},
    tables::Write,
    tier::Signature,
};

impl EbpfPlanner {
    /// Writes the kinds of all addresses and networks that changed. Each has one write: between two
    /// writes, an address that moves would be in neither of two sets.
    pub(crate) fn flush_kinds(&mut self) {
        for net in mem::take(&mut self.dirty_networks) {
            self.refresh_network(net);
        }
        for address in mem::take(&mut self.dirty) {
            self.refresh_address(address);
        }
    }

    /// Writes the kind of an address after a change.
    pub(super) fn refresh_address(&mut self, address: IpAddr) {
        self.update_kind(address);
        self.drop_unused(address);
        let write = self.address_write(address);
        if self.tables.apply(&write) {
            self.members.push(write);
        }
    }

    /// Writes the kind of a network after a change of blocks.
    pub(super) fn refresh_network(&mut self, net: IpNet) {
        let blocks = self.classes.prefixes.blocks_of(&net);
        let atoms = blocks.map(|blocks| blocks.iter().map(|atom| (*atom, Vec::new())));
        let signature = atoms.map(Iterator::collect::<Signature>);
        let kind = signature.map(|signature| self.use_kind(signature));
        let old = match kind {
            Some(kind) => self.classes.networks.insert(net, kind),
            None => self.classes.networks.remove(&net),
        };
        if let Some(old) = old {
            self.release_kind(old);
        }
        let write = Write::Network(net, kind);
        if self.tables.apply(&write) {
            self.members.push(write);
        }
    }

    /// Forgets an address that is in no set and belongs to no pod. Its networks apply again.
    pub(crate) fn drop_unused(&mut self, address: IpAddr) {
        let is_unused = |one: &Address| one.sets.is_empty() && one.pod.is_none();
        if self.addresses.get(&address).is_some_and(is_unused)
            && let Some(one) = self.addresses.remove(&address)
        {
            self.release_kind(one.kind);
        }
    }

    /// Computes the kind of an address after a change of its sets or blocks.
    pub(crate) fn update_kind(&mut self, address: IpAddr) {
        let Some(one) = self.addresses.get(&address) else { return };
        let mut signature = one.sets.clone();
        let blocks = self.classes.prefixes.blocks(address).into_iter().flatten();
        signature.extend(blocks.map(|atom| (*atom, Vec::new())));
        signature.sort_unstable();
        let old = one.kind;
        let kind = self.use_kind(signature);
        if let Some(one) = self.addresses.get_mut(&address) {
            one.kind = kind;
        }
        self.release_kind(old);
    }

    /// Counts a use of the kind with a signature. A kind that comes into use has all its decisions.
    pub(super) fn use_kind(&mut self, signature: Signature) -> u32 {
        if signature.is_empty() {
            return 0;
        }
        let number = match self.classes.kinds.get(&signature) {
            Some(number) => *number,
            None => {
                let digest = self.classes.kind_digest(&signature);
                let number = self.seeds.kinds.get(&digest).copied().unwrap_or_else(|| {
                    self.classes.next_kind += 1;
                    self.classes.next_kind - 1
                });
                self.is_full |= number > MAX_KINDS;
                self.classes.kinds.insert(signature.clone(), number);
                self.write_prepared(Write::Kind(number, digest));
                number
            }
        };
        if let Some(live) = self.classes.live_kinds.get_mut(&number) {
            live.uses += 1;
            return number;
        }
        let mut tiers = BTreeSet::new();
        for (atom, _) in &signature {
            let one = &mut self.classes.atoms[*atom as usize];
            one.kinds.insert(number);
            tiers.extend(one.tiers.iter().copied());
        }
        self.classes.live_kinds.insert(number, LiveKind { signature, uses: 1 });
        for tier in tiers {
            self.ensure_decision(tier, number);
        }
        number
    }

    pub(super) fn release_kind(&mut self, number: u32) {
        let Some(live) = self.classes.live_kinds.get_mut(&number) else { return };
        live.uses -= 1;
        if live.uses == 0
            && let Some(live) = self.classes.live_kinds.remove(&number)
        {
            for (atom, _) in live.signature {
                self.classes.atoms[atom as usize].kinds.remove(&number);
            }
        }
    }
}
