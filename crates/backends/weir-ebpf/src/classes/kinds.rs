//! Kinds of addresses and networks: which ones rules can tell apart.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use ipnet::IpNet;

use super::LiveKind;
use crate::{
    digest::{Digest, digest},
    layout::{Kind, MAX_KINDS},
    planner::{Address, EbpfPlanner},
    tables::Write,
    tier::{AtomId, Signature},
};

/// The purposes of the two kinds of an address that a domain name had before.
const FOR_NEW: &str = "new connections";
const FOR_ESTABLISHED: &str = "established connections";

impl EbpfPlanner {
    /// Writes the kinds of all addresses and networks that changed. Each has one write: between two
    /// writes, an address that moves would be in neither of two sets.
    pub(crate) fn flush_kinds(&mut self) {
        for net in mem::take(&mut self.dirty_networks) {
            self.refresh_network(net);
        }
        let mut addresses = mem::take(&mut self.addresses);
        for address in mem::take(&mut self.dirty) {
            self.refresh_address(&mut addresses, address);
        }
        self.addresses = addresses;
    }

    /// Writes the kind of an address after a change.
    fn refresh_address(&mut self, addresses: &mut BTreeMap<IpAddr, Address>, address: IpAddr) {
        let identity = addresses.get_mut(&address).and_then(|one| {
            self.compute_kind(address, one);
            (!one.is_unused()).then(|| self.identity(one))
        });
        if identity.is_none()
            && let Some(unused) = addresses.remove(&address)
        {
            self.release_kind(unused.kind);
        }
        let write = Write::Address(address, identity);
        if self.tables.apply(&write) {
            self.members.push(write);
        }
    }

    /// Writes the kind of a network after a change of blocks.
    pub(super) fn refresh_network(&mut self, net: IpNet) {
        let blocks = self.classes.prefixes.blocks_of(&net);
        let atoms = blocks.map(|blocks| blocks.iter().map(|atom| (*atom, Vec::new())));
        let signature = atoms.map(Iterator::collect::<Signature>);
        let kind = signature.map(|signature| self.use_kind(signature).number);
        let old = match kind {
            Some(kind) => self.classes.networks.insert(net, kind),
            None => self.classes.networks.remove(&net),
        };
        if let Some(old) = old {
            self.release_number(old);
        }
        let write = Write::Network(net, kind);
        if self.tables.apply(&write) {
            self.members.push(write);
        }
    }

    /// Forgets an address that is in no set and belongs to no pod. Its networks apply again.
    pub(crate) fn drop_unused(&mut self, address: IpAddr) {
        if self.addresses.get(&address).is_some_and(Address::is_unused)
            && let Some(one) = self.addresses.remove(&address)
        {
            self.release_kind(one.kind);
        }
    }

    /// Computes the kind of an address after a change of its sets or blocks.
    pub(crate) fn update_kind(&mut self, address: IpAddr) {
        let Some(mut one) = self.addresses.get_mut(&address).map(mem::take) else { return };
        self.compute_kind(address, &mut one);
        self.addresses.insert(address, one);
    }

    fn compute_kind(&mut self, address: IpAddr, one: &mut Address) {
        let mut signature = one.sets.clone();
        let blocks = self.classes.prefixes.blocks(address).into_iter().flatten();
        signature.extend(blocks.map(|atom| (*atom, Vec::new())));
        signature.sort_unstable();
        let is_new = |atom: &AtomId| signature.iter().all(|(known, _)| known != atom);
        let former: Vec<AtomId> = one.former.iter().copied().filter(is_new).collect();
        let kind = if former.is_empty() {
            self.use_kind(signature)
        } else {
            let mut established = signature.clone();
            established.extend(former.into_iter().map(|atom| (atom, Vec::new())));
            established.sort_unstable();
            self.use_kinds_of_former(signature, established)
        };
        let old = mem::replace(&mut one.kind, kind);
        self.release_kind(old);
    }

    /// Counts a use of the kind with a signature.
    fn use_kind(&mut self, signature: Signature) -> Kind {
        if signature.is_empty() {
            return Kind::default();
        }
        let key = (signature.clone(), Signature::new());
        let number = self.classes.kinds.get(&key).copied().unwrap_or_else(|| {
            let digest = self.classes.kind_digest(&signature);
            let number = self.new_kind(digest, 1);
            self.classes.add_kind(key, number);
            self.write_prepared(Write::Kind(number, digest));
            number
        });
        self.use_number(number, signature);
        Kind { number, has_former: false }
    }

    /// Counts a use of two kinds: one for new connections, and the next number for established ones.
    fn use_kinds_of_former(&mut self, signature: Signature, established: Signature) -> Kind {
        let key = (signature.clone(), established.clone());
        let number = self.classes.kinds.get(&key).copied().unwrap_or_else(|| {
            let digests = [FOR_NEW, FOR_ESTABLISHED].map(|purpose| {
                let parts = [&signature, &established].map(|one| self.classes.kind_digest(one));
                digest(&(purpose, parts))
            });
            let number = self.new_kind(digests[0], 2);
            self.classes.add_kind(key, number);
            for (number, digest) in (number..).zip(digests) {
                self.write_prepared(Write::Kind(number, digest));
            }
            number
        });
        self.use_number(number, signature);
        self.use_number(number + 1, established);
        Kind { number, has_former: true }
    }

    /// The number of the kind with a digest, and of the kinds after it.
    fn new_kind(&mut self, digest: Digest, count: u32) -> u32 {
        let number = self.seeds.kinds.get(&digest).copied().unwrap_or_else(|| {
            let number = self.classes.next_kind;
            self.classes.next_kind = number.saturating_add(count);
            number
        });
        // Foreign elements can have any number.
        if number > MAX_KINDS - count {
            self.is_full = true;
            return MAX_KINDS - count;
        }
        number
    }

    /// Counts a use of a number. A kind that comes into use has all its decisions.
    fn use_number(&mut self, number: u32, signature: Signature) {
        if let Some(live) = self.classes.live_kinds.get_mut(&number) {
            live.uses += 1;
            return;
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
    }

    fn release_kind(&mut self, kind: Kind) {
        self.release_number(kind.number);
        if kind.has_former {
            self.release_number(kind.number + 1);
        }
    }

    fn release_number(&mut self, number: u32) {
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
