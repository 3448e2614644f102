//! Encodes a transaction as one batch of netlink messages.

use std::sync::Arc;

use hashbrown::HashMap;
use weir_model::Name;
use weir_netlink::{Body, Header, MessageWriter, TooLong, kind};

use crate::{
    ElementData, ElementKey, Hook, NftRule, SetKind, Step, TableId, expr,
    uapi::*,
    wire::{self, KeyBytes, WireElement},
};

/// The upper bound of the encoded size of an element.
const MAX_ELEMENT_BYTES: usize = 512;

/// Messages that the kernel applies in one transaction.
pub(crate) struct Batch {
    table: TableId,
    writer: MessageWriter,
    /// The index of the step that each message belongs to, by sequence number.
    owners: Vec<usize>,
    /// The numbers of the sets that the batch creates.
    new_sets: HashMap<Name, u32>,
}

impl Batch {
    /// Encodes steps. With a generation, the kernel rejects the batch unless its rules still have
    /// that generation.
    pub(crate) fn from_steps(
        table: TableId,
        steps: &[Step],
        generation: Option<u32>,
    ) -> Result<Batch, TooLong> {
        let mut batch = Batch::begin(table, generation)?;
        for (index, step) in steps.iter().enumerate() {
            batch.step(index, step)?;
        }
        batch.end()
    }

    /// Encodes the addition of keys of the table of policies that expire after a timeout.
    pub(crate) fn with_timeout(
        set: &str,
        keys: &[KeyBytes],
        milliseconds: u64,
    ) -> Result<Batch, TooLong> {
        let mut batch = Batch::begin(TableId::Policies, None)?;
        let mut keys = keys.iter().copied().peekable();
        batch.elements(0, NFT_MSG_NEWSETELEM, set, |list| {
            let key = keys.next()?;
            list.nest(NFTA_LIST_ELEM, |element| {
                element.nest(NFTA_SET_ELEM_KEY, |body| {
                    body.bytes(NFTA_DATA_VALUE, key.as_slice());
                });
                element.be_u64(NFTA_SET_ELEM_TIMEOUT, milliseconds);
            });
            Some(())
        })?;
        batch.end()
    }

    fn begin(table: TableId, generation: Option<u32>) -> Result<Batch, TooLong> {
        let writer = MessageWriter::default();
        let mut batch = Batch { table, writer, owners: Vec::new(), new_sets: HashMap::new() };
        batch.message(0, NFNL_MSG_BATCH_BEGIN, 0, |body| {
            body.fixed(&wire::BATCH_HEADER);
            if let Some(generation) = generation {
                body.be_u32(NFNL_BATCH_GENID, generation);
            }
        })?;
        Ok(batch)
    }

    fn end(mut self) -> Result<Batch, TooLong> {
        self.message(0, NFNL_MSG_BATCH_END, 0, |body| _ = body.fixed(&wire::BATCH_HEADER))?;
        Ok(self)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.writer.bytes()
    }

    /// The index of the step that a message belongs to.
    pub(crate) fn owner(&self, sequence: u32) -> Option<usize> {
        self.owners.get(usize::try_from(sequence).ok()?).copied()
    }

