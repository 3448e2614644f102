use crate::kind;

/// The messages in a buffer that was received. Ends after the first that is malformed.
#[derive(Clone, Debug)]
pub struct Messages<'a>(&'a [u8]);

/// A message, as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// What it is; the number is the protocol's.
    pub kind: u16,
    /// Flags; some are the protocol's.
    pub flags: u16,
    /// The sequence number of what it answers.
    pub sequence: u32,
    /// Who asked for what it answers or tells; 0 for the kernel itself.
    pub port: u32,
    /// What follows: the protocol's own header, then attributes.
    pub payload: &'a [u8],
}

/// The attributes in a payload or in another attribute. Ends after the first that is malformed.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(Result<&'a [u8], Malformed>);

/// An attribute, as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// What it is, without flags.
    pub kind: u16,
    /// What it says.
    pub value: &'a [u8],
}

/// What was received is cut short or is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A message whose length is wrong.
    #[error("a netlink message has a wrong length")]
    Message,
    /// An attribute whose length is wrong.
    #[error("a netlink attribute has a wrong length")]
    Attribute,
    /// An attribute with a value of another type, by its own type.
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
    /// The attributes after the protocol's own header, which has this length.
    pub fn attributes(&self, header: usize) -> Attributes<'a> {
        Attributes(self.payload.get(header.next_multiple_of(4)..).ok_or(Malformed::Message))
    }
}

impl<'a> Attributes<'a> {
    /// Reads what consists of attributes alone.
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

/// What comes after the padding of something that has this length. The last one may have none.
fn after(bytes: &[u8], length: usize) -> &[u8] {
    bytes.get(length.next_multiple_of(4)..).unwrap_or_default()
}

impl<'a> Attribute<'a> {
    /// The attributes it holds.
    pub fn attributes(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }

    /// Its value as a text, up to the first NUL.
    pub fn text(&self) -> Result<&'a str, Malformed> {
        let text = self.value.split(|&byte| byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text).map_err(|_| Malformed::Value(self.kind))
    }

    /// Its value as so many bytes.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.value.try_into().map_err(|_| Malformed::Value(self.kind))
    }
}

macro_rules! numbers {
    ($($name:ident: $number:ty as $bytes:ident, $order:literal;)*) => {
        impl Attribute<'_> {
            $(
                #[doc = concat!("Its value as a number of ", stringify!($number), ", ", $order, ".")]
                pub fn $name(&self) -> Result<$number, Malformed> {
                    self.array().map(<$number>::$bytes)
                }
            )*
        }
    };
}

numbers! {
    u8: u8 as from_ne_bytes, "one byte";
    u16: u16 as from_ne_bytes, "in the order of this machine";
    u32: u32 as from_ne_bytes, "in the order of this machine";
    u64: u64 as from_ne_bytes, "in the order of this machine";
    be_u16: u16 as from_be_bytes, "in the order of the network";
    be_u32: u32 as from_be_bytes, "in the order of the network";
    be_u64: u64 as from_be_bytes, "in the order of the network";
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Header, Writer};

    /// Looks at everything, whatever it is, and counts it.
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
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), header in 0..40_usize) {
            walk(Attributes::new(&bytes), 0);
            for message in Messages::new(&bytes).flatten() {
                walk(message.attributes(header), 0);
            }
        }

        #[test]
        fn lies_about_lengths_are_survived(
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
        fn whatever_is_cut_short_says_so(cut in 1..44_usize) {
            let mut writer = Writer::default();
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
    fn a_length_that_is_shorter_than_its_header_ends_the_reading() {
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
