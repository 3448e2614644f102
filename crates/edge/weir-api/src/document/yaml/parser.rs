//! Turns tokens into events, with the grammar of libyaml.

mod flow;

use std::borrow::Cow;

use super::{
    cursor::{Mark, ScanError},
    scan::{Scanner, Token, TokenKind},
};

/// What comes next.
#[derive(Clone, Copy)]
enum State {
    FirstDocument,
    Document,
    DocumentContent,
    DocumentEnd,
    BlockNode,
    BlockSeq,
    IndentlessSeq,
    BlockMapKey,
    BlockMapValue,
    FlowSeqFirst,
    FlowSeq,
    FlowPairKey,
    FlowPairValue,
    FlowPairEnd,
    FlowMapFirst,
    FlowMapKey,
    FlowMapValue,
    FlowMapNoValue,
    End,
}

/// A part of a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<'t> {
    DocumentStart,
    Alias(&'t str),
    Seq(Option<&'t str>),
    Map(Option<&'t str>),
    /// The end of a list or mapping.
    End,
    Scalar {
        text: Cow<'t, str>,
        is_plain: bool,
        tag: Option<Tag>,
        anchor: Option<&'t str>,
    },
}

/// What a tag says about a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// It is resolved as if it had no quotes: `!!int`, `!!bool`.
    Resolved,
    /// It is text: `!!str`, and every tag that Kubernetes does not know.
    Text,
}

pub(super) struct Parser<'t> {
    scanner: Scanner<'t>,
    state: State,
    states: Vec<State>,
    /// The marks of the open collections.
    marks: Vec<Mark>,
    tags: Vec<(&'t str, &'t str)>,
}

type Parsed<'t> = Result<(Event<'t>, Mark), ScanError>;

impl<'t> Parser<'t> {
    /// A parser of the text, whose first line has this number.
    pub(super) fn new(text: &'t str, line: u32) -> Self {
        Parser {
            scanner: Scanner::new(text, line),
            state: State::FirstDocument,
            states: Vec::new(),
            marks: Vec::new(),
            tags: Vec::new(),
        }
    }

