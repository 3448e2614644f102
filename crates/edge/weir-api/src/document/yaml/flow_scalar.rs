//! Scalars without quotes, and in quotes.

use std::{borrow::Cow, mem};

use super::{
    cursor::{Mark, ScanError},
    scan::{Scanner, Token, TokenKind},
};

/// The line breaks and indentation between two parts of a scalar.
#[derive(Default)]
struct Gap {
    /// The first line break.
    first: String,
    /// The line breaks after it.
    others: String,
}

impl Gap {
    fn add(&mut self, text: &str, is_first: bool) {
        if is_first { &mut self.first } else { &mut self.others }.push_str(text);
    }

    /// One line break is a space; of several, the first disappears.
    fn fold_into(&mut self, text: &mut String) {
        match (&*self.first, &*self.others) {
            ("\n", "") => text.push(' '),
            ("\n", others) => text.push_str(others),
            (first, others) => text.extend([first, others]),
        }
        self.first.clear();
        self.others.clear();
    }
}

impl<'t> Scanner<'t> {
    pub(super) fn plain(&mut self) -> Result<Token<'t>, ScanError> {
        let mark = self.cursor.mark();
        let indent = self.indent + 1;
        // The text before the current line, and the part of the current line.
        let mut folded: Option<String> = None;
        let (mut start, mut end) = (mark.at, mark.at);
        let mut gap = Gap::default();
        let mut after_break = false;
        loop {
            if self.cursor.is_document_indicator() || self.cursor.peek(0) == b'#' {
                break;
            }
            let word = self.cursor.at;
            self.skip_plain_word();
            if self.cursor.at > word {
                if mem::take(&mut after_break) {
                    let text = folded.get_or_insert_default();
                    text.push_str(&self.cursor.text[start..end]);
                    gap.fold_into(text);
                    start = word;
                }
                end = self.cursor.at;
            }
            if !self.cursor.is_blank(0) && !self.cursor.is_break(0) {
                break;
            }
            while self.cursor.is_blank(0) || self.cursor.is_break(0) {
                if self.cursor.is_break(0) {
                    let text = self.cursor.take_break();
                    gap.add(text, !after_break);
                    after_break = true;
                    continue;
                }
                if after_break && self.cursor.peek(0) == b'\t' && self.is_left_of(indent) {
                    let message = "found a tab in the indentation";
                    return Err(ScanError::within(mark, self.cursor.mark(), message));
                }
                self.cursor.skip(1);
            }
            if !self.in_flow() && self.is_left_of(indent) {
                break;
            }
        }
        if after_break {
            self.allows_key = true;
        }
        let last = &self.cursor.text[start..end];
        let text = match folded {
            None => Cow::Borrowed(last),
            Some(text) => Cow::Owned(text + last),
        };
        Ok(Token { kind: TokenKind::Scalar(text, true), mark })
    }

    fn is_left_of(&self, indent: i64) -> bool {
        (self.cursor.column() as i64) < indent
    }

    /// Skips text up to a space, or a character that ends the scalar.
    fn skip_plain_word(&mut self) {
        let in_flow = self.in_flow();
        loop {
            match self.cursor.peek(0) {
                0 | b' ' | b'\t' | b'\n' | b'\r' => return,
                b':' if self.cursor.is_space(1) => return,
                b',' | b'[' | b']' | b'{' | b'}' if in_flow => return,
                0xc2 | 0xe2 if self.cursor.is_break(0) => return,
                0x80.. => self.cursor.skip_char(),
                _ => self.cursor.skip(1),
            }
        }
    }

    pub(super) fn quoted(&mut self, quote: u8) -> Result<Token<'t>, ScanError> {
        let mark = self.cursor.mark();
        self.cursor.skip(1);
        let start = self.cursor.at;
        let mut text = String::new();
        let mut gap = Gap::default();
        loop {
            if self.cursor.is_document_indicator() {
                let message = "found the end of the document in a quoted string";
                return Err(ScanError::new(mark, message));
            }
            // The part without escapes; usually that is all.
            let part = self.cursor.at;
            self.skip_quoted(quote);
            let literal = &self.cursor.text[part..self.cursor.at];
            let next = self.cursor.peek(0);
            if next == quote && self.cursor.peek(1) == quote && quote == b'\'' {
                text.push_str(literal);
                text.push('\'');
                self.cursor.skip(2);
            } else if next == quote {
                self.cursor.skip(1);
                let text = if part == start {
                    Cow::Borrowed(literal)
                } else {
                    text.push_str(literal);
                    Cow::Owned(text)
                };
                return Ok(Token { kind: TokenKind::Scalar(text, false), mark });
            } else if next == b'\\' && self.cursor.is_break(1) {
                text.push_str(literal);
                self.cursor.skip(1);
                self.cursor.take_break();
                self.skip_gap(&mut gap, true);
                gap.fold_into(&mut text);
            } else if next == b'\\' {
                text.push_str(literal);
                text.push(self.escape(mark)?);
            } else if self.cursor.is_end() {
                return Err(ScanError::new(mark, "the quoted string has no end"));
            } else {
                text.push_str(literal.trim_end_matches([' ', '\t']));
                self.skip_gap(&mut gap, false);
                gap.fold_into(&mut text);
            }
        }
    }

    /// Skips to a quote, an escape or a line break.
    fn skip_quoted(&mut self, quote: u8) {
        loop {
            match self.cursor.peek(0) {
                0 | b'\n' | b'\r' => return,
                b'\\' if quote == b'"' => return,
                byte if byte == quote => return,
                0xc2 | 0xe2 if self.cursor.is_break(0) => return,
                0x80.. => self.cursor.skip_char(),
                _ => self.cursor.skip(1),
            }
        }
    }

    /// Skips line breaks and the indentation after them.
    fn skip_gap(&mut self, gap: &mut Gap, mut after_break: bool) {
        while self.cursor.is_blank(0) || self.cursor.is_break(0) {
            if self.cursor.is_break(0) {
                let text = self.cursor.take_break();
                gap.add(text, !after_break);
                after_break = true;
            } else {
                self.cursor.skip(1);
            }
        }
    }

    fn escape(&mut self, start: Mark) -> Result<char, ScanError> {
        let digits = match self.cursor.peek(1) {
            b'x' => 2,
            b'u' => 4,
            b'U' => 8,
            byte => {
                let Some(meaning) = simple_escape(byte) else {
                    let message = "found an unknown escape sequence; in double quotes, write `\\\\` for a backslash";
                    return Err(ScanError::within(start, self.cursor.mark(), message));
                };
                self.cursor.skip(2);
                return Ok(meaning);
            }
        };
        let code = self.cursor.text.get(self.cursor.at + 2..self.cursor.at + 2 + digits);
        let code = code.filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        let Some(meaning) = code.and_then(char::from_u32) else {
            let message = "found an escape sequence without a valid character code";
            return Err(ScanError::within(start, self.cursor.mark(), message));
        };
        self.cursor.skip(2 + digits);
        Ok(meaning)
    }
}

fn simple_escape(byte: u8) -> Option<char> {
    Some(match byte {
        b'0' => '\0',
        b'a' => '\x07',
        b'b' => '\x08',
        b't' | b'\t' => '\t',
        b'n' => '\n',
        b'v' => '\x0b',
        b'f' => '\x0c',
        b'r' => '\r',
        b'e' => '\x1b',
        b' ' | b'"' | b'/' | b'\\' => char::from(byte),
        b'N' => '\u{85}',
        b'_' => '\u{a0}',
        b'L' => '\u{2028}',
        b'P' => '\u{2029}',
        _ => return None,
    })
}
