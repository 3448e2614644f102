use crate::kind;

/// Encodes messages back to back in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageWriter(Vec<u8>);

/// The header of a message, without its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message type, as the protocol numbers it.
    pub kind: u16,
    /// The flags, see [`kind`]. Some belong to the protocol.
    pub flags: u16,
    /// The sequence number, which the kernel's reply repeats.
    pub sequence: u32,
}

/// The content of a message, or of an attribute that contains attributes.
#[derive(Debug)]
pub struct Body<'a> {
    bytes: &'a mut Vec<u8>,
    /// The start of the outermost open attribute.
    outermost: Option<usize>,
    too_long: &'a mut Option<TooLong>,
}

/// Something exceeds its length field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLong {
    /// The attribute of this type.
    #[error("a netlink attribute of type {0} is longer than 65535 bytes")]
    Attribute(u16),
    /// The message of this type.
    #[error("a netlink message of type {0} is longer than 4 GiB")]
    Message(u16),
}

impl MessageWriter {
    /// Adds a message. On error, the buffer is unchanged.
    pub fn message(
        &mut self,
        header: Header,
        body: impl FnOnce(&mut Body<'_>),
    ) -> Result<(), TooLong> {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        self.0.extend_from_slice(&header.kind.to_ne_bytes());
        self.0.extend_from_slice(&header.flags.to_ne_bytes());
        self.0.extend_from_slice(&header.sequence.to_ne_bytes());
        self.0.extend_from_slice(&[0; 4]);
        let mut too_long = None;
        body(&mut Body { bytes: &mut self.0, outermost: None, too_long: &mut too_long });
        let length = u32::try_from(self.0.len() - start);
        match (too_long, length) {
            (None, Ok(length)) => {
                self.0[start..start + 4].copy_from_slice(&length.to_ne_bytes());
                Ok(())
            }
            (too_long, _) => {
                self.0.truncate(start);
                Err(too_long.unwrap_or(TooLong::Message(header.kind)))
            }
        }
    }

    /// The messages added so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Removes all messages and keeps the allocation.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Body<'_> {
    /// Adds the header that a protocol has before its attributes.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Adds an attribute with any bytes. An empty one is a flag.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.attribute(kind, 0, |body| body.bytes.extend_from_slice(value))
    }

