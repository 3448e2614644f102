use std::borrow::Cow;

use super::{
    DEPTH, SyntaxError, TreeValue,
    builder::{Events, ParseEvent},
};

/// Reads consecutive JSON documents, with or without `---` between them.
/// The first line has this number.
pub(super) fn parse(text: &str, line: u32, events: &mut impl Events) -> Result<(), SyntaxError> {
    let mut reader = JsonParser { text, at: 0, line };
    loop {
        reader.skip_space();
        while reader.skip_separator() {
            reader.skip_space();
        }
        if reader.peek().is_none() {
            return Ok(());
        }
        events.event(ParseEvent::DocumentStart, reader.line)?;
        reader.value(events)?;
    }
}

struct JsonParser<'t> {
    text: &'t str,
    at: usize,
    line: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum Open {
    List,
    Mapping,
}

impl<'t> JsonParser<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b'\n' => self.line = self.line.saturating_add(1),
                b' ' | b'\t' | b'\r' => (),
                _ => return,
            }
            self.at += 1;
        }
    }

    /// Skips a line `---`.
    fn skip_separator(&mut self) -> bool {
        let (before, rest) = self.text.split_at(self.at);
        let is_line = (before.is_empty() || before.ends_with('\n'))
            && rest
                .strip_prefix("---")
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        self.at += if is_line { 3 } else { 0 };
        is_line
    }

    fn wrong(&self, expected: &str) -> SyntaxError {
        let found = match self.text[self.at..].chars().next() {
            None => "the end of the file".into(),
            Some(c) => format!("`{}`", c.escape_debug()),
        };
        let message = format!("this is not JSON: expected {expected}, found {found}");
        SyntaxError::new(self.line, message, "check commas, quotes and brackets around this line")
    }

    /// Reads one value with its content.
    fn value(&mut self, events: &mut impl Events) -> Result<(), SyntaxError> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            self.skip_space();
            let line = self.line;
            match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    events.event(ParseEvent::Map(0), line)?;
                    self.skip_space();
                    if self.peek() == Some(b'}') {
                        self.at += 1;
                        events.event(ParseEvent::End, self.line)?;
                    } else {
                        push(&mut open, Open::Mapping, line)?;
                        self.key(events)?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    events.event(ParseEvent::Seq(0), line)?;
                    self.skip_space();
                    if self.peek() == Some(b']') {
                        self.at += 1;
                        events.event(ParseEvent::End, self.line)?;
                    } else {
                        push(&mut open, Open::List, line)?;
                        continue;
                    }
                }
                _ => {
                    let value = self.scalar()?;
                    events.event(ParseEvent::Scalar(value, 0), line)?;
                }
            }
            // A value is complete: close its collections, or continue with the next value.
            loop {
                let Some(&inner) = open.last() else { return Ok(()) };
                self.skip_space();
                match (self.peek(), inner) {
                    (Some(b','), Open::List) => self.at += 1,
                    (Some(b','), Open::Mapping) => {
                        self.at += 1;
                        self.skip_space();
                        self.key(events)?;
                    }
                    (Some(b']'), Open::List) | (Some(b'}'), Open::Mapping) => {
                        self.at += 1;
                        open.pop();
                        events.event(ParseEvent::End, self.line)?;
                        continue;
                    }
                    (_, Open::List) => return Err(self.wrong("`,` or `]`")),
                    (_, Open::Mapping) => return Err(self.wrong("`,` or `}`")),
                }
                break;
            }
        }
    }

    fn key(&mut self, events: &mut impl Events) -> Result<(), SyntaxError> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong("a key in double quotes"));
        }
        let line = self.line;
        let key = self.string()?;
        events.event(ParseEvent::Scalar(TreeValue::Str(key.into()), 0), line)?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.wrong("`:`"));
        }
        self.at += 1;
        Ok(())
    }

    fn scalar(&mut self) -> Result<TreeValue, SyntaxError> {
        let rest = &self.text[self.at..];
        for (word, value) in [
            ("null", TreeValue::Null),
            ("true", TreeValue::Bool(true, "true".into())),
            ("false", TreeValue::Bool(false, "false".into())),
        ] {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        match self.peek() {
            Some(b'"') => Ok(TreeValue::Str(self.string()?.into())),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.wrong("a value")),
        }
    }

    fn digits(&mut self) -> Result<(), SyntaxError> {
        if !self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return Err(self.wrong("a digit"));
        }
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<TreeValue, SyntaxError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        Ok(match text.parse::<i64>() {
            Ok(number) => TreeValue::Int(number, text.into()),
            Err(_) => TreeValue::Float(text.into()),
        })
    }

    fn string(&mut self) -> Result<Cow<'t, str>, SyntaxError> {
        self.at += 1;
        let mut out = Cow::Borrowed("");
        loop {
            let start = self.at;
            while self.peek().is_some_and(|b| b != b'"' && b != b'\\' && b >= 0x20) {
                self.at += 1;
            }
            let run = &self.text[start..self.at];
            match &mut out {
                Cow::Borrowed("") => out = Cow::Borrowed(run),
                text => text.to_mut().push_str(run),
            }
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    let c = self.escape()?;
                    out.to_mut().push(c);
                }
                _ => return Err(self.wrong("the string to go on or end in `\"`")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, SyntaxError> {
        let c = match self.peek() {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.wrong("one of `\"\\/bfnrtu` after a backslash")),
        };
        self.at += 1;
        Ok(c)
    }

    /// The character of `\uXXXX` or of a surrogate pair. Half a pair becomes U+FFFD.
    fn unicode(&mut self) -> Result<char, SyntaxError> {
        let first = self.hex()?;
        if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
            let before = self.at;
            self.at += 2;
            let second = self.hex()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = before;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex(&mut self) -> Result<u32, SyntaxError> {
        let mut code = 0;
        for _ in 0..4 {
            match self.peek().and_then(|b| char::from(b).to_digit(16)) {
                Some(digit) => code = code * 16 + digit,
                None => return Err(self.wrong("four hexadecimal digits")),
            }
            self.at += 1;
        }
        Ok(code)
    }
}

fn push(open: &mut Vec<Open>, inner: Open, line: u32) -> Result<(), SyntaxError> {
    if open.len() >= DEPTH {
        let message = format!("collections nest more than {DEPTH} deep");
        return Err(SyntaxError::new(line, message, "flatten the document"));
    }
    open.push(inner);
    Ok(())
}
