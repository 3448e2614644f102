//! Turns text into tokens, with the algorithm of libyaml, which kubectl's parser is derived from.
//!
//! Nothing marks the beginning of a key in a mapping, only the `:` after it. The scanner therefore
//! keeps the tokens since each position where such a *simple key* may begin. A simple key ends in
//! its line and after at most 1024 characters, so the queue is short.

use std::{borrow::Cow, collections::VecDeque};

use super::cursor::{Cursor, Mark, ScanError};

/// The most characters of a key without `?`.
const MAX_KEY: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenKind<'t> {
    StreamEnd,
    VersionDirective,
    TagDirective(&'t str, &'t str),
    DocumentStart,
    DocumentEnd,
    BlockSeqStart,
    BlockMapStart,
    BlockEnd,
    FlowSeqStart,
    FlowSeqEnd,
    FlowMapStart,
    FlowMapEnd,
    BlockEntry,
    FlowEntry,
    Key,
    Value,
    Alias(&'t str),
    Anchor(&'t str),
    /// The handle, empty if the tag is complete, and the rest.
    Tag(&'t str, &'t str),
    /// The text, and whether it is without quotes.
    Scalar(Cow<'t, str>, bool),
}

#[derive(Debug)]
pub(super) struct Token<'t> {
    pub(super) kind: TokenKind<'t>,
    pub(super) mark: Mark,
}

/// A position where a key may begin.
#[derive(Clone, Copy, Default)]
struct SimpleKey {
    is_possible: bool,
    /// Whether the text is an error unless it is a key.
    is_required: bool,
    /// The number of tokens before it.
    token: usize,
    mark: Mark,
    column: usize,
}

pub(super) struct Scanner<'t> {
    pub(super) cursor: Cursor<'t>,
    tokens: VecDeque<Token<'t>>,
    /// The number of tokens taken from the queue.
    taken: usize,
    /// The column of the current block collection, -1 outside all.
    pub(super) indent: i64,
    indents: Vec<i64>,
    /// For each open bracket and the block context, the last position where a key may begin.
    keys: Vec<SimpleKey>,
    pub(super) allows_key: bool,
}

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t str, line: u32) -> Self {
        Scanner {
            cursor: Cursor::new(text, line),
            tokens: VecDeque::new(),
            taken: 0,
            indent: -1,
            indents: Vec::new(),
            keys: vec![SimpleKey::default()],
            allows_key: true,
        }
    }

    pub(super) fn in_flow(&self) -> bool {
        self.keys.len() > 1
    }

    /// The next token. After the end it is `StreamEnd` forever.
    pub(super) fn peek(&mut self) -> Result<&Token<'t>, ScanError> {
        while self.needs_more()? {
            self.fetch()?;
        }
        self.tokens.front().ok_or(ScanError::new(self.cursor.mark(), "unexpected end of the text"))
    }

    pub(super) fn next(&mut self) -> Result<Token<'t>, ScanError> {
        self.peek()?;
        self.taken += 1;
        self.tokens
            .pop_front()
            .ok_or(ScanError::new(self.cursor.mark(), "unexpected end of the text"))
    }

    fn needs_more(&mut self) -> Result<bool, ScanError> {
        if self.tokens.is_empty() {
            return Ok(true);
        }
        for key in &self.keys {
            if key.is_possible && key.token == self.taken {
                return self.is_still_possible(key);
            }
        }
        Ok(false)
    }

    fn is_still_possible(&self, key: &SimpleKey) -> Result<bool, ScanError> {
        if !key.is_possible {
            return Ok(false);
        }
        let is_near = || {
            let passed = &self.cursor.text[key.mark.at..self.cursor.at];
            passed.len() <= MAX_KEY || passed.chars().nth(MAX_KEY).is_none()
        };
        match key.mark.line == self.cursor.line && is_near() {
            true => Ok(true),
            false if key.is_required => Err(no_colon(key)),
            false => Ok(false),
        }
    }

    fn fetch(&mut self) -> Result<(), ScanError> {
        self.skip_to_token();
        if !self.in_flow() {
            self.close_blocks(self.cursor.column() as i64);
        }
        if self.cursor.is_end() {
            self.reset()?;
            self.keys.iter_mut().for_each(|key| key.is_possible = false);
            return self.push_indicator(TokenKind::StreamEnd, 0);
        }
        let first = self.cursor.peek(0);
        if first == b'%' && self.cursor.is_line_start() {
            self.reset()?;
            let token = self.directive()?;
            self.tokens.push_back(token);
            return Ok(());
        }
        if self.cursor.is_document_indicator() {
            self.reset()?;
            let kind =
                if first == b'-' { TokenKind::DocumentStart } else { TokenKind::DocumentEnd };
            return self.push_indicator(kind, 3);
        }
        let ends = self.cursor.is_space(1);
        match first {
            b'[' => self.open_flow(TokenKind::FlowSeqStart),
            b'{' => self.open_flow(TokenKind::FlowMapStart),
            b']' => self.close_flow(TokenKind::FlowSeqEnd),
            b'}' => self.close_flow(TokenKind::FlowMapEnd),
            b',' => {
                self.remove_key()?;
                self.allows_key = true;
                self.push_indicator(TokenKind::FlowEntry, 1)
            }
            b'-' if ends => self.block_entry(),
            b'?' if ends || self.in_flow() => self.explicit_key(),
            b':' if ends || self.in_flow() => self.value(),
            b'*' | b'&' | b'!' | b'\'' | b'"' => {
                self.save_key()?;
                self.allows_key = false;
                let token = match first {
                    b'!' => self.tag()?,
                    b'\'' | b'"' => self.quoted(first)?,
                    _ => self.anchor(first == b'*')?,
                };
                self.tokens.push_back(token);
                Ok(())
            }
            b'|' | b'>' if !self.in_flow() => {
                self.remove_key()?;
                self.allows_key = true;
                let token = self.block_scalar(first == b'|')?;
                self.tokens.push_back(token);
                Ok(())
            }
            b'\t' | b'#' | b'|' | b'>' | b'%' | b'@' | b'`' => {
                let message = match first {
                    b'\t' => "found a tab that cannot start a value",
                    b'@' | b'`' => "a value cannot begin with `@` or a backtick",
                    _ => "found a character that cannot start a value",
                };
                Err(ScanError::new(self.cursor.mark(), message))
            }
            _ => {
                self.save_key()?;
                self.allows_key = false;
                let token = self.plain()?;
                self.tokens.push_back(token);
                Ok(())
            }
        }
    }

    fn skip_to_token(&mut self) {
        loop {
            if self.cursor.is_line_start()
                && self.cursor.text[self.cursor.at..].starts_with('\u{feff}')
            {
                self.cursor.skip_char();
            }
            let allows_tab = self.in_flow() || !self.allows_key;
            while self.cursor.peek(0) == b' ' || (allows_tab && self.cursor.peek(0) == b'\t') {
                self.cursor.skip(1);
            }
            if self.cursor.peek(0) == b'#' {
                self.cursor.skip_to_break();
            }
            if !self.cursor.is_break(0) {
                return;
            }
            self.cursor.take_break();
            if !self.in_flow() {
                self.allows_key = true;
            }
        }
    }

    /// Ends all block collections, before something that belongs to the whole text.
    fn reset(&mut self) -> Result<(), ScanError> {
        if !self.in_flow() {
            self.close_blocks(-1);
        }
        self.remove_key()?;
        self.allows_key = false;
        Ok(())
    }

    pub(super) fn push_indicator(
        &mut self,
        kind: TokenKind<'t>,
        length: usize,
    ) -> Result<(), ScanError> {
        let mark = self.cursor.mark();
        self.cursor.skip(length);
        self.tokens.push_back(Token { kind, mark });
        Ok(())
    }

    fn save_key(&mut self) -> Result<(), ScanError> {
        if !self.allows_key {
            return Ok(());
        }
        let column = if self.in_flow() { 0 } else { self.cursor.column() };
        let key = SimpleKey {
            is_possible: true,
            is_required: !self.in_flow() && self.indent == column as i64,
            token: self.taken + self.tokens.len(),
            mark: self.cursor.mark(),
            column,
        };
        self.remove_key()?;
        if let Some(last) = self.keys.last_mut() {
            *last = key;
        }
        Ok(())
    }

    fn remove_key(&mut self) -> Result<(), ScanError> {
        match self.keys.last_mut() {
            Some(key) if key.is_possible && key.is_required => Err(no_colon(key)),
            Some(key) => {
                key.is_possible = false;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Begins a block collection if the column is further right than the current one.
    fn open_block(&mut self, column: usize, kind: TokenKind<'t>, mark: Mark, at: Option<usize>) {
        let column = column as i64;
        if self.in_flow() || self.indent >= column {
            return;
        }
        self.indents.push(self.indent);
        self.indent = column;
        self.insert(Token { kind, mark }, at);
    }

    /// Adds a token, before the token with this number if it is given.
    fn insert(&mut self, token: Token<'t>, at: Option<usize>) {
        match at.and_then(|at| at.checked_sub(self.taken)) {
            Some(index) if index <= self.tokens.len() => self.tokens.insert(index, token),
            _ => self.tokens.push_back(token),
        }
    }

    /// Ends the block collections that are further right than the column.
    fn close_blocks(&mut self, column: i64) {
        while self.indent > column {
            let mark = self.cursor.mark();
            self.tokens.push_back(Token { kind: TokenKind::BlockEnd, mark });
            self.indent = self.indents.pop().unwrap_or(-1);
        }
    }

    fn open_flow(&mut self, kind: TokenKind<'t>) -> Result<(), ScanError> {
        self.save_key()?;
        self.keys.push(SimpleKey::default());
        self.allows_key = true;
        self.push_indicator(kind, 1)
    }

    fn close_flow(&mut self, kind: TokenKind<'t>) -> Result<(), ScanError> {
        self.remove_key()?;
        if self.in_flow() {
            self.keys.pop();
        }
        self.allows_key = false;
        self.push_indicator(kind, 1)
    }

    fn block_entry(&mut self) -> Result<(), ScanError> {
        if !self.in_flow() {
            if !self.allows_key {
                let message = "a list item `- ` cannot begin here";
                return Err(ScanError::new(self.cursor.mark(), message));
            }
            let (column, mark) = (self.cursor.column(), self.cursor.mark());
            self.open_block(column, TokenKind::BlockSeqStart, mark, None);
        }
        self.remove_key()?;
        self.allows_key = true;
        self.push_indicator(TokenKind::BlockEntry, 1)
    }

    fn explicit_key(&mut self) -> Result<(), ScanError> {
        if !self.in_flow() {
            if !self.allows_key {
                let message = "a key `? ` cannot begin here";
                return Err(ScanError::new(self.cursor.mark(), message));
            }
            let (column, mark) = (self.cursor.column(), self.cursor.mark());
            self.open_block(column, TokenKind::BlockMapStart, mark, None);
        }
        self.remove_key()?;
        self.allows_key = !self.in_flow();
        self.push_indicator(TokenKind::Key, 1)
    }

    fn value(&mut self) -> Result<(), ScanError> {
        let key = self.keys.last().copied().unwrap_or_default();
        if self.is_still_possible(&key)? {
            let number = Some(key.token);
            self.insert(Token { kind: TokenKind::Key, mark: key.mark }, number);
            self.open_block(key.column, TokenKind::BlockMapStart, key.mark, number);
            if let Some(key) = self.keys.last_mut() {
                key.is_possible = false;
            }
            self.allows_key = false;
        } else {
            if !self.in_flow() {
                if !self.allows_key {
                    let message =
                        "a mapping value is not allowed here; quote text that contains `: `";
                    return Err(ScanError::new(self.cursor.mark(), message));
                }
                let (column, mark) = (self.cursor.column(), self.cursor.mark());
                self.open_block(column, TokenKind::BlockMapStart, mark, None);
            }
            self.allows_key = !self.in_flow();
        }
        self.push_indicator(TokenKind::Value, 1)
    }
}

fn no_colon(key: &SimpleKey) -> ScanError {
    ScanError::new(key.mark, "expected `:` after this key")
}
