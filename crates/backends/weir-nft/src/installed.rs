//! Our table, read back from the kernel.

use std::collections::BTreeMap;

use weir_model::{IpFamily, Name};
use weir_netlink::{Attribute, Attributes, Malformed};

use crate::{
    SetKind, TableId,
    declaration::SetDeclaration,
    expr::{Expr, WireVerdict},
    names,
    uapi::*,
    wire::{KeyBytes, WireElement},
};

/// The installed table.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    /// Whether the table exists.
    pub(crate) has_table: bool,
    /// Whether the table is dormant or contains something that weir never writes, such as an object
    /// or a flowtable.
    pub(crate) is_foreign: bool,
    /// The generation of the kernel's rules at the time of reading.
    pub(crate) generation: u32,
    pub(crate) sets: BTreeMap<Name, InstalledSet>,
    pub(crate) chains: BTreeMap<Name, InstalledChain>,
}

#[derive(Clone, Debug)]
pub(crate) struct InstalledSet {
    pub(crate) declared: SetDeclaration,
    pub(crate) userdata: Vec<u8>,
    /// The keys of elements that consist of a key alone, back to back. Most elements do, and there
    /// can be hundreds of thousands.
    keys: Vec<u8>,
    /// The other elements.
    pub(crate) elements: Vec<WireElement>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct InstalledChain {
    /// The hook, its priority and the policy.
    pub(crate) hook: Option<(u32, i32, u32)>,
    /// The expressions and the userdata of each rule.
    pub(crate) rules: Vec<(Vec<Expr>, Vec<u8>)>,
}

impl Installed {
    /// The elements that block the replies of terminated connections, each with its set.
    pub(crate) fn blocked_replies(&self) -> Vec<(Name, KeyBytes)> {
        let names = IpFamily::BOTH.into_iter().flat_map(|family| {
            [
                (names::cut(family), SetKind::Cut(family)),
                (names::cut_pairs_set(family), SetKind::CutPairs(family)),
                (names::cut_senders_set(family), SetKind::CutSenders(family)),
            ]
        });
        let mut replies = Vec::new();
        for (name, kind) in names {
            let set = self.sets.get(&name).filter(|set| set.declared == kind.declared());
            let elements = set.into_iter().flat_map(|set| &set.elements);
            let expiring = elements.filter(|element| element.expires);
            replies.extend(expiring.map(|element| (name.clone(), element.key)));
        }
        replies
    }

    /// Reads a message about any table of the family of this one.
    pub(crate) fn read_table(
        &mut self,
        table: TableId,
        message: Attributes<'_>,
    ) -> Result<(), Malformed> {
        let (mut ours, mut flags) = (false, 0);
        for attribute in message {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_TABLE_NAME => {
                    ours = attribute.value.strip_suffix(&[0]) == Some(table.name().as_bytes());
                }
                NFTA_TABLE_FLAGS => flags = attribute.be_u32()?,
                _ => (),
            }
        }
        self.has_table |= ours;
        self.is_foreign |= ours && flags != 0;
        Ok(())
    }

    /// Reads a message about a chain.
    pub(crate) fn read_chain(&mut self, message: Attributes<'_>) -> Result<(), Malformed> {
        let (mut name, mut hook, mut policy) = (None, None, 0);
        for attribute in message {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_CHAIN_NAME => name = Some(Name::from(attribute.text()?)),
                NFTA_CHAIN_HOOK => hook = Some(read_hook(&attribute)?),
                NFTA_CHAIN_POLICY => policy = attribute.be_u32()?,
                _ => (),
            }
        }
        if let Some(name) = name {
            let hook = hook.map(|(number, priority)| (number, priority, policy));
            self.chains.entry(name).or_default().hook = hook;
        }
        Ok(())
    }

    /// Reads a message about a rule.
    pub(crate) fn read_rule(&mut self, message: Attributes<'_>) -> Result<(), Malformed> {
        let (mut chain, mut exprs, mut userdata) = (None, Vec::new(), Vec::new());
        for attribute in message {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_RULE_CHAIN => chain = Some(Name::from(attribute.text()?)),
                NFTA_RULE_EXPRESSIONS => {
                    for element in attribute.attributes() {
                        exprs.push(Expr::parse(&element?)?);
                    }
                }
                // A match or target of iptables, which weir never writes.
                NFTA_RULE_COMPAT => exprs.push(Expr::Foreign("compat".into())),
                NFTA_RULE_USERDATA => userdata = attribute.value.into(),
                _ => (),
            }
        }
        if let Some(chain) = chain {
            self.chains.entry(chain).or_default().rules.push((exprs, userdata));
        }
        Ok(())
    }

    /// Reads a message about a set.
    pub(crate) fn read_set(&mut self, message: Attributes<'_>) -> Result<(), Malformed> {
        let mut name = None;
        let mut declared = SetDeclaration::default();
        let mut userdata = Vec::new();
        for attribute in message {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_SET_NAME => name = Some(Name::from(attribute.text()?)),
                NFTA_SET_FLAGS => declared.flags = attribute.be_u32()?,
                NFTA_SET_KEY_TYPE => declared.key_type = attribute.be_u32()?,
                NFTA_SET_KEY_LEN => declared.key_length = attribute.be_u32()?,
                NFTA_SET_DATA_TYPE => declared.data_type = attribute.be_u32()?,
                NFTA_SET_USERDATA => userdata = attribute.value.into(),
                NFTA_SET_TIMEOUT => declared.timeout = attribute.be_u64()?,
                NFTA_SET_DESC => declared.size = read_size(&attribute)?,
                // An expression, which weir never writes.
                NFTA_SET_EXPR | NFTA_SET_EXPRESSIONS => self.is_foreign = true,
                _ => (),
            }
        }
        if let Some(name) = name {
            self.sets.insert(name, InstalledSet::new(declared, userdata));
        }
        Ok(())
    }
}

