use crate::kind;

/// The messages in a received buffer. Iteration ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct Messages<'a>(&'a [u8]);

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The message type, as the protocol numbers it.
    pub kind: u16,
    /// The flags. Some belong to the protocol.
    pub flags: u16,
    /// The sequence number of the request that caused it.
    pub sequence: u32,
    /// The port of the socket whose request caused it. 0 for the kernel.
    pub port: u32,
    /// The protocol's own header, followed by attributes.
    pub payload: &'a [u8],
}

/// The attributes of a payload or of an attribute. Iteration ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(Result<&'a [u8], Malformed>);

/// A received attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The attribute type, without flags.
    pub kind: u16,
    /// The value.
    pub value: &'a [u8],
}

/// Received data is truncated or has an unexpected form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A message has a wrong length.
    #[error("a netlink message has a wrong length")]
    Message,
    /// An attribute has a wrong length.
    #[error("a netlink attribute has a wrong length")]
    Attribute,
    /// The attribute of this type has an unexpected value.
    #[error("a netlink attribute of type {0} has an unexpected value")]
    Value(u16),
}

/// The length of a message's header.
const MESSAGE: usize = 16;
/// The length of an attribute's header.
const ATTRIBUTE: usize = 4;

impl<'a> Messages<'a> {
    /// Reads a buffer.
    pub fn new(bytes: &'a [u8]) -> Messages<'a> {
        Messages(bytes)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let message = message(self.0);
        self.0 = message.map(|(_, rest)| rest).unwrap_or_default();
        Some(message.map(|(message, _)| message).ok_or(Malformed::Message))
    }
}

fn message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let (header, _) = bytes.split_first_chunk::<MESSAGE>()?;
    let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *header;
    let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
    let message = Message {
        kind: u16::from_ne_bytes([k0, k1]),
        flags: u16::from_ne_bytes([f0, f1]),
        sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        port: u32::from_ne_bytes([p0, p1, p2, p3]),
        payload: bytes.get(MESSAGE..length)?,
    };
    Some((message, after(bytes, length)))
}

impl<'a> Message<'a> {
    /// The attributes after a protocol header of this length.
    pub fn attributes(&self, header: usize) -> Attributes<'a> {
        Attributes(self.payload.get(header.next_multiple_of(4)..).ok_or(Malformed::Message))
    }
}

impl<'a> Attributes<'a> {
    /// Reads bytes that consist of attributes alone.
    pub fn new(bytes: &'a [u8]) -> Attributes<'a> {
        Attributes(Ok(bytes))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = match self.0 {
            Ok([]) => return None,
            Ok(bytes) => bytes,
            Err(malformed) => {
                self.0 = Ok(&[]);
                return Some(Err(malformed));
            }
        };
        let attribute = attribute(bytes);
        self.0 = Ok(attribute.map(|(_, rest)| rest).unwrap_or_default());
        Some(attribute.map(|(attribute, _)| attribute).ok_or(Malformed::Attribute))
    }
}

fn attribute(bytes: &[u8]) -> Option<(Attribute<'_>, &[u8])> {
    let (header, _) = bytes.split_first_chunk::<ATTRIBUTE>()?;
    let [l0, l1, k0, k1] = *header;
    let length = usize::from(u16::from_ne_bytes([l0, l1]));
    let attribute = Attribute {
        kind: u16::from_ne_bytes([k0, k1]) & kind::ATTRIBUTE,
        value: bytes.get(ATTRIBUTE..length)?,
    };
    Some((attribute, after(bytes, length)))
}

/// The bytes after an item of this length and its padding. The last item may lack padding.
fn after(bytes: &[u8], length: usize) -> &[u8] {
    bytes.get(length.next_multiple_of(4)..).unwrap_or_default()
}

impl<'a> Attribute<'a> {
    /// The attributes inside.
    pub fn attributes(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }

    /// The value as text, up to the first NUL.
    pub fn text(&self) -> Result<&'a str, Malformed> {
        let text = self.value.split(|&byte| byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text).map_err(|_| Malformed::Value(self.kind))
    }

    /// The value as a fixed number of bytes.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.value.try_into().map_err(|_| Malformed::Value(self.kind))
    }
}

