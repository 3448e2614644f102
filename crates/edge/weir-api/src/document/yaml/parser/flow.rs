//! Collections in brackets.

use super::{Event, Parsed, Parser, State, TokenKind};

impl<'t> Parser<'t> {
    pub(super) fn flow_seq(&mut self, is_first: bool) -> Parsed<'t> {
        if is_first || *self.kind()? == TokenKind::FlowEntry {
            self.scanner.next()?;
        } else if *self.kind()? != TokenKind::FlowSeqEnd {
            return self.fail("expected `,` or `]`");
        }
        let mark = self.scanner.peek()?.mark;
        match self.kind()? {
            TokenKind::FlowSeqEnd => self.close(),
            TokenKind::Key => {
                self.scanner.next()?;
                self.state = State::FlowPairKey;
                Ok((Event::Map(None), mark))
            }
            _ => self.node_then(State::FlowSeq, false, false),
        }
    }

    pub(super) fn flow_pair_key(&mut self) -> Parsed<'t> {
        match self.kind()? {
            TokenKind::Value | TokenKind::FlowEntry | TokenKind::FlowSeqEnd => {
                self.fail("expected a key after `?`")
            }
            _ => self.node_then(State::FlowPairValue, false, false),
        }
    }

    pub(super) fn flow_pair_value(&mut self) -> Parsed<'t> {
        let mark = self.scanner.peek()?.mark;
        if *self.kind()? != TokenKind::Value {
            return self.empty(State::FlowPairEnd, mark);
        }
        self.scanner.next()?;
        match self.kind()? {
            TokenKind::FlowEntry | TokenKind::FlowSeqEnd => self.empty(State::FlowPairEnd, mark),
            _ => self.node_then(State::FlowPairEnd, false, false),
        }
    }

    pub(super) fn flow_map_key(&mut self, is_first: bool) -> Parsed<'t> {
        if is_first || *self.kind()? == TokenKind::FlowEntry {
            self.scanner.next()?;
        } else if *self.kind()? != TokenKind::FlowMapEnd {
            return self.fail("expected `,` or `}`");
        }
        let mark = self.scanner.peek()?.mark;
        match self.kind()? {
            TokenKind::FlowMapEnd => self.close(),
            TokenKind::Key => {
                self.scanner.next()?;
                match self.kind()? {
                    TokenKind::Value | TokenKind::FlowEntry | TokenKind::FlowMapEnd => {
                        self.empty(State::FlowMapValue, mark)
                    }
                    _ => self.node_then(State::FlowMapValue, false, false),
                }
            }
            _ => self.node_then(State::FlowMapNoValue, false, false),
        }
    }

    pub(super) fn flow_map_value(&mut self) -> Parsed<'t> {
        let mark = self.scanner.peek()?.mark;
        if *self.kind()? != TokenKind::Value {
            return self.empty(State::FlowMapKey, mark);
        }
        self.scanner.next()?;
        match self.kind()? {
            TokenKind::FlowEntry | TokenKind::FlowMapEnd => self.empty(State::FlowMapKey, mark),
            _ => self.node_then(State::FlowMapKey, false, false),
        }
    }
}
