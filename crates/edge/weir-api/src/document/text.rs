use super::{MAX_BYTES, SyntaxError};

/// The text of a file, or the error if it is not text.
pub(super) fn decode(bytes: &[u8]) -> Result<&str, SyntaxError> {
    if bytes.len() > MAX_BYTES {
        let message =
            format!("the file has {} MiB; the limit is {} MiB", bytes.len() >> 20, MAX_BYTES >> 20);
        return Err(SyntaxError::new(0, message, "split it into several files"));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(SyntaxError::new(1, "the file is UTF-16; expected UTF-8", "save it as UTF-8"));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let line = |at: usize| 1 + count_lines(&bytes[..at]);
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        let hint = "the file is binary or UTF-16; save it as UTF-8 text";
        return Err(SyntaxError::new(line(at), "found a NUL byte; expected text", hint));
    }
    std::str::from_utf8(bytes).map_err(|e| {
        SyntaxError::new(line(e.valid_up_to()), "the text is not valid UTF-8", "save it as UTF-8")
    })
}

fn count_lines(bytes: &[u8]) -> u32 {
    let lines = bytes.iter().filter(|&&b| b == b'\n').count();
    u32::try_from(lines).unwrap_or(u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_text_is_reported_with_its_line() {
        fn error(bytes: &[u8]) -> Result<&str, (u32, String)> {
            decode(bytes).map_err(|e| (e.line, e.message))
        }
        assert_eq!(error(b"\xef\xbb\xbfa: 1"), Ok("a: 1"));
        assert_eq!(error(b""), Ok(""));
        assert_eq!(error(b"a\nb\n\xff"), Err((3, "the text is not valid UTF-8".into())));
        assert_eq!(error(b"a\n\0"), Err((2, "found a NUL byte; expected text".into())));
        let utf16: &[u8] = &[0xff, 0xfe, b'a', 0];
        assert_eq!(error(utf16), Err((1, "the file is UTF-16; expected UTF-8".into())));
    }
}