    fn message(
        &mut self,
        step: usize,
        number: u16,
        flags: u16,
        body: impl FnOnce(&mut Body<'_>),
    ) -> Result<(), TooLong> {
        let sequence = u32::try_from(self.owners.len()).unwrap_or(u32::MAX);
        self.owners.push(step);
        self.writer.message(Header { kind: number, flags: kind::REQUEST | flags, sequence }, body)
    }

    /// A message whose first attribute names our table, whatever the object is.
    fn in_table(
        &mut self,
        step: usize,
        number: u16,
        flags: u16,
        body: impl FnOnce(&mut Body<'_>),
    ) -> Result<(), TooLong> {
        let table = self.table;
        self.message(step, number, flags, |message| {
            message.fixed(&wire::table_header(table)).text(wire::TABLE_ATTRIBUTE, table.name());
            body(message);
        })
    }

    fn step(&mut self, index: usize, step: &Step) -> Result<(), TooLong> {
        match step {
            Step::AddTable => self.in_table(index, NFT_MSG_NEWTABLE, kind::CREATE, |_| ()),
            Step::DeleteTable => self.in_table(index, NFT_MSG_DELTABLE, 0, |_| ()),
            Step::AddSet(name, kind, comment) => self.set(index, name, *kind, comment),
            Step::AddChain(name, hook) => self.chain(index, name, *hook),
            Step::AddRules(chain, rules) => {
                rules.iter().try_for_each(|rule| self.rule(index, chain, rule))
            }
            Step::ReplaceRules(chain, rules) => {
                self.flush(index, chain)?;
                rules.iter().try_for_each(|rule| self.rule(index, chain, rule))
            }
            Step::Add(set, kind, elements) => self.add(index, set, *kind, elements),
            Step::Remove(set, kind, keys) => self.remove(index, set, *kind, keys),
            Step::FlushChain(name) => self.flush(index, name),
            Step::FlushSet(name) => self.in_table(index, NFT_MSG_DELSETELEM, 0, |body| {
                body.text(NFTA_SET_ELEM_LIST_SET, name);
            }),
            Step::DeleteChain(name) => self.in_table(index, NFT_MSG_DELCHAIN, 0, |body| {
                body.text(NFTA_CHAIN_NAME, name);
            }),
            Step::DeleteSet(name) => self.in_table(index, NFT_MSG_DELSET, 0, |body| {
                body.text(NFTA_SET_NAME, name);
            }),
        }
    }

    fn set(
        &mut self,
        index: usize,
        name: &Name,
        kind: SetKind,
        comment: &str,
    ) -> Result<(), TooLong> {
        let number = u32::try_from(self.new_sets.len()).unwrap_or(u32::MAX).saturating_add(1);
        self.new_sets.insert(name.clone(), number);
        let declared = kind.declared();
        self.in_table(index, NFT_MSG_NEWSET, kind::CREATE, |body| {
            body.text(NFTA_SET_NAME, name)
                .be_u32(NFTA_SET_FLAGS, declared.flags)
                .be_u32(NFTA_SET_KEY_TYPE, declared.key_type)
                .be_u32(NFTA_SET_KEY_LEN, declared.key_length);
            if declared.data_type != 0 {
                body.be_u32(NFTA_SET_DATA_TYPE, declared.data_type);
            }
            if declared.size != 0 {
                body.be_u64(NFTA_SET_TIMEOUT, declared.timeout);
                body.nest(NFTA_SET_DESC, |description| {
                    description.be_u32(NFTA_SET_DESC_SIZE, declared.size);
                });
            }
            if let Some(lengths) = kind.concatenation() {
                body.nest(NFTA_SET_DESC, |description| {
                    description.nest(NFTA_SET_DESC_CONCAT, |fields| {
                        for length in lengths {
                            fields.nest(NFTA_LIST_ELEM, |field| {
                                field.be_u32(NFTA_SET_FIELD_LEN, length);
                            });
                        }
                    });
                });
            }
            body.be_u32(NFTA_SET_ID, number)
                .bytes(NFTA_SET_USERDATA, &wire::set_userdata(kind, comment));
        })
    }

    fn chain(&mut self, index: usize, name: &str, hook: Option<Hook>) -> Result<(), TooLong> {
        self.in_table(index, NFT_MSG_NEWCHAIN, kind::CREATE, |body| {
            body.text(NFTA_CHAIN_NAME, name);
            if let Some(hook) = hook {
                body.nest(NFTA_CHAIN_HOOK, |body| {
                    body.be_u32(NFTA_HOOK_HOOKNUM, hook.number())
                        .bytes(NFTA_HOOK_PRIORITY, &hook.priority().to_be_bytes());
                });
                body.be_u32(NFTA_CHAIN_POLICY, wire::ACCEPT_POLICY).text(NFTA_CHAIN_TYPE, "filter");
            }
        })
    }

    fn flush(&mut self, index: usize, chain: &str) -> Result<(), TooLong> {
        self.in_table(index, NFT_MSG_DELRULE, 0, |body| _ = body.text(NFTA_RULE_CHAIN, chain))
    }

    fn rule(&mut self, index: usize, chain: &str, rule: &NftRule) -> Result<(), TooLong> {
        self.in_table(index, NFT_MSG_NEWRULE, kind::CREATE | kind::APPEND, |body| {
            body.text(NFTA_RULE_CHAIN, chain);
            body.nest(NFTA_RULE_EXPRESSIONS, |list| {
                expr::from_rule(rule).iter().for_each(|expr| expr.write(list));
            });
            let userdata = wire::userdata(&rule.comment);
            if !userdata.is_empty() {
                body.bytes(NFTA_RULE_USERDATA, &userdata);
            }
        })
    }

    fn add(
        &mut self,
        index: usize,
        set: &str,
        kind: SetKind,
        elements: &[(ElementKey, Option<Arc<ElementData>>)],
    ) -> Result<(), TooLong> {
        let mut all =
            elements.iter().flat_map(|(key, data)| wire::elements(kind, key, data.as_deref()));
        self.elements(index, NFT_MSG_NEWSETELEM, set, |list| {
            all.next().map(|element: WireElement| element.write(list))
        })
    }

    fn remove(
        &mut self,
        index: usize,
        set: &str,
        kind: SetKind,
        keys: &[ElementKey],
    ) -> Result<(), TooLong> {
        let mut all = keys.iter().flat_map(|key| wire::elements(kind, key, None));
        self.elements(index, NFT_MSG_DELSETELEM, set, |list| {
            all.next().map(|element: WireElement| element.write(list))
        })
    }

    /// Writes elements into as many messages as they need. For additions, the kernel accepts the
    /// number of a set of the same batch, which it finds much faster than a name.
    fn elements(
        &mut self,
        index: usize,
        number: u16,
        set: &str,
        mut write_next: impl FnMut(&mut Body<'_>) -> Option<()>,
    ) -> Result<(), TooLong> {
        let is_addition = number == NFT_MSG_NEWSETELEM;
        let flags = if is_addition { kind::CREATE } else { 0 };
        let new_set = self.new_sets.get(set).copied().filter(|_| is_addition);
        let mut has_more = true;
        while has_more {
            self.in_table(index, number, flags, |body| {
                match new_set {
                    Some(number) => body.be_u32(NFTA_SET_ELEM_LIST_SET_ID, number),
                    None => body.text(NFTA_SET_ELEM_LIST_SET, set),
                };
                body.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
                    while has_more && list.remaining_capacity() > MAX_ELEMENT_BYTES {
                        has_more = write_next(list).is_some();
                    }
                });
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weir_model::IpFamily;

    use super::*;

    #[test]
    fn elements_of_a_new_set_refer_to_its_number() {
        let (name, kind) = (Name::from("peers"), SetKind::Addresses(IpFamily::V4));
        let key = ElementKey::Address([10, 0, 0, 1].into());
        let add_set = Step::AddSet(name.clone(), kind, Name::from(""));
        let add = Step::Add(name.clone(), kind, vec![(key.clone(), None)]);
        let remove = Step::Remove(name.clone(), kind, vec![key]);
        let times_named = |steps: &[Step]| {
            let batch = Batch::from_steps(TableId::Policies, steps, None).unwrap();
            batch.bytes().windows(name.len()).filter(|bytes| *bytes == name.as_bytes()).count()
        };
        assert_eq!(times_named(std::slice::from_ref(&add)), 1);
        assert_eq!(times_named(&[add_set.clone(), add.clone()]), 1, "by the addition of the set");
        assert_eq!(times_named(&[add_set, add, remove]), 2, "and by the removal");
    }
}
