//! Sets of the kernel whose entries follow from the members of sets of the program.

use std::collections::BTreeMap;

use weir_model::{IpFamily, Member, Name, Program, Protocol, SetId};

use crate::{Entry, Kind};

/// What a set of the kernel is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feed {
    pub(crate) kind: Kind,
    pub(crate) family: IpFamily,
    /// The sets, each with how its members enter.
    pub(crate) of: Vec<(SetId, Share)>,
}

/// How the members of a set enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// As they are.
    Own,
    /// Each with all of these ports.
    At(Vec<(Protocol, u16)>),
}

impl Feed {
    /// All entries.
    pub(crate) fn entries(&self, program: &Program) -> BTreeMap<Entry, Name> {
        let none = Name::from("");
        let all = self.of.iter().flat_map(|(set, share)| {
            let members = program.sets.get(set).into_iter().flatten();
            members.flat_map(|member| self.shared(member, share))
        });
        all.map(|entry| (entry, none.clone())).collect()
    }

    /// The entries that a member of one of the sets has a part in.
    pub(crate) fn entries_of(&self, set: &SetId, member: &Member) -> Vec<Entry> {
        let shares = self.of.iter().filter(|(of, _)| of == set);
        shares.flat_map(|(_, share)| self.shared(member, share)).collect()
    }

    /// Whether an entry belongs into it.
    pub(crate) fn holds(&self, program: &Program, entry: &Entry) -> bool {
        let contains = |set: &SetId, member: Member| {
            program.sets.get(set).is_some_and(|members| members.contains(&member))
        };
        self.of.iter().any(|(set, share)| match (entry, share) {
            (Entry::Address(address), Share::Own) => contains(set, (*address).into()),
            (&Entry::Port(address, protocol, port), Share::Own) => {
                contains(set, Member { address, port: Some((protocol, port)) })
            }
            (Entry::Port(address, protocol, port), Share::At(ports)) => {
                ports.contains(&(*protocol, *port)) && contains(set, (*address).into())
            }
            _ => false,
        })
    }

    fn shared(&self, member: &Member, share: &Share) -> Vec<Entry> {
        let address = member.address;
        // The kernel's sets cannot hold the address that is none, and no packet has it.
        if IpFamily::from(address) != self.family || address.is_unspecified() {
            return Vec::new();
        }
        match (share, member.port) {
            (Share::Own, None) => vec![Entry::Address(address)],
            (Share::Own, Some((protocol, port))) => vec![Entry::Port(address, protocol, port)],
            (Share::At(ports), _) => {
                ports.iter().map(|&(protocol, port)| Entry::Port(address, protocol, port)).collect()
            }
        }
    }
}