    /// Adds an attribute with text, which the kernel reads up to the first NUL.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.attribute(kind, 0, |body| {
            body.bytes.extend_from_slice(value.as_bytes());
            body.bytes.push(0);
        })
    }

    /// Adds an attribute that contains attributes.
    pub fn nest(&mut self, kind: u16, value: impl FnOnce(&mut Body<'_>)) -> &mut Self {
        self.attribute(kind, kind::NESTED, value)
    }

    /// How many more bytes the outermost open attribute can take, headers and padding included.
    pub fn remaining_capacity(&self) -> usize {
        let used = self.outermost.map_or(0, |start| self.bytes.len() - start);
        // The padding of the last attribute may count towards the enclosing ones.
        (usize::from(u16::MAX) & !3).saturating_sub(used)
    }

    fn attribute(&mut self, kind: u16, flags: u16, value: impl FnOnce(&mut Body<'_>)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | flags).to_ne_bytes());
        value(&mut Body {
            bytes: self.bytes,
            outermost: self.outermost.or(Some(start)),
            too_long: self.too_long,
        });
        match u16::try_from(self.bytes.len() - start) {
            Ok(length) => self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => _ = self.too_long.get_or_insert(TooLong::Attribute(kind)),
        }
        self.pad();
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

macro_rules! numbers {
    ($($name:ident: $number:ty as $bytes:ident, $order:literal;)*) => {
        impl Body<'_> {
            $(
                #[doc = concat!("Adds an attribute with a `", stringify!($number), "` in ", $order, ".")]
                pub fn $name(&mut self, kind: u16, value: $number) -> &mut Self {
                    self.bytes(kind, &value.$bytes())
                }
            )*
        }
    };
}

numbers! {
    u8: u8 as to_ne_bytes, "any byte order";
    u16: u16 as to_ne_bytes, "the byte order of this machine";
    u32: u32 as to_ne_bytes, "the byte order of this machine";
    u64: u64 as to_ne_bytes, "the byte order of this machine";
    be_u16: u16 as to_be_bytes, "network byte order";
    be_u32: u32 as to_be_bytes, "network byte order";
    be_u64: u64 as to_be_bytes, "network byte order";
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Attribute, Messages};

    const HEADER: Header = Header { kind: 16, flags: kind::REQUEST, sequence: 7 };

    /// A tree of attributes.
    #[derive(Clone, Debug, PartialEq)]
    enum AttributeTree {
        Leaf(u16, Vec<u8>),
        Nest(u16, Vec<AttributeTree>),
    }

    fn tree() -> impl Strategy<Value = AttributeTree> {
        let kinds = 0..=kind::ATTRIBUTE;
        let leaf = (kinds.clone(), proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(kind, bytes)| AttributeTree::Leaf(kind, bytes));
        leaf.prop_recursive(4, 40, 6, move |inner| {
            (kinds.clone(), proptest::collection::vec(inner, 0..6))
                .prop_map(|(kind, trees)| AttributeTree::Nest(kind, trees))
        })
    }

    fn write(body: &mut Body<'_>, trees: &[AttributeTree]) {
        for tree in trees {
            match tree {
                AttributeTree::Leaf(kind, value) => _ = body.bytes(*kind, value),
                AttributeTree::Nest(kind, inner) => _ = body.nest(*kind, |body| write(body, inner)),
            }
        }
    }

    fn read_as(attribute: Attribute<'_>, tree: &AttributeTree) {
        match tree {
            AttributeTree::Leaf(kind, value) => {
                assert_eq!((attribute.kind, attribute.value), (*kind, &**value));
            }
            AttributeTree::Nest(kind, inner) => {
                assert_eq!(attribute.kind, *kind);
                let found: Vec<_> = attribute.attributes().map(Result::unwrap).collect();
                assert_eq!(found.len(), inner.len());
                found.into_iter().zip(inner).for_each(|(found, tree)| read_as(found, tree));
            }
        }
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(
            messages in proptest::collection::vec(proptest::collection::vec(tree(), 0..6), 0..4),
        ) {
            let mut writer = MessageWriter::default();
            for trees in &messages {
                writer.message(HEADER, |body| write(body.fixed(&[1, 2, 3]), trees)).unwrap();
            }
            let read: Vec<_> = Messages::new(writer.bytes()).map(Result::unwrap).collect();
            prop_assert_eq!(read.len(), messages.len());
            for (message, trees) in read.into_iter().zip(&messages) {
                prop_assert_eq!((message.kind, message.flags, message.sequence), (16, 1, 7));
                prop_assert_eq!(message.payload.get(..4), Some(&[1, 2, 3, 0][..]));
                let found: Vec<_> = message.attributes(3).map(Result::unwrap).collect();
                prop_assert_eq!(found.len(), trees.len());
                found.into_iter().zip(trees).for_each(|(found, tree)| read_as(found, tree));
            }
        }
    }

    #[test]
    fn numbers_and_texts_are_decoded_as_encoded() {
        let mut writer = MessageWriter::default();
        writer
            .message(HEADER, |body| {
                body.u8(1, 0x12).u16(2, 0x1234).u32(3, 0x1234_5678).u64(4, 0x1234_5678_9abc_def0);
                body.be_u16(5, 0x1234).be_u32(6, 0x1234_5678).be_u64(7, 0x1234_5678_9abc_def0);
                body.text(8, "weir");
            })
            .unwrap();
        let message = Messages::new(writer.bytes()).next().unwrap().unwrap();
        let found: Vec<_> = message.attributes(0).map(Result::unwrap).collect();
        assert_eq!(found[0].u8(), Ok(0x12));
        assert_eq!(found[1].u16(), Ok(0x1234));
        assert_eq!(found[2].u32(), Ok(0x1234_5678));
        assert_eq!(found[3].u64(), Ok(0x1234_5678_9abc_def0));
        assert_eq!(found[4].be_u16(), Ok(0x1234));
        assert_eq!(found[5].be_u32(), Ok(0x1234_5678));
        assert_eq!(found[6].be_u64(), Ok(0x1234_5678_9abc_def0));
        assert_eq!(found[7].text(), Ok("weir"));
        assert_eq!(found[7].value, b"weir\0");
    }

    #[test]
    fn an_attribute_that_is_too_long_is_an_error_and_changes_nothing() {
        let mut writer = MessageWriter::default();
        writer.message(HEADER, |body| _ = body.bytes(1, &[0; 0xffff - 4])).unwrap();
        let before = writer.clone();
        let flat = writer.message(HEADER, |body| _ = body.bytes(1, &[0; 0xffff - 3]));
        assert_eq!(flat, Err(TooLong::Attribute(1)));
        let nested = writer.message(HEADER, |body| {
            body.nest(2, |body| (0..40).for_each(|_| _ = body.bytes(1, &[0; 2000])));
        });
        assert_eq!(nested, Err(TooLong::Attribute(2)));
        assert_eq!(writer, before);
    }

    #[test]
    fn the_remaining_capacity_is_exact() {
        let mut writer = MessageWriter::default();
        let mut written = 0;
        let result = writer.message(HEADER, |body| {
            body.nest(1, |body| {
                body.nest(2, |body| {
                    while body.remaining_capacity() >= 8 {
                        body.be_u32(3, 1);
                        written += 1;
                    }
                });
            });
        });
        assert_eq!(result, Ok(()));
        assert_eq!(written, (0xffff - 8) / 8);
    }
}
