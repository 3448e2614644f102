//! Kernel sets whose entries follow from the members of program sets.

use std::collections::BTreeMap;

use weir_model::{IpFamily, Member, Name, Program, Protocol, SetId};

use crate::{Entry, IpSetKind};

/// The source of a kernel set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DerivedSet {
    pub(crate) kind: IpSetKind,
    pub(crate) family: IpFamily,
    /// The program sets, each with the form of its entries.
    pub(crate) of: Vec<(SetId, EntryForm)>,
}

/// The form in which members become entries. Its `Debug` text is part of the names of sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EntryForm {
    /// Unchanged.
    Own,
    /// Each with all of these ports.
    At(Vec<(Protocol, u16)>),
}

impl DerivedSet {
    /// All entries.
    pub(crate) fn entries(&self, program: &Program) -> BTreeMap<Entry, Name> {
        let none = Name::from("");
        let all = self.of.iter().flat_map(|(set, form)| {
            let members = program.sets.get(set).into_iter().flatten();
            members.flat_map(|member| self.entries_in_form(member, form))
        });
        all.map(|entry| (entry, none.clone())).collect()
    }

    /// The entries that a member of one of the program sets contributes to.
    pub(crate) fn entries_of(&self, set: &SetId, member: &Member) -> Vec<Entry> {
        let forms = self.of.iter().filter(|(of, _)| of == set);
        forms.flat_map(|(_, form)| self.entries_in_form(member, form)).collect()
    }

    /// Whether an entry belongs to the set.
    pub(crate) fn holds(&self, program: &Program, entry: &Entry) -> bool {
        let contains = |set: &SetId, member: Member| {
            program.sets.get(set).is_some_and(|members| members.contains(&member))
        };
        self.of.iter().any(|(set, form)| match (entry, form) {
            (Entry::Address(address), EntryForm::Own) => contains(set, (*address).into()),
            (&Entry::Port(address, protocol, port), EntryForm::Own) => {
                contains(set, Member { address, port: Some((protocol, port)) })
            }
            (Entry::Port(address, protocol, port), EntryForm::At(ports)) => {
                ports.contains(&(*protocol, *port)) && contains(set, (*address).into())
            }
            _ => false,
        })
    }

    fn entries_in_form(&self, member: &Member, form: &EntryForm) -> Vec<Entry> {
        let address = member.address;
        // Kernel sets cannot hold the unspecified address, and no packet has it.
        if IpFamily::from(address) != self.family || address.is_unspecified() {
            return Vec::new();
        }
        match (form, member.port) {
            (EntryForm::Own, None) => vec![Entry::Address(address)],
            (EntryForm::Own, Some((protocol, port))) => vec![Entry::Port(address, protocol, port)],
            (EntryForm::At(ports), _) => {
                ports.iter().map(|&(protocol, port)| Entry::Port(address, protocol, port)).collect()
            }
        }
    }
}