fn read_hook(hook: &Attribute<'_>) -> Result<(u32, i32), Malformed> {
    let (mut number, mut priority) = (0, 0);
    for attribute in hook.attributes() {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_HOOK_HOOKNUM => number = attribute.be_u32()?,
            NFTA_HOOK_PRIORITY => priority = i32::from_be_bytes(attribute.array()?),
            _ => (),
        }
    }
    Ok((number, priority))
}

fn read_size(description: &Attribute<'_>) -> Result<u32, Malformed> {
    for attribute in description.attributes() {
        let attribute = attribute?;
        if attribute.kind == NFTA_SET_DESC_SIZE {
            return attribute.be_u32();
        }
    }
    Ok(0)
}

impl InstalledSet {
    fn new(declared: SetDeclaration, userdata: Vec<u8>) -> Self {
        InstalledSet { declared, userdata, keys: Vec::new(), elements: Vec::new() }
    }

    /// Reads a message with elements.
    pub(crate) fn read_elements(&mut self, message: Attributes<'_>) -> Result<(), Malformed> {
        for attribute in message {
            let attribute = attribute?;
            if attribute.kind == NFTA_SET_ELEM_LIST_ELEMENTS {
                for element in attribute.attributes() {
                    let element = element?;
                    match bare_key(&element)?.filter(|key| key.len() == self.key_length()) {
                        Some(key) => self.keys.extend(key),
                        None => self.elements.push(read_element(&element)?),
                    }
                }
            }
        }
        Ok(())
    }

    /// The keys of the elements that consist of a key alone.
    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        // A chunk size of 0 would panic. Without a key length there are no keys.
        self.keys.chunks_exact(self.key_length().max(1))
    }

    fn key_length(&self) -> usize {
        usize::try_from(self.declared.key_length).unwrap_or(usize::MAX)
    }
}

/// The key of an element, if the element consists of the key alone.
fn bare_key<'m>(element: &Attribute<'m>) -> Result<Option<&'m [u8]>, Malformed> {
    let mut attributes = element.attributes();
    let Some(key) = attributes.next().transpose()?.filter(|first| first.kind == NFTA_SET_ELEM_KEY)
    else {
        return Ok(None);
    };
    if attributes.next().is_some() {
        return Ok(None);
    }
    let value = key.attributes().next().transpose()?.filter(|value| value.kind == NFTA_DATA_VALUE);
    Ok(value.map(|value| value.value))
}

fn read_element(element: &Attribute<'_>) -> Result<WireElement, Malformed> {
    let mut read = WireElement::default();
    for attribute in element.attributes() {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_SET_ELEM_KEY => read.key = read_key(&attribute)?,
            NFTA_SET_ELEM_DATA => read.verdict = WireVerdict::parse(attribute.attributes())?,
            NFTA_SET_ELEM_FLAGS => read.flags = attribute.be_u32()?,
            NFTA_SET_ELEM_TIMEOUT => read.expires = true,
            NFTA_SET_ELEM_USERDATA => read.userdata = attribute.value.into(),
            // A counter, a limit or an object, which weir never attaches to an element.
            NFTA_SET_ELEM_EXPR | NFTA_SET_ELEM_OBJREF | NFTA_SET_ELEM_EXPRESSIONS => {
                read.is_foreign = true;
            }
            NFTA_SET_ELEM_KEY_END => read.end = Some(read_key(&attribute)?.into()),
            _ => (),
        }
    }
    Ok(read)
}

fn read_key(key: &Attribute<'_>) -> Result<KeyBytes, Malformed> {
    for value in key.attributes() {
        let value = value?;
        if value.kind == NFTA_DATA_VALUE {
            return KeyBytes::parse(value.value).ok_or(Malformed::Value(key.kind));
        }
    }
    Err(Malformed::Value(key.kind))
}
