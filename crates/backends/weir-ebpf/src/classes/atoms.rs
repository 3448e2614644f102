//! Atoms: the sets and blocks that tiers name, and the addresses that fulfil them.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use ipnet::IpNet;
use weir_model::{Delta, Member, Program, Protocol, SetDelta, SetId};

use crate::{
    planner::EbpfPlanner,
    tier::{AtomId, AtomKey},
};

impl EbpfPlanner {
    /// Makes an atom part of kinds.
    pub(super) fn add_atom(&mut self, program: &Program, atom: AtomId) {
        self.new_atoms.insert(atom);
        match self.classes.atoms[atom as usize].key.clone() {
            AtomKey::Set(set) => {
                let members = program.sets.get(&set).into_iter().flatten();
                let members = members.map(|member| member.address);
                let addresses: BTreeSet<IpAddr> = members.chain(self.former.of_set(&set)).collect();
                for address in &addresses {
                    self.update_member(program, atom, &set, *address);
                }
                self.dirty.extend(addresses);
            }
            AtomKey::Block(block) => {
                let changed = self.classes.prefixes.add(atom, &block);
                self.mark_networks(changed, block.net);
            }
        }
    }

    /// Removes the atoms that lost their last tier from kinds.
    pub(crate) fn remove_unused_atoms(&mut self) {
        let mut sets = BTreeSet::new();
        for atom in mem::take(&mut self.unused_atoms) {
            let one = &self.classes.atoms[atom as usize];
            match &one.key {
                _ if !one.tiers.is_empty() => {}
                AtomKey::Set(_) => _ = sets.insert(atom),
                AtomKey::Block(block) => {
                    let block = block.clone();
                    let changed = self.classes.prefixes.remove(atom, &block);
                    self.mark_networks(changed, block.net);
                }
            }
        }
        // One pass for all sets: there can be as many as policies.
        for (address, members) in self.members_of(&sets) {
            if let Some(one) = self.addresses.get_mut(&address) {
                one.sets.retain(|(set, _)| !members.contains(set));
                one.former.retain(|set| !members.contains(set));
            }
            self.dirty.insert(address);
        }
    }

    /// The addresses that are or were in some of these sets, with these sets.
    fn members_of(&self, sets: &BTreeSet<AtomId>) -> Vec<(IpAddr, Vec<AtomId>)> {
        if sets.is_empty() {
            return Vec::new();
        }
        let members = self.addresses.iter().map(|(address, one)| {
            let all = one.sets.iter().map(|(set, _)| set).chain(&one.former);
            (*address, all.filter(|set| sets.contains(set)).copied().collect::<Vec<_>>())
        });
        members.filter(|(_, sets)| !sets.is_empty()).collect()
    }

    /// Applies changes of sets that are atoms. Those that are new were read when their tiers came.
    pub(crate) fn change_sets(&mut self, program: &Program, delta: &Delta) {
        let mut touched = BTreeSet::new();
        let new_atoms = mem::take(&mut self.new_atoms);
        let mut replaced = BTreeMap::new();
        for (set, change) in &delta.sets {
            let Some(atom) = self.classes.atoms_by_key.get(&AtomKey::Set(set.clone())).copied()
            else {
                continue;
            };
            if self.classes.atoms[atom as usize].tiers.is_empty() {
                continue;
            }
            let addresses: BTreeSet<IpAddr> = match change {
                // Its tiers go as well, and then its atom. Until then its members change.
                SetDelta::Gone { added, removed } => {
                    removed.iter().for_each(|member| self.remove_member(atom, member));
                    added.iter().for_each(|member| self.add_member(atom, member));
                    touched.extend(added.iter().chain(removed).map(|member| member.address));
                    continue;
                }
                _ if new_atoms.contains(&atom) => continue,
                SetDelta::Change { added, removed } => {
                    added.iter().chain(removed).map(|member| member.address).collect()
                }
                SetDelta::Put(members) => {
                    replaced.insert(atom, set);
                    members.iter().map(|member| member.address).collect()
                }
            };
            for address in &addresses {
                self.update_member(program, atom, set, *address);
            }
            touched.extend(addresses);
        }
        // The former members of sets that were replaced.
        for (address, sets) in self.members_of(&replaced.keys().copied().collect()) {
            for atom in sets {
                self.update_member(program, atom, replaced[&atom], address);
            }
            touched.insert(address);
        }
        self.dirty.extend(touched);
    }

    /// Adds a member to a set that the program no longer has.
    pub(super) fn add_member(&mut self, atom: AtomId, member: &Member) {
        let one = self.addresses.entry(member.address).or_default();
        let at = match one.sets.binary_search_by_key(&atom, |(set, _)| *set) {
            Ok(at) => at,
            Err(at) => {
                one.sets.insert(at, (atom, Vec::new()));
                at
            }
        };
        let ports = &mut one.sets[at].1;
        ports.extend(member.port);
        ports.sort_unstable();
        ports.dedup();
    }

    /// Removes a member from a set that the program no longer has.
    pub(super) fn remove_member(&mut self, atom: AtomId, member: &Member) {
        let Some(one) = self.addresses.get_mut(&member.address) else { return };
        let Ok(at) = one.sets.binary_search_by_key(&atom, |(set, _)| *set) else { return };
        one.sets[at].1.retain(|port| Some(*port) != member.port);
        if one.sets[at].1.is_empty() {
            one.sets.remove(at);
        }
    }

    /// Reads whether an address is in a set.
    pub(super) fn update_member(
        &mut self,
        program: &Program,
        atom: AtomId,
        set: &SetId,
        address: IpAddr,
    ) {
        let ports = ports_in(program, set, address);
        let is_former = self.former.contain(set, address);
        if ports.is_none() && !is_former && !self.addresses.contains_key(&address) {
            return;
        }
        let one = self.addresses.entry(address).or_default();
        if is_former && !one.former.contains(&atom) {
            one.former.push(atom);
        }
        match (one.sets.binary_search_by_key(&atom, |(set, _)| *set), ports) {
            (Ok(at), Some(ports)) => one.sets[at].1 = ports,
            (Err(at), Some(ports)) => one.sets.insert(at, (atom, ports)),
            (Ok(at), None) => _ = one.sets.remove(at),
            (Err(_), None) => (),
        }
    }

    /// Forgets which addresses names had before, except for those that were recorded since.
    pub(crate) fn forget_former(&mut self) {
        for (address, one) in self.addresses.iter_mut().filter(|(_, one)| !one.former.is_empty()) {
            one.former.clear();
            self.dirty.insert(*address);
        }
    }

    /// Marks networks, and the addresses within one, after a change of blocks.
    pub(super) fn mark_networks(&mut self, changed: BTreeSet<IpNet>, within: IpNet) {
        self.dirty_networks.extend(changed);
        let addresses = self.addresses.range(within.network()..=within.broadcast());
        self.dirty.extend(addresses.map(|(address, _)| *address));
    }
}

/// The ports of an address in a set; one list without ports if it is a plain member.
fn ports_in(program: &Program, set: &SetId, address: IpAddr) -> Option<Vec<(Protocol, u16)>> {
    let first = Member { address, port: None };
    let last = Member { address, port: Some((Protocol::Sctp, u16::MAX)) };
    let mut members = program.sets.get(set)?.range(first..=last).peekable();
    members.peek()?;
    Some(members.filter_map(|member| member.port).collect())
}
