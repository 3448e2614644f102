//! Scalars after `|` and `>`.

use std::borrow::Cow;

use super::{
    cursor::{Mark, ScanError},
    scan::{Scanner, Token, TokenKind},
};

/// The line breaks at the end that belong to the text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chomp {
    None,
    One,
    All,
}

impl<'t> Scanner<'t> {
    pub(super) fn block_scalar(&mut self, is_literal: bool) -> Result<Token<'t>, ScanError> {
        let mark = self.cursor.mark();
        self.cursor.skip(1);
        let (chomp, increment) = self.block_header(mark)?;
        let mut indent = increment.map(|increment| self.indent.max(0) + increment);
        let mut text = String::new();
        // The break after the last line, and the empty lines after it.
        let mut last_break = "";
        let mut empty_lines = String::new();
        let mut after_blank = false;
        self.skip_indentation(&mut indent, &mut empty_lines, mark)?;
        while !self.cursor.is_end() && Some(self.cursor.column() as i64) == indent {
            let is_blank = self.cursor.is_blank(0);
            if !is_literal && last_break == "\n" && !after_blank && !is_blank {
                if empty_lines.is_empty() {
                    text.push(' ');
                }
            } else {
                text.push_str(last_break);
            }
            text.push_str(&empty_lines);
            empty_lines.clear();
            after_blank = is_blank;
            let start = self.cursor.at;
            self.cursor.skip_to_break();
            text.push_str(&self.cursor.text[start..self.cursor.at]);
            last_break = self.cursor.take_break();
            self.skip_indentation(&mut indent, &mut empty_lines, mark)?;
        }
        if chomp != Chomp::None {
            text.push_str(last_break);
        }
        if chomp == Chomp::All {
            text.push_str(&empty_lines);
        }
        Ok(Token { kind: TokenKind::Scalar(Cow::Owned(text), false), mark })
    }

    /// The rest of the line after `|` or `>`: how to end the text, and the indentation if given.
    fn block_header(&mut self, mark: Mark) -> Result<(Chomp, Option<i64>), ScanError> {
        let (mut chomp, mut increment) = (None, None);
        loop {
            match self.cursor.peek(0) {
                b'+' if chomp.is_none() => chomp = Some(Chomp::All),
                b'-' if chomp.is_none() => chomp = Some(Chomp::None),
                digit @ b'1'..=b'9' if increment.is_none() => {
                    increment = Some(i64::from(digit - b'0'));
                }
                _ => break,
            }
            self.cursor.skip(1);
        }
        self.cursor.skip_blanks();
        if self.cursor.peek(0) == b'#' {
            self.cursor.skip_to_break();
        }
        if !self.cursor.is_end() && !self.cursor.is_break(0) {
            let message = "expected the end of the line after `|` or `>`";
            return Err(ScanError::within(mark, self.cursor.mark(), message));
        }
        self.cursor.take_break();
        Ok((chomp.unwrap_or(Chomp::One), increment))
    }

    /// Skips empty lines and the indentation after them. The first line with text defines the
    /// indentation.
    fn skip_indentation(
        &mut self,
        indent: &mut Option<i64>,
        empty_lines: &mut String,
        mark: Mark,
    ) -> Result<(), ScanError> {
        let mut deepest = 0;
        loop {
            let mut column = self.cursor.column() as i64;
            while self.cursor.peek(0) == b' ' && indent.is_none_or(|indent| column < indent) {
                self.cursor.skip(1);
                column += 1;
            }
            deepest = deepest.max(column);
            if self.cursor.peek(0) == b'\t' && indent.is_none_or(|indent| column < indent) {
                let message = "found a tab in the indentation of a text after `|` or `>`";
                return Err(ScanError::within(mark, self.cursor.mark(), message));
            }
            if !self.cursor.is_break(0) {
                break;
            }
            empty_lines.push_str(self.cursor.take_break());
        }
        if indent.is_none() {
            *indent = Some(deepest.max(self.indent + 1).max(1));
        }
        Ok(())
    }
}
