//! DNS messages, as far as they are needed: RFC 1035.

use std::net::IpAddr;

use weir_model::Name;

/// A message with one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The number of the transaction.
    pub id: u16,
    /// Whether this is an answer.
    pub is_response: bool,
    /// Whether an answer is complete and reports success.
    pub is_success: bool,
    /// The question, which an answer repeats.
    pub question: Question,
    /// The records of the answer section that can lead to an address.
    pub records: Vec<Record>,
}

/// A question about the addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// In lower case and without the final dot.
    pub name: Name,
    /// The type of the wanted records.
    pub kind: u16,
}

impl Question {
    /// Whether the question is about addresses.
    pub(crate) fn is_about_addresses(&self) -> bool {
        matches!(self.kind, A | AAAA)
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.kind == A
    }
}

/// A record of the answer section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The name that has the value.
    pub owner: Name,
    /// The time to live, in seconds.
    pub ttl: u32,
    /// The value.
    pub value: Value,
}

/// The value of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An address of the owner: `A` or `AAAA`.
    Address(IpAddr),
    /// The name that the owner is an alias for: `CNAME`.
    Alias(Name),
}

/// The type of records with an IPv4 address.
pub const A: u16 = 1;
/// The type of records with an IPv6 address.
pub const AAAA: u16 = 28;
const CNAME: u16 = 5;
/// The class of the Internet.
const IN: u16 = 1;

const RESPONSE: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const TRUNCATED: u16 = 0x0200;
const CODE: u16 = 0x000f;
/// Recursion is desired and available.
const RECURSE: u16 = 0x0180;
const SERVER_FAILURE: u16 = 2;

/// The most bytes of a label.
const MAX_LABEL_BYTES: usize = 63;

/// The most bytes of a name on the wire.
const MAX_NAME_BYTES: usize = 255;
/// The most compression pointers in a name. Each of them leads backwards.
const MAX_POINTERS: usize = 64;

impl Message {
    /// A question.
    pub fn question(id: u16, name: &str, kind: u16) -> Self {
        let question = Question { name: name.into(), kind };
        Message { id, is_response: false, is_success: true, question, records: Vec::new() }
    }

    /// The answer to this question with some records.
    #[must_use]
    pub fn answer(&self, records: Vec<Record>) -> Self {
        Message { is_response: true, records, ..self.clone() }
    }

    /// Encodes the message. Labels and names that are too long are truncated.
    pub fn encode(&self) -> Vec<u8> {
        let flags = match (self.is_response, self.is_success) {
            (false, _) => RECURSE,
            (true, true) => RESPONSE | RECURSE,
            (true, false) => RESPONSE | RECURSE | SERVER_FAILURE,
        };
        let count = u16::try_from(self.records.len()).unwrap_or(u16::MAX);
        let mut bytes = Vec::new();
        for number in [self.id, flags, 1, count, 0, 0] {
            bytes.extend(number.to_be_bytes());
        }
        encode_name(&mut bytes, &self.question.name);
        bytes.extend([self.question.kind, IN].map(u16::to_be_bytes).concat());
        for Record { owner, ttl, value } in self.records.iter().take(count.into()) {
            let (kind, data) = match value {
                Value::Address(IpAddr::V4(v4)) => (A, v4.octets().to_vec()),
                Value::Address(IpAddr::V6(v6)) => (AAAA, v6.octets().to_vec()),
                Value::Alias(name) => {
                    let mut data = Vec::new();
                    encode_name(&mut data, name);
                    (CNAME, data)
                }
            };
            encode_name(&mut bytes, owner);
            bytes.extend([kind, IN].map(u16::to_be_bytes).concat());
            bytes.extend(ttl.to_be_bytes());
            bytes.extend(u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }
}

fn encode_name(bytes: &mut Vec<u8>, name: &str) {
    for label in name.split('.').filter(|label| !label.is_empty()) {
        let label = &label.as_bytes()[..label.len().min(MAX_LABEL_BYTES)];
        bytes.push(u8::try_from(label.len()).unwrap_or(0));
        bytes.extend(label);
    }
    bytes.push(0);
}

/// Parses a message. `None` if it is malformed or does not have exactly one question about an
/// Internet name.
pub fn parse(bytes: &[u8]) -> Option<Message> {
    let mut reader = Reader { bytes, at: 0 };
    let [id, flags, questions, answers, _, _] = [(); 6].map(|()| reader.u16());
    let (id, flags) = (id?, flags?);
    if questions? != 1 || flags & OPCODE != 0 {
        return None;
    }
    let name = reader.name()??;
    let (kind, class) = (reader.u16()?, reader.u16()?);
    if class != IN {
        return None;
    }
    let is_response = flags & RESPONSE != 0;
    let mut records = Vec::new();
    if is_response {
        for _ in 0..answers? {
            records.extend(reader.record()?);
        }
    }
    let is_success = flags & (TRUNCATED | CODE) == 0;
    Some(Message { id, is_response, is_success, question: Question { name, kind }, records })
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from(self.u16()?) << 16 | u32::from(self.u16()?))
    }