macro_rules! numbers {
    ($($name:ident: $number:ty as $bytes:ident, $order:literal;)*) => {
        impl Attribute<'_> {
            $(
                #[doc = concat!("The value as a `", stringify!($number), "` in ", $order, ".")]
                pub fn $name(&self) -> Result<$number, Malformed> {
                    self.array().map(<$number>::$bytes)
                }
            )*
        }
    };
}

numbers! {
    u8: u8 as from_ne_bytes, "any byte order";
    u16: u16 as from_ne_bytes, "the byte order of this machine";
    u32: u32 as from_ne_bytes, "the byte order of this machine";
    u64: u64 as from_ne_bytes, "the byte order of this machine";
    be_u16: u16 as from_be_bytes, "network byte order";
    be_u32: u32 as from_be_bytes, "network byte order";
    be_u64: u64 as from_be_bytes, "network byte order";
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Header, MessageWriter};

    /// Decodes everything in every way, and counts the attributes.
    fn walk(attributes: Attributes<'_>, depth: usize) -> usize {
        let inside = |attribute: Attribute<'_>| {
            _ = (attribute.u8(), attribute.be_u16(), attribute.u32(), attribute.be_u64());
            _ = attribute.text();
            if depth < 8 { walk(attribute.attributes(), depth + 1) } else { 0 }
        };
        attributes.map(|attribute| 1 + attribute.map_or(0, inside)).sum()
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..200), header in 0..40_usize) {
            walk(Attributes::new(&bytes), 0);
            for message in Messages::new(&bytes).flatten() {
                walk(message.attributes(header), 0);
            }
        }

        #[test]
        fn wrong_lengths_are_handled(
            lengths in proptest::collection::vec((0..40_u16, 0..5_u16), 0..60),
        ) {
            let bytes: Vec<u8> = lengths
                .iter()
                .flat_map(|(length, kind)| [length.to_ne_bytes(), kind.to_ne_bytes()])
                .flatten()
                .collect();
            prop_assert!(walk(Attributes::new(&bytes), 0) <= 10 * bytes.len());
            prop_assert!(Messages::new(&bytes).count() <= bytes.len());
        }

        #[test]
        fn truncated_input_is_an_error(cut in 1..44_usize) {
            let mut writer = MessageWriter::default();
            let header = Header { kind: 16, flags: 0, sequence: 0 };
            writer.message(header, |body| {
                body.fixed(&[0; 4]).nest(1, |body| _ = body.u32(2, 3)).text(4, "weir is");
            }).unwrap();
            prop_assert_eq!(writer.bytes().len(), 44);
            let short = &writer.bytes()[..44 - cut];
            let read: Vec<_> = Messages::new(short).collect();
            prop_assert_eq!(read, if cut == 44 { vec![] } else { vec![Err(Malformed::Message)] });
            let inside: Vec<_> = Attributes::new(short.get(20..).unwrap_or_default()).collect();
            prop_assert!(inside.len() < 2 || inside[1].is_err());
        }
    }

    #[test]
    fn a_length_shorter_than_the_header_ends_the_decoding() {
        let attributes: Vec<_> = Attributes::new(&[0; 16]).collect();
        assert_eq!(attributes, [Err(Malformed::Attribute)]);
        let messages: Vec<_> = Messages::new(&[0; 64]).collect();
        assert_eq!(messages, [Err(Malformed::Message)]);
    }

    #[test]
    fn a_payload_without_the_protocols_header_is_malformed() {
        let message = Message { kind: 16, flags: 0, sequence: 0, port: 0, payload: &[0; 3] };
        let attributes: Vec<_> = message.attributes(4).collect();
        assert_eq!(attributes, [Err(Malformed::Message)]);
    }

    #[test]
    fn a_number_of_another_size_is_an_unexpected_value() {
        let attribute = Attribute { kind: 5, value: &[1, 2, 3] };
        assert_eq!(attribute.u32(), Err(Malformed::Value(5)));
        let attribute = Attribute { kind: 5, value: &[0xff, 0] };
        assert_eq!(attribute.text(), Err(Malformed::Value(5)));
    }
}
