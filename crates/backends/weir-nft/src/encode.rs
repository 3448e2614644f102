//! A transaction as one batch of netlink messages.

use std::sync::Arc;

use weir_netlink::{Body, Header, TooLong, Writer, kind};

use crate::{
    Aim, Hook, Key, Kind, Rule, Step, expr, wire,
    wire::{Element, KeyBytes, TABLE},
};

/// An element needs no more room than this in a message.
const ELEMENT: usize = 512;

/// Messages that the kernel takes all at once or not at all.
pub(crate) struct Batch {
    writer: Writer,
    /// The step that each message belongs to, by its sequence number.
    owners: Vec<usize>,
    sets: u32,
}

impl Batch {
    /// The batch of some steps; the kernel takes it only in this generation of its rules, if one is given.
    pub(crate) fn of(steps: &[Step], generation: Option<u32>) -> Result<Batch, TooLong> {
        let mut batch = Batch::begin(generation)?;
        for (index, step) in steps.iter().enumerate() {
            batch.step(index, step)?;
        }
        batch.end()
    }

    /// A batch that puts keys into a set, from which they go by themselves after so many milliseconds.
    pub(crate) fn for_a_while(
        set: &str,
        keys: &[KeyBytes],
        milliseconds: u64,
    ) -> Result<Batch, TooLong> {
        let mut batch = Batch::begin(None)?;
        let mut keys = keys.iter().copied().peekable();
        batch.elements(0, wire::NEW_ELEMENTS, set, |list| {
            let key = keys.next()?;
            list.nest(1, |element| {
                element.nest(1, |body| _ = body.bytes(1, key.as_slice()));
                element.be_u64(4, milliseconds);
            });
            Some(())
        })?;
        batch.end()
    }

    fn begin(generation: Option<u32>) -> Result<Batch, TooLong> {
        let mut batch = Batch { writer: Writer::default(), owners: Vec::new(), sets: 0 };
        batch.message(0, wire::BATCH_BEGIN, 0, |body| {
            body.fixed(&wire::BATCH);
            if let Some(generation) = generation {
                body.be_u32(1, generation);
            }
        })?;
        Ok(batch)
    }

    fn end(mut self) -> Result<Batch, TooLong> {
        self.message(0, wire::BATCH_END, 0, |body| _ = body.fixed(&wire::BATCH))?;
        Ok(self)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.writer.bytes()
    }

    /// The step that a message was written for.
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

    /// A message about something in our table.
    fn about(
        &mut self,
        step: usize,
        number: u16,
        flags: u16,
        body: impl FnOnce(&mut Body<'_>),
    ) -> Result<(), TooLong> {
        self.message(step, number, flags, |message| {
            message.fixed(&wire::INET).text(1, TABLE);
            body(message);
        })
    }

    fn step(&mut self, index: usize, step: &Step) -> Result<(), TooLong> {
        match step {
            Step::AddTable => self.about(index, wire::NEW_TABLE, kind::CREATE, |_| ()),
            Step::DeleteTable => self.about(index, wire::DELETE_TABLE, 0, |_| ()),
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
            Step::FlushSet(name) => {
                self.about(index, wire::DELETE_ELEMENTS, 0, |body| _ = body.text(2, name))
            }
            Step::DeleteChain(name) => {
                self.about(index, wire::DELETE_CHAIN, 0, |body| _ = body.text(3, name))
            }
            Step::DeleteSet(name) => {
                self.about(index, wire::DELETE_SET, 0, |body| _ = body.text(2, name))
            }
        }
    }

    fn set(&mut self, index: usize, name: &str, kind: Kind, comment: &str) -> Result<(), TooLong> {
        self.sets += 1;
        let (id, declared) = (self.sets, kind.declared());
        self.about(index, wire::NEW_SET, kind::CREATE, |body| {
            body.text(2, name).be_u32(3, declared.flags);
            body.be_u32(4, declared.key_type).be_u32(5, declared.key_length);
            if declared.data_type != 0 {
                body.be_u32(6, declared.data_type);
            }
            if let Some(lengths) = kind.concatenation() {
                body.nest(9, |description| {
                    description.nest(2, |fields| {
                        for length in lengths {
                            fields.nest(1, |field| _ = field.be_u32(1, length));
                        }
                    });
                });
            }
            body.be_u32(10, id).bytes(13, &wire::set_note(kind, comment));
        })
    }

    fn chain(&mut self, index: usize, name: &str, hook: Option<Hook>) -> Result<(), TooLong> {
        self.about(index, wire::NEW_CHAIN, kind::CREATE, |body| {
            body.text(3, name);
            if let Some(Hook::Forward) = hook {
                let (number, priority) = wire::FORWARD;
                body.nest(4, |hook| {
                    hook.be_u32(1, number).bytes(2, &priority.to_be_bytes());
                });
                body.be_u32(5, 1).text(7, "filter");
            }
        })
    }

    fn flush(&mut self, index: usize, chain: &str) -> Result<(), TooLong> {
        self.about(index, wire::DELETE_RULE, 0, |body| _ = body.text(2, chain))
    }

    fn rule(&mut self, index: usize, chain: &str, rule: &Rule) -> Result<(), TooLong> {
        self.about(index, wire::NEW_RULE, kind::CREATE | kind::APPEND, |body| {
            body.text(2, chain);
            body.nest(4, |list| expr::of(rule).iter().for_each(|expr| expr.write(list)));
            let note = wire::note(&rule.comment);
            if !note.is_empty() {
                body.bytes(7, &note);
            }
        })
    }

    fn add(
        &mut self,
        index: usize,
        set: &str,
        kind: Kind,
        elements: &[(Key, Option<Arc<Aim>>)],
    ) -> Result<(), TooLong> {
        let mut all =
            elements.iter().flat_map(|(key, aim)| wire::elements(kind, key, aim.as_deref()));
        self.elements(index, wire::NEW_ELEMENTS, set, |list| {
            all.next().map(|element: Element| element.write(list))
        })
    }

    fn remove(&mut self, index: usize, set: &str, kind: Kind, keys: &[Key]) -> Result<(), TooLong> {
        let mut all = keys.iter().flat_map(|key| wire::elements(kind, key, None));
        self.elements(index, wire::DELETE_ELEMENTS, set, |list| {
            all.next().map(|element: Element| element.write(list))
        })
    }

    /// Writes elements into as many messages as they need.
    fn elements(
        &mut self,
        index: usize,
        number: u16,
        set: &str,
        mut next: impl FnMut(&mut Body<'_>) -> Option<()>,
    ) -> Result<(), TooLong> {
        let flags = if number == wire::NEW_ELEMENTS { kind::CREATE } else { 0 };
        let mut more = true;
        while more {
            self.about(index, number, flags, |body| {
                body.text(2, set).nest(3, |list| {
                    while more && list.room() > ELEMENT {
                        more = next(list).is_some();
                    }
                });
            })?;
        }
        Ok(())
    }
}
