//! The wire format of protocol buffers, as far as responses of the API server need it.
//!
//! Every object of the API server is in an envelope: four bytes, and a message with its kind and
//! its bytes. Only JSON has all fields of an object under their names. Kinds with many objects, of
//! which weir needs few fields, are read in this form, because it costs the API server half as much.

use std::borrow::Cow;

/// The bytes before an envelope.
pub(super) const MAGIC: &[u8; 4] = b"k8s\0";

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<'a> {
    Number(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// A number of a fixed size, which no field that weir reads has.
    Fixed,
}

/// The bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid protocol buffer")]
pub(crate) struct Malformed;

/// The fields of a message, with their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next field; `None` at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Field<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (tag, rest) = varint(self.0)?.ok_or(Malformed)?;
        let number = u32::try_from(tag >> 3).map_err(|_| Malformed)?;
        let split = |rest: &'a [u8], length| rest.split_at_checked(length).ok_or(Malformed);
        let (field, rest) = match tag & 7 {
            0 => {
                let (value, rest) = varint(rest)?.ok_or(Malformed)?;
                (Field::Number(value), rest)
            }
            1 => (Field::Fixed, split(rest, 8)?.1),
            2 => {
                let (length, rest) = varint(rest)?.ok_or(Malformed)?;
                let (bytes, rest) = split(rest, usize::try_from(length).map_err(|_| Malformed)?)?;
                (Field::Bytes(bytes), rest)
            }
            5 => (Field::Fixed, split(rest, 4)?.1),
            _ => return Err(Malformed),
        };
        self.0 = rest;
        Ok(Some((number, field)))
    }

    /// Passes all fields to `read`.
    pub(super) fn each(
        mut self,
        mut read: impl FnMut(u32, Field<'a>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        while let Some((number, field)) = self.next()? {
            read(number, field)?;
        }
        Ok(())
    }
}

/// A number of variable length, and the bytes after it; `None` if the bytes end before it does.
pub(crate) fn varint(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, Malformed> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shift = u32::try_from(7 * at).map_err(|_| Malformed)?;
        if shift > 63 || (shift == 63 && bits > 1) {
            return Err(Malformed);
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(Some((value, &bytes[at + 1..])));
        }
    }
    Ok(None)
}

/// The text of a field of an object. Like the JSON of the API server, it has U+FFFD in the place of
/// bytes that are not UTF-8, which users can write: one such object must not make a list unreadable.
pub(super) fn user_text<'a>(field: Field<'a>) -> Result<Cow<'a, str>, Malformed> {
    match field {
        Field::Bytes(bytes) => Ok(String::from_utf8_lossy(bytes)),
        _ => Err(Malformed),
    }
}

/// The text of a field that only the API server writes.
pub(super) fn text<'a>(field: Field<'a>) -> Result<&'a str, Malformed> {
    match field {
        Field::Bytes(bytes) => std::str::from_utf8(bytes).map_err(|_| Malformed),
        _ => Err(Malformed),
    }
}

/// The message in a field.
pub(super) fn message<'a>(field: Field<'a>) -> Result<Fields<'a>, Malformed> {
    match field {
        Field::Bytes(bytes) => Ok(Fields(bytes)),
        _ => Err(Malformed),
    }
}

/// The number in a field.
pub(super) fn number(field: Field<'_>) -> Result<i64, Malformed> {
    match field {
        // Negative numbers are in two's complement.
        Field::Number(value) => Ok(value.cast_signed()),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A field with bytes.
    pub(in crate::wire) fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        let mut length = content.len();
        while length >= 0x80 {
            field.push(length as u8 | 0x80);
            length >>= 7;
        }
        field.push(length as u8);
        field.extend_from_slice(content);
        field
    }

    #[test]
    fn fields_are_read_in_order() {
        let message = [vec![0x08, 0x96, 0x01], bytes(2, b"shop"), vec![0x1d, 1, 2, 3, 4]].concat();
        let mut fields = Fields(&message);
        assert_eq!(fields.next(), Ok(Some((1, Field::Number(150)))));
        assert_eq!(fields.next(), Ok(Some((2, Field::Bytes(b"shop")))));
        assert_eq!(fields.next(), Ok(Some((3, Field::Fixed))));
        assert_eq!(fields.next(), Ok(None));
    }

    #[test]
    fn truncated_and_invalid_messages_are_rejected() {
        let message = bytes(2, &[7; 300]);
        for end in 1..message.len() {
            assert_eq!(Fields(&message[..end]).next(), Err(Malformed), "{end}");
        }
        // Too many digits, an unknown type, and a length beyond the message.
        assert_eq!(varint(&[0xff; 10]), Err(Malformed));
        assert_eq!(varint(&[0xff; 9]), Ok(None));
        assert_eq!(Fields(&[0x0b]).next(), Err(Malformed));
        assert_eq!(Fields(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x7f]).next(), Err(Malformed));
    }
}
