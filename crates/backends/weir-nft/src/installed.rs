//! What is in the kernel, read back.

use std::collections::BTreeMap;

use weir_model::Name;
use weir_netlink::{Attribute, Attributes, Malformed};

use crate::{
    Family, Kind,
    expr::{Expr, Verdict},
    place,
    wire::{Declared, Element, KeyBytes, TABLE},
};

/// Our table as it is in the kernel.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    /// Whether there is a table.
    pub(crate) table: bool,
    /// Whether it is asleep, or holds something that ours never do: an object, a flowtable.
    pub(crate) strange: bool,
    /// The generation of the kernel's rules when it was read.
    pub(crate) generation: u32,
    pub(crate) sets: BTreeMap<Name, InstalledSet>,
    pub(crate) chains: BTreeMap<Name, InstalledChain>,
}

#[derive(Clone, Debug)]
pub(crate) struct InstalledSet {
    pub(crate) declared: Declared,
    pub(crate) note: Vec<u8>,
    /// The keys of elements that are nothing but a key, back to back: most are, and there may be hundreds of thousands.
    keys: Vec<u8>,
    /// The other elements.
    pub(crate) elements: Vec<Element>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct InstalledChain {
    /// The hook, the priority there and the policy.
    pub(crate) hook: Option<(u32, i32, u32)>,
    /// The expressions of each rule, and what is noted there.
    pub(crate) rules: Vec<(Vec<Expr>, Vec<u8>)>,
}

impl Installed {
    /// The elements that block the replies of terminated connections, each with its set.
    pub(crate) fn blocked_replies(&self) -> Vec<(Name, KeyBytes)> {
        let names = Family::BOTH.into_iter().flat_map(|family| {
            [
                (place::cut(family), Kind::Cut(family)),
                (place::cut_senders(family), Kind::CutSenders(family)),
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

    /// Reads a message about any table.
    pub(crate) fn table(&mut self, message: Attributes<'_>) -> Result<(), Malformed> {
        let (mut ours, mut flags) = (false, 0);
        for attribute in message {
            let attribute = attribute?;
            match attribute.kind {
                1 => ours = attribute.value.strip_suffix(&[0]) == Some(TABLE.as_bytes()),
                2 => flags = attribute.be_u32()?,
                _ => (),
            }
        }
        self.table |= ours;
        self.strange |= ours && flags != 0;
        Ok(())
    }

    /// Reads a message about a chain.
    pub(crate) fn chain(&mut self, message: Attributes<'_>) -> Result<(), Malformed> {
        let (mut name, mut hook, mut policy) = (None, None, 0);
        for attribute in message {
            let attribute = attribute?;
            match attribute.kind {
                3 => name = Some(Name::from(attribute.text()?)),
                4 => hook = Some(read_hook(&attribute)?),
                5 => policy = attribute.be_u32()?,
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
    pub(crate) fn rule(&mut self, message: Attributes<'_>) -> Result<(), Malformed> {
        let (mut chain, mut exprs, mut note) = (None, Vec::new(), Vec::new());
        for attribute in message {
            let attribute = attribute?;
            match attribute.kind {
                2 => chain = Some(Name::from(attribute.text()?)),
                4 => {
                    for element in attribute.attributes() {
                        exprs.push(Expr::read(&element?)?);
                    }
                }
                // A match or target of iptables: ours have none.
                5 => exprs.push(Expr::Foreign("compat".into())),
                7 => note = attribute.value.into(),
                _ => (),
            }
        }
        if let Some(chain) = chain {
            self.chains.entry(chain).or_default().rules.push((exprs, note));
        }
        Ok(())
    }

    /// Reads a message about a set.
    pub(crate) fn set(&mut self, message: Attributes<'_>) -> Result<(), Malformed> {
        let mut name = None;
        let mut declared = Declared { flags: 0, key_type: 0, key_length: 0, data_type: 0 };
        let mut note = Vec::new();
        for attribute in message {
            let attribute = attribute?;
            match attribute.kind {
                2 => name = Some(Name::from(attribute.text()?)),
                3 => declared.flags = attribute.be_u32()?,
                4 => declared.key_type = attribute.be_u32()?,
                5 => declared.key_length = attribute.be_u32()?,
                6 => declared.data_type = attribute.be_u32()?,
                13 => note = attribute.value.into(),
                // A time that all elements have, or an expression: ours have none.
                11 | 17 | 18 => self.strange = true,
                _ => (),
            }
        }
        if let Some(name) = name {
            self.sets.insert(name, InstalledSet::new(declared, note));
        }
        Ok(())
    }
}

fn read_hook(hook: &Attribute<'_>) -> Result<(u32, i32), Malformed> {
    let (mut number, mut priority) = (0, 0);
    for attribute in hook.attributes() {
        let attribute = attribute?;
        match attribute.kind {
            1 => number = attribute.be_u32()?,
            2 => priority = i32::from_be_bytes(attribute.array()?),
            _ => (),
        }
    }
    Ok((number, priority))
}

impl InstalledSet {
    fn new(declared: Declared, note: Vec<u8>) -> Self {
        InstalledSet { declared, note, keys: Vec::new(), elements: Vec::new() }
    }

    /// Reads a message with elements.
    pub(crate) fn read(&mut self, message: Attributes<'_>) -> Result<(), Malformed> {
        for attribute in message {
            let attribute = attribute?;
            if attribute.kind == 3 {
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

    /// The keys of the elements that are nothing but a key.
    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        // Without a length there are no keys.
        self.keys.chunks_exact(self.key_length().max(1))
    }

    fn key_length(&self) -> usize {
        usize::try_from(self.declared.key_length).unwrap_or(usize::MAX)
    }
}

/// The key of an element that is nothing but a key.
fn bare_key<'m>(element: &Attribute<'m>) -> Result<Option<&'m [u8]>, Malformed> {
    let mut attributes = element.attributes();
    let Some(key) = attributes.next().transpose()?.filter(|first| first.kind == 1) else {
        return Ok(None);
    };
    if attributes.next().is_some() {
        return Ok(None);
    }
    let value = key.attributes().next().transpose()?.filter(|value| value.kind == 1);
    Ok(value.map(|value| value.value))
}

fn read_element(element: &Attribute<'_>) -> Result<Element, Malformed> {
    let mut read = Element::default();
    for attribute in element.attributes() {
        let attribute = attribute?;
        match attribute.kind {
            1 => read.key = read_key(&attribute)?,
            2 => read.verdict = Verdict::read(attribute.attributes())?,
            3 => read.flags = attribute.be_u32()?,
            4 => read.expires = true,
            6 => read.note = attribute.value.into(),
            // A counter, a limit or an object at an element: ours have none.
            7 | 9 | 11 => read.is_odd = true,
            10 => read.end = Some(read_key(&attribute)?.into()),
            _ => (),
        }
    }
    Ok(read)
}

fn read_key(key: &Attribute<'_>) -> Result<KeyBytes, Malformed> {
    for value in key.attributes() {
        let value = value?;
        if value.kind == 1 {
            return KeyBytes::read(value.value).ok_or(Malformed::Value(key.kind));
        }
    }
    Err(Malformed::Value(key.kind))
}