    /// Reads a record. The outer `None` is a malformed message, the inner one another kind of
    /// record.
    fn record(&mut self) -> Option<Option<Record>> {
        let owner = self.name()?;
        let (kind, class, ttl, length) = (self.u16()?, self.u16()?, self.u32()?, self.u16()?);
        let end = self.at.checked_add(length.into())?;
        let data = self.bytes.get(self.at..end)?;
        let value = match kind {
            A => Some(Value::Address(<[u8; 4]>::try_from(data).ok()?.into())),
            AAAA => Some(Value::Address(<[u8; 16]>::try_from(data).ok()?.into())),
            CNAME => {
                let alias = self.name()?;
                if self.at != end {
                    return None;
                }
                alias.map(Value::Alias)
            }
            _ => None,
        };
        self.at = end;
        let (Some(owner), Some(value), IN) = (owner, value, class) else { return Some(None) };
        Some(Some(Record { owner, ttl, value }))
    }

    /// Reads a name. The outer `None` is a malformed message, the inner one a name that no policy
    /// can contain.
    fn name(&mut self) -> Option<Option<Name>> {
        let (mut text, mut is_plain) = (String::new(), true);
        let (mut at, mut end, mut wire, mut pointers) = (self.at, None, 1, 0);
        loop {
            let length = usize::from(*self.bytes.get(at)?);
            match length >> 6 {
                0b00 if length == 0 => break,
                0b00 => {
                    wire += length + 1;
                    if wire > MAX_NAME_BYTES {
                        return None;
                    }
                    let label = self.bytes.get(at + 1..at + 1 + length)?;
                    if !text.is_empty() {
                        text.push('.');
                    }
                    for &byte in label {
                        is_plain &= byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                        text.push(char::from(byte.to_ascii_lowercase()));
                    }
                    at += 1 + length;
                }
                0b11 => {
                    let low = usize::from(*self.bytes.get(at + 1)?);
                    let target = (length & 0x3f) << 8 | low;
                    pointers += 1;
                    if target >= at || pointers > MAX_POINTERS {
                        return None;
                    }
                    end = end.or(Some(at + 2));
                    at = target;
                }
                _ => return None,
            }
        }
        self.at = end.unwrap_or(at + 1);
        Some((is_plain && !text.is_empty()).then(|| text.into()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(owner: &str, value: Value) -> Record {
        Record { owner: owner.into(), ttl: 60, value }
    }

    #[test]
    fn names_are_compared_in_lower_case_and_through_pointers() {
        let mut bytes = Message::question(7, "API.Example.com", A).answer(Vec::new()).encode();
        bytes[7] = 2;
        // The first record's owner is a pointer to the question, its value a name that ends in one.
        bytes.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 6, 3, b'c', b'd', b'n', 0xc0, 16]);
        bytes.extend([3, b'c', b'd', b'n', 0xc0, 16, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 1]);
        let message = parse(&bytes).unwrap();
        assert_eq!(&*message.question.name, "api.example.com");
        assert_eq!(message.records[0].value, Value::Alias("cdn.example.com".into()));
        assert_eq!(&*message.records[1].owner, "cdn.example.com");
        assert_eq!(message.records[1].value, Value::Address([192, 0, 2, 1].into()));
    }

    #[test]
    fn a_name_with_a_dot_inside_a_label_is_no_name() {
        let mut bytes = Message::question(7, "a.example.com", A).encode();
        // Two labels become one of the same length, with a dot in it.
        bytes[12] = 9;
        bytes[14] = b'.';
        assert_eq!(parse(&bytes), None);
    }

    #[test]
    fn pointers_that_lead_forward_or_nowhere_are_malformed() {
        for pointer in [[0xc0, 12], [0xc0, 40], [0xff, 0xff], [0x80, 1]] {
            let mut bytes = Message::question(7, "a", A).encode();
            bytes[12..14].copy_from_slice(&pointer);
            assert_eq!(parse(&bytes), None, "{pointer:?}");
        }
    }

    #[test]
    fn parsing_reverses_encoding() {
        let address = record("b.example.com", Value::Address([192, 0, 2, 1].into()));
        let alias = record("a.example.com", Value::Alias("b.example.com".into()));
        let question = Message::question(7, "a.example.com", AAAA);
        let answer = question.answer(vec![alias, address]);
        let failed = Message { is_success: false, ..question.answer(Vec::new()) };
        for message in [question, answer, failed] {
            assert_eq!(parse(&message.encode()), Some(message));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            _ = parse(&bytes);
        }

        #[test]
        fn any_damage_can_be_parsed(at in 0..80_usize, byte in any::<u8>(), cut in 0..80_usize) {
            let address = record("b.example.com", Value::Address([192, 0, 2, 1].into()));
            let alias = record("a.example.com", Value::Alias("b.example.com".into()));
            let question = Message::question(7, "a.example.com", A);
            let mut bytes = question.answer(vec![alias, address]).encode();
            let at = at.min(bytes.len() - 1);
            bytes[at] = byte;
            bytes.truncate(bytes.len().saturating_sub(cut));
            _ = parse(&bytes);
        }
    }
}
