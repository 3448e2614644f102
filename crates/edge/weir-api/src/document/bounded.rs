use std::{cell::Cell, rc::Rc};

use saphyr_parser::{Input, StrInput};

/// The most tokens that the scanner may read ahead before it emits the first of them.
const MAX_TOKENS: u32 = 2_000_000;

/// How far the scanner has read ahead since the last event.
///
/// A flow collection in brackets may be the key of a mapping, so the scanner keeps all of its
/// tokens until it ends. Without a bound, a few megabytes of brackets would use gigabytes of
/// memory.
#[derive(Clone, Default)]
pub(super) struct Ahead(Rc<Cell<u32>>);

impl Ahead {
    /// An event was produced.
    pub(super) fn reset(&self) {
        self.0.set(0);
    }

    /// Whether the scanner exceeded the bound and was stopped.
    pub(super) fn is_too_far(&self) -> bool {
        self.0.get() > MAX_TOKENS
    }
}

/// Text that appears to end when the scanner reads too far ahead.
pub(super) struct Bounded<'t> {
    text: StrInput<'t>,
    ahead: Ahead,
}

impl<'t> Bounded<'t> {
    pub(super) fn new(text: &'t str, ahead: Ahead) -> Self {
        Bounded { text: StrInput::new(text), ahead }
    }
}

impl Input for Bounded<'_> {
    #[inline]
    fn lookahead(&mut self, count: usize) {
        // The scanner requests four characters once per token, and per line of a long scalar.
        if count == 4 {
            self.ahead.0.set(self.ahead.0.get().saturating_add(1));
            if self.ahead.is_too_far() {
                self.text = StrInput::new("");
            }
        }
        self.text.lookahead(count);
    }

    #[inline]
    fn buflen(&self) -> usize {
        self.text.buflen()
    }

    #[inline]
    fn bufmaxlen(&self) -> usize {
        self.text.bufmaxlen()
    }

    #[inline]
    fn raw_read_ch(&mut self) -> char {
        self.text.raw_read_ch()
    }

    #[inline]
    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        self.text.raw_read_non_breakz_ch()
    }

    #[inline]
    fn skip(&mut self) {
        self.text.skip();
    }

    #[inline]
    fn skip_n(&mut self, count: usize) {
        self.text.skip_n(count);
    }

    #[inline]
    fn peek(&self) -> char {
        self.text.peek()
    }

    #[inline]
    fn peek_nth(&self, n: usize) -> char {
        self.text.peek_nth(n)
    }

    #[inline]
    fn peek_opt(&self) -> Option<char> {
        self.text.peek_opt()
    }

    #[inline]
    fn skip_while_non_breakz(&mut self) -> usize {
        self.text.skip_while_non_breakz()
    }

    #[inline]
    fn skip_while_blank(&mut self) -> usize {
        self.text.skip_while_blank()
    }
}
