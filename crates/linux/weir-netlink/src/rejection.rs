use std::{fmt, io};

use rustix::io::Errno;

use crate::{Attribute, Attributes, Message};

/// The kernel's reason for rejecting a request.
#[derive(Debug)]
pub struct Rejection {
    /// The error code, see [`io::Error::raw_os_error`].
    pub error: io::Error,
    /// The kernel's explanation.
    pub reason: Option<String>,
    /// The offset of the cause from the start of the request.
    pub offset: Option<u32>,
}

impl Rejection {
    fn new(code: i32, attributes: Attributes<'_>) -> Rejection {
        let error = io::Error::from_raw_os_error(code.saturating_neg());
        let mut rejection = Rejection { error, reason: None, offset: None };
        // An unreadable explanation must not hide the error.
        for attribute in attributes.flatten() {
            match attribute.kind {
                REASON => rejection.reason = attribute.text().ok().map(str::to_owned),
                OFFSET => rejection.offset = attribute.u32().ok(),
                _ => (),
            }
        }
        rejection
    }
}

impl Rejection {
    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        self.errno().is_some_and(|errno| TRANSIENT.contains(&errno))
    }

    /// The error code as an `errno`. `None` for codes that a subsystem defines, as ipset does.
    pub fn errno(&self) -> Option<Errno> {
        Errno::from_io_error(&self.error)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the kernel rejected the request")?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

impl std::error::Error for Rejection {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl Message<'_> {
    /// The kernel's verdict on the request with this sequence number. `None` for other messages.
    pub fn verdict(&self) -> Option<Result<(), Rejection>> {
        if self.kind != ERROR {
            return None;
        }
        let attribute = Attribute { kind: 0, value: self.payload.get(..4).unwrap_or_default() };
        Some(match attribute.array().map(i32::from_ne_bytes) {
            Ok(0) => Ok(()),
            Ok(code) => Err(Rejection::new(code, self.explanation())),
            Err(_) => Err(Rejection::new(-PROTOCOL, Attributes::new(&[]))),
        })
    }

    /// The verdict of the message that ends a dump.
    pub(crate) fn end_of_dump(&self) -> Option<Result<(), Rejection>> {
        if self.kind != DONE {
            return None;
        }
        let code = self.payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
        Some(if code < 0 { Err(Rejection::new(code, self.attributes(4))) } else { Ok(()) })
    }

    /// The attributes after the error code and the echo of the request, which may be capped.
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
/// The code for an error message that has none.
const PROTOCOL: i32 = Errno::PROTO.raw_os_error();
/// The codes after which the same request may succeed later: no memory, no buffer, no permission
/// yet, an interruption, or rules of another generation than the request was made for.
const TRANSIENT: [Errno; 6] =
    [Errno::NOMEM, Errno::NOBUFS, Errno::PERM, Errno::INTR, Errno::AGAIN, Errno::RESTART];
const REASON: u16 = 1;
const OFFSET: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, Header, MessageWriter, Messages};

    fn rejection(flags: u16, body: impl FnOnce(&mut Body<'_>)) -> Result<(), Rejection> {
        let mut writer = MessageWriter::default();
        writer.message(Header { kind: ERROR, flags, sequence: 1 }, body).unwrap();
        Messages::new(writer.bytes()).next().unwrap().unwrap().verdict().unwrap()
    }

    #[test]
    fn an_acknowledgement_is_not_a_rejection() {
        assert!(rejection(0, |body| _ = body.fixed(&[0; 20])).is_ok());
    }

    #[test]
    fn the_reason_follows_a_capped_request() {
        let rejection = rejection(CAPPED | EXPLAINED, |body| {
            body.fixed(&(-22_i32).to_ne_bytes()).fixed(&100_u32.to_ne_bytes()).fixed(&[0; 12]);
            body.text(REASON, "no such thing").u32(OFFSET, 40);
        })
        .unwrap_err();
        assert_eq!(rejection.errno(), Some(Errno::INVAL));
        assert_eq!(rejection.to_string(), "the kernel rejected the request: no such thing");
        assert_eq!(rejection.offset, Some(40));
    }

    #[test]
    fn the_reason_follows_an_echoed_request() {
        let rejection = rejection(EXPLAINED, |body| {
            body.fixed(&(-2_i32).to_ne_bytes()).fixed(&24_u32.to_ne_bytes()).fixed(&[0; 20]);
            body.text(REASON, "gone");
        })
        .unwrap_err();
        assert_eq!(
            (rejection.errno(), rejection.reason.as_deref()),
            (Some(Errno::NOENT), Some("gone"))
        );
    }

    #[test]
    fn a_truncated_error_is_still_an_error() {
        assert!(rejection(0, |_| ()).is_err());
        let wrong_length = rejection(EXPLAINED, |body| {
            body.fixed(&(-1_i32).to_ne_bytes()).fixed(&u32::MAX.to_ne_bytes());
        });
        assert_eq!(wrong_length.unwrap_err().errno(), Some(Errno::PERM));
    }
}