    /// The next event, or `None` at the end.
    pub(super) fn next_event(&mut self) -> Option<Parsed<'t>> {
        loop {
            return match self.state {
                State::End => None,
                State::FirstDocument => self.document_start(true).transpose(),
                State::Document => self.document_start(false).transpose(),
                State::DocumentEnd => match self.document_end() {
                    Ok(()) => continue,
                    Err(error) => Some(Err(error)),
                },
                _ => Some(self.content()),
            };
        }
    }

    fn content(&mut self) -> Parsed<'t> {
        match self.state {
            State::DocumentContent => self.document_content(),
            State::BlockSeq => self.block_seq(),
            State::IndentlessSeq => self.indentless_seq(),
            State::BlockMapKey => self.block_map_key(),
            State::BlockMapValue => self.block_map_value(),
            State::FlowSeqFirst => self.flow_seq(true),
            State::FlowSeq => self.flow_seq(false),
            State::FlowPairKey => self.flow_pair_key(),
            State::FlowPairValue => self.flow_pair_value(),
            State::FlowPairEnd => {
                self.state = State::FlowSeq;
                Ok((Event::End, self.scanner.peek()?.mark))
            }
            State::FlowMapFirst => self.flow_map_key(true),
            State::FlowMapKey => self.flow_map_key(false),
            State::FlowMapValue => self.flow_map_value(),
            State::FlowMapNoValue => {
                let mark = self.scanner.peek()?.mark;
                self.empty(State::FlowMapKey, mark)
            }
            State::BlockNode
            | State::FirstDocument
            | State::Document
            | State::DocumentEnd
            | State::End => self.node(true, false),
        }
    }

    fn kind(&mut self) -> Result<&TokenKind<'t>, ScanError> {
        Ok(&self.scanner.peek()?.kind)
    }

    fn document_start(&mut self, is_first: bool) -> Result<Option<(Event<'t>, Mark)>, ScanError> {
        while !is_first && *self.kind()? == TokenKind::DocumentEnd {
            self.scanner.next()?;
        }
        self.tags.clear();
        let token = self.scanner.peek()?;
        let mark = token.mark;
        if token.kind == TokenKind::StreamEnd {
            self.state = State::End;
            return Ok(None);
        }
        let mut is_explicit = !is_first;
        loop {
            match *self.kind()? {
                TokenKind::VersionDirective => (),
                TokenKind::TagDirective(handle, prefix) => self.tags.push((handle, prefix)),
                _ => break,
            }
            is_explicit = true;
            self.scanner.next()?;
        }
        self.states.push(State::DocumentEnd);
        let token = self.scanner.peek()?;
        if token.kind == TokenKind::DocumentStart {
            self.scanner.next()?;
            self.state = State::DocumentContent;
        } else if is_explicit {
            return Err(ScanError::new(token.mark, "expected `---` before another document"));
        } else {
            self.state = State::BlockNode;
        }
        Ok(Some((Event::DocumentStart, mark)))
    }

    fn document_content(&mut self) -> Parsed<'t> {
        let token = self.scanner.peek()?;
        let mark = token.mark;
        match token.kind {
            TokenKind::VersionDirective
            | TokenKind::TagDirective(..)
            | TokenKind::DocumentStart
            | TokenKind::DocumentEnd
            | TokenKind::StreamEnd => {
                let state = self.pop();
                self.empty(state, mark)
            }
            _ => self.node(true, false),
        }
    }

    fn document_end(&mut self) -> Result<(), ScanError> {
        if *self.kind()? == TokenKind::DocumentEnd {
            self.scanner.next()?;
        }
        self.state = State::Document;
        Ok(())
    }

    fn pop(&mut self) -> State {
        self.states.pop().unwrap_or(State::End)
    }

    /// A missing value.
    fn empty(&mut self, next: State, mark: Mark) -> Parsed<'t> {
        self.state = next;
        let text = Cow::Borrowed("");
        Ok((Event::Scalar { text, is_plain: true, tag: None, anchor: None }, mark))
    }

    fn node_then(&mut self, next: State, is_block: bool, indentless: bool) -> Parsed<'t> {
        self.states.push(next);
        self.node(is_block, indentless)
    }

    fn node(&mut self, is_block: bool, indentless: bool) -> Parsed<'t> {
        let start = self.scanner.peek()?.mark;
        let (mut anchor, mut tag) = (None, None);
        loop {
            match *self.kind()? {
                TokenKind::Anchor(name) if anchor.is_none() => anchor = Some(name),
                TokenKind::Tag(handle, suffix) if tag.is_none() => {
                    tag = Some(self.resolve(handle, suffix)?);
                }
                TokenKind::Alias(name) if anchor.is_none() && tag.is_none() => {
                    self.scanner.next()?;
                    self.state = self.pop();
                    return Ok((Event::Alias(name), start));
                }
                _ => break,
            }
            self.scanner.next()?;
        }
        let token = self.scanner.peek()?;
        let mark = token.mark;
        match token.kind {
            TokenKind::BlockEntry if indentless => {
                self.state = State::IndentlessSeq;
                Ok((Event::Seq(anchor), start))
            }
            TokenKind::Scalar(..) => {
                self.state = self.pop();
                let token = self.scanner.next()?;
                match token.kind {
                    TokenKind::Scalar(text, is_plain) => {
                        Ok((Event::Scalar { text, is_plain, tag, anchor }, start))
                    }
                    _ => Err(ScanError::new(mark, "expected a value")),
                }
            }
            TokenKind::FlowSeqStart => {
                Ok(self.open(State::FlowSeqFirst, Event::Seq(anchor), start))
            }
            TokenKind::FlowMapStart => {
                Ok(self.open(State::FlowMapFirst, Event::Map(anchor), start))
            }
            TokenKind::BlockSeqStart if is_block => {
                self.scanner.next()?;
                Ok(self.open(State::BlockSeq, Event::Seq(anchor), start))
            }
            TokenKind::BlockMapStart if is_block => {
                self.scanner.next()?;
                Ok(self.open(State::BlockMapKey, Event::Map(anchor), start))
            }
            _ if anchor.is_some() || tag.is_some() => {
                self.state = self.pop();
                let text = Cow::Borrowed("");
                Ok((Event::Scalar { text, is_plain: true, tag, anchor }, start))
            }
            _ => Err(unexpected(token, self.marks.last())),
        }
    }

    fn open(&mut self, state: State, event: Event<'t>, mark: Mark) -> (Event<'t>, Mark) {
        self.state = state;
        self.marks.push(mark);
        (event, mark)
    }

    fn close(&mut self) -> Parsed<'t> {
        self.state = self.pop();
        self.marks.pop();
        Ok((Event::End, self.scanner.next()?.mark))
    }

    fn fail<T>(&mut self, message: &'static str) -> Result<T, ScanError> {
        let start = self.marks.last().copied();
        let token = self.scanner.peek()?;
        Err(match start {
            Some(start) if is_end(token) => ScanError::new(start, UNFINISHED),
            _ => ScanError { mark: token.mark, message, start },
        })
    }

    fn resolve(&self, handle: &'t str, suffix: &'t str) -> Result<Tag, ScanError> {
        const CORE: &str = "tag:yaml.org,2002:";
        let known = self.tags.iter().find(|(known, _)| *known == handle).map(|(_, prefix)| *prefix);
        let prefix = match handle {
            "" => "",
            "!!" => known.unwrap_or(CORE),
            _ => match known {
                Some(prefix) => prefix,
                None => {
                    let message = "found a tag with an undefined `!handle!`";
                    return Err(ScanError::new(self.scanner.cursor.mark(), message));
                }
            },
        };
        let name = match prefix {
            CORE => Some(suffix),
            "" => suffix.strip_prefix(CORE),
            _ => None,
        };
        Ok(match name {
            Some("int" | "float" | "bool" | "null" | "timestamp") => Tag::Resolved,
            _ => Tag::Text,
        })
    }

    fn block_seq(&mut self) -> Parsed<'t> {
        let mark = self.scanner.peek()?.mark;
        match self.kind()? {
            TokenKind::BlockEntry => {
                self.scanner.next()?;
                match self.kind()? {
                    TokenKind::BlockEntry | TokenKind::BlockEnd => {
                        self.empty(State::BlockSeq, mark)
                    }
                    _ => self.node_then(State::BlockSeq, true, false),
                }
            }
            TokenKind::BlockEnd => self.close(),
            _ => self.fail("expected a list item `- ` or the end of the list"),
        }
    }

    fn indentless_seq(&mut self) -> Parsed<'t> {
        let mark = self.scanner.peek()?.mark;
        if *self.kind()? != TokenKind::BlockEntry {
            self.state = self.pop();
            return Ok((Event::End, mark));
        }
        self.scanner.next()?;
        match self.kind()? {
            TokenKind::BlockEntry | TokenKind::Key | TokenKind::Value | TokenKind::BlockEnd => {
                self.empty(State::IndentlessSeq, mark)
            }
            _ => self.node_then(State::IndentlessSeq, true, false),
        }
    }

    fn block_map_key(&mut self) -> Parsed<'t> {
        let mark = self.scanner.peek()?.mark;
        match self.kind()? {
            TokenKind::Key => {
                self.scanner.next()?;
                match self.kind()? {
                    TokenKind::Key | TokenKind::Value | TokenKind::BlockEnd => {
                        self.empty(State::BlockMapValue, mark)
                    }
                    _ => self.node_then(State::BlockMapValue, true, true),
                }
            }
            TokenKind::BlockEnd => self.close(),
            _ => self.fail("expected a key at the indentation of the mapping"),
        }
    }

    fn block_map_value(&mut self) -> Parsed<'t> {
        let mark = self.scanner.peek()?.mark;
        if *self.kind()? != TokenKind::Value {
            return self.empty(State::BlockMapKey, mark);
        }
        self.scanner.next()?;
        match self.kind()? {
            TokenKind::Key | TokenKind::Value | TokenKind::BlockEnd => {
                self.empty(State::BlockMapKey, mark)
            }
            _ => self.node_then(State::BlockMapKey, true, true),
        }
    }
}

/// The message about a collection that the end of the document interrupts.
const UNFINISHED: &str = "the list or mapping that begins here has no end";

fn is_end(token: &Token<'_>) -> bool {
    matches!(token.kind, TokenKind::StreamEnd | TokenKind::DocumentStart | TokenKind::DocumentEnd)
}

fn unexpected(token: &Token<'_>, start: Option<&Mark>) -> ScanError {
    let message = match token.kind {
        _ if is_end(token) => match start {
            Some(start) => return ScanError::new(*start, UNFINISHED),
            None => "expected a value, found the end of the document",
        },
        TokenKind::BlockEntry => "a list item `- ` cannot begin here",
        TokenKind::FlowEntry => "expected a value, found `,`",
        TokenKind::FlowSeqEnd => "expected a value, found `]`",
        TokenKind::FlowMapEnd => "expected a value, found `}`",
        _ => "expected a value",
    };
    ScanError { mark: token.mark, message, start: start.copied() }
}
