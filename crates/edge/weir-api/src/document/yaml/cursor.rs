//! A position in the text. All characters that the scanner compares are ASCII, except the line
//! breaks of YAML 1.1, so it works on bytes and cuts only at ASCII characters.

/// A position of a token, for errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The byte offset.
    pub(super) at: usize,
    /// The line, from 1.
    pub(super) line: u32,
}

/// Why the text is not YAML.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScanError {
    pub(super) mark: Mark,
    pub(super) message: &'static str,
    /// Where the incomplete value begins.
    pub(super) start: Option<Mark>,
}

impl ScanError {
    pub(super) fn new(mark: Mark, message: &'static str) -> Self {
        ScanError { mark, message, start: None }
    }

    pub(super) fn within(start: Mark, mark: Mark, message: &'static str) -> Self {
        ScanError { mark, message, start: Some(start) }
    }
}

pub(super) struct Cursor<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
    pub(super) line: u32,
    /// The offset of the first character of the line.
    line_start: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str, line: u32) -> Self {
        Cursor { text, at: 0, line, line_start: 0 }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { at: self.at, line: self.line }
    }

    /// The column in characters, from 0.
    pub(super) fn column(&self) -> usize {
        self.text[self.line_start..self.at].chars().count()
    }

    pub(super) fn is_line_start(&self) -> bool {
        self.at == self.line_start
    }

    /// The byte at this distance; 0 after the end. The text contains no NUL.
    #[inline]
    pub(super) fn peek(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    #[inline]
    pub(super) fn is_end(&self) -> bool {
        self.at >= self.text.len()
    }

    #[inline]
    pub(super) fn is_blank(&self, ahead: usize) -> bool {
        matches!(self.peek(ahead), b' ' | b'\t')
    }

    /// The length in bytes of a line break, or 0.
    #[inline]
    pub(super) fn break_length(&self, ahead: usize) -> usize {
        match self.peek(ahead) {
            b'\r' if self.peek(ahead + 1) == b'\n' => 2,
            b'\n' | b'\r' => 1,
            0xc2 if self.peek(ahead + 1) == 0x85 => 2,
            0xe2 if self.peek(ahead + 1) == 0x80 && matches!(self.peek(ahead + 2), 0xa8 | 0xa9) => {
                3
            }
            _ => 0,
        }
    }

    #[inline]
    pub(super) fn is_break(&self, ahead: usize) -> bool {
        self.break_length(ahead) > 0
    }

    /// Whether a space, tab, line break or the end follows.
    #[inline]
    pub(super) fn is_space(&self, ahead: usize) -> bool {
        match self.peek(ahead) {
            0 | b' ' | b'\t' | b'\n' | b'\r' => true,
            0xc2 | 0xe2 => self.is_break(ahead),
            _ => false,
        }
    }

    /// Whether the line begins with `---` or `...`.
    pub(super) fn is_document_indicator(&self) -> bool {
        self.is_line_start()
            && matches!(self.text.as_bytes().get(self.at..self.at + 3), Some(b"---" | b"..."))
            && self.is_space(3)
    }

    /// Skips ASCII characters of this line.
    #[inline]
    pub(super) fn skip(&mut self, count: usize) {
        self.at += count;
    }

    /// Skips one character that is not a line break.
    #[inline]
    pub(super) fn skip_char(&mut self) {
        self.at += match self.peek(0) {
            0..0x80 => 1,
            0x80..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0.. => 4,
        };
    }

    pub(super) fn skip_blanks(&mut self) {
        while self.is_blank(0) {
            self.at += 1;
        }
    }

    pub(super) fn skip_to_break(&mut self) {
        while !self.is_end() && !self.is_break(0) {
            self.skip_char();
        }
    }

    /// Skips a line break, if there is one, and returns its meaning.
    pub(super) fn take_break(&mut self) -> &'t str {
        let length = self.break_length(0);
        if length == 0 {
            return "";
        }
        let text = &self.text[self.at..self.at + length];
        self.at += length;
        self.line = self.line.saturating_add(1);
        self.line_start = self.at;
        // YAML keeps the breaks of paragraphs, and converts all others.
        if length == 3 { text } else { "\n" }
    }
}
