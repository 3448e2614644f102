use std::{fmt, io};

use crate::{Attribute, Attributes, Message};

/// Why the kernel did not do what it was asked.
#[derive(Debug)]
pub struct Refusal {
    /// The code; [`io::Error::raw_os_error`] has the number.
    pub error: io::Error,
    /// What the kernel had to say about it.
    pub reason: Option<String>,
    /// Where in the request the cause is, counted from the beginning of the message.
    pub offset: Option<u32>,
}

impl Refusal {
    fn new(code: i32, attributes: Attributes<'_>) -> Refusal {
        let error = io::Error::from_raw_os_error(code.saturating_neg());
        let mut refusal = Refusal { error, reason: None, offset: None };
        // An explanation that cannot be read is no reason to lose the error.
        for attribute in attributes.flatten() {
            match attribute.kind {
                REASON => refusal.reason = attribute.text().ok().map(str::to_owned),
                OFFSET => refusal.offset = attribute.u32().ok(),
                _ => (),
            }
        }
        refusal
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the kernel refused")?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl Message<'_> {
    /// The kernel's verdict on the request with this message's sequence number; `None` if this is no such message.
    pub fn verdict(&self) -> Option<Result<(), Refusal>> {
        if self.kind != ERROR {
            return None;
        }
        let attribute = Attribute { kind: 0, value: self.payload.get(..4).unwrap_or_default() };
        Some(match attribute.array().map(i32::from_ne_bytes) {
            Ok(0) => Ok(()),
            Ok(code) => Err(Refusal::new(code, self.explanation())),
            Err(_) => Err(Refusal::new(-PROTOCOL, Attributes::new(&[]))),
        })
    }

    /// The same for the message that ends a dump.
    pub(crate) fn end_of_dump(&self) -> Option<Result<(), Refusal>> {
        if self.kind != DONE {
            return None;
        }
        let code = self.payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
        Some(if code < 0 { Err(Refusal::new(code, self.attributes(4))) } else { Ok(()) })
    }

    /// What follows the code and the beginning of the request, or all of it.
    fn explanation(&self) -> Attributes<'_> {
        if self.flags & EXPLAINED == 0 {
            return Attributes::new(&[]);
        }
        let echoed = match self.payload.get(4..8).and_then(|length| length.try_into().ok()) {
            Some(length) if self.flags & CAPPED == 0 => u32::from_ne_bytes(length) as usize,
            _ => HEADER,
        };
        self.attributes(echoed.saturating_add(4).min(self.payload.len()))
    }
}

/// An error or, with the code 0, an acknowledgement.
const ERROR: u16 = 2;
/// The end of a dump.
const DONE: u16 = 3;
/// The flag of an error without the request's content.
const CAPPED: u16 = 0x100;
/// The flag of an error with attributes.
const EXPLAINED: u16 = 0x200;
/// The length of a message's header.
const HEADER: usize = 16;
/// What we say ourselves about an error without a code: `EPROTO`.
const PROTOCOL: i32 = rustix::io::Errno::PROTO.raw_os_error();
const REASON: u16 = 1;
const OFFSET: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, Header, Messages, Writer};

    fn refusal(flags: u16, body: impl FnOnce(&mut Body<'_>)) -> Result<(), Refusal> {
        let mut writer = Writer::default();
        writer.message(Header { kind: ERROR, flags, sequence: 1 }, body).unwrap();
        Messages::new(writer.bytes()).next().unwrap().unwrap().verdict().unwrap()
    }

    #[test]
    fn an_acknowledgement_is_no_refusal() {
        assert!(refusal(0, |body| _ = body.fixed(&[0; 20])).is_ok());
    }

    #[test]
    fn the_reason_follows_a_request_that_is_capped() {
        let refusal = refusal(CAPPED | EXPLAINED, |body| {
            body.fixed(&(-22_i32).to_ne_bytes()).fixed(&100_u32.to_ne_bytes()).fixed(&[0; 12]);
            body.text(REASON, "no such thing").u32(OFFSET, 40);
        })
        .unwrap_err();
        assert_eq!(refusal.error.raw_os_error(), Some(22));
        assert_eq!(refusal.to_string(), "the kernel refused: no such thing");
        assert_eq!(refusal.offset, Some(40));
    }

    #[test]
    fn the_reason_follows_a_request_that_is_repeated() {
        let refusal = refusal(EXPLAINED, |body| {
            body.fixed(&(-2_i32).to_ne_bytes()).fixed(&24_u32.to_ne_bytes()).fixed(&[0; 20]);
            body.text(REASON, "gone");
        })
        .unwrap_err();
        assert_eq!(
            (refusal.error.raw_os_error(), refusal.reason.as_deref()),
            (Some(2), Some("gone"))
        );
    }

    #[test]
    fn an_error_that_is_cut_short_is_still_an_error() {
        assert!(refusal(0, |_| ()).is_err());
        let lie = refusal(EXPLAINED, |body| {
            body.fixed(&(-1_i32).to_ne_bytes()).fixed(&u32::MAX.to_ne_bytes());
        });
        assert_eq!(lie.unwrap_err().error.raw_os_error(), Some(1));
    }
}
