//! Anchors, aliases, tags and directives.

use super::{
    cursor::{Mark, ScanError},
    scan::{Scanner, Token, TokenKind},
};

impl<'t> Scanner<'t> {
    /// An anchor `&name` or an alias `*name`.
    pub(super) fn anchor(&mut self, is_alias: bool) -> Result<Token<'t>, ScanError> {
        let mark = self.cursor.mark();
        self.cursor.skip(1);
        let name = self.word();
        let ends = self.cursor.is_space(0)
            || matches!(self.cursor.peek(0), b'?' | b':' | b',' | b']' | b'}' | b'%' | b'@' | b'`');
        if name.is_empty() || !ends {
            let message = "the name of an anchor has only letters, digits, `-` and `_`";
            return Err(ScanError::new(mark, message));
        }
        let kind = if is_alias { TokenKind::Alias(name) } else { TokenKind::Anchor(name) };
        Ok(Token { kind, mark })
    }

    pub(super) fn tag(&mut self) -> Result<Token<'t>, ScanError> {
        let mark = self.cursor.mark();
        let (handle, suffix) = if self.cursor.peek(1) == b'<' {
            self.cursor.skip(2);
            let tag = self.uri(b",[]");
            if tag.is_empty() || self.cursor.peek(0) != b'>' {
                return Err(ScanError::new(mark, "expected `>` at the end of the tag"));
            }
            self.cursor.skip(1);
            ("", tag)
        } else {
            let start = self.cursor.at;
            let handle = self.tag_handle();
            let suffix = self.uri(b",");
            if handle.len() > 1 && handle.ends_with('!') {
                if suffix.is_empty() {
                    return Err(ScanError::new(mark, "expected the name of a tag"));
                }
                (handle, suffix)
            } else {
                ("", &self.cursor.text[start..self.cursor.at])
            }
        };
        let ends = self.cursor.is_space(0)
            || (self.in_flow() && matches!(self.cursor.peek(0), b']' | b'}'));
        if !ends {
            return Err(ScanError::new(mark, "expected a space after the tag"));
        }
        Ok(Token { kind: TokenKind::Tag(handle, suffix), mark })
    }

    /// `!`, `!!` or `!name!`, or `!name` without an end.
    fn tag_handle(&mut self) -> &'t str {
        let start = self.cursor.at;
        self.cursor.skip(1);
        self.word();
        if self.cursor.peek(0) == b'!' {
            self.cursor.skip(1);
        }
        &self.cursor.text[start..self.cursor.at]
    }

    pub(super) fn directive(&mut self) -> Result<Token<'t>, ScanError> {
        let mark = self.cursor.mark();
        self.cursor.skip(1);
        let name = self.word();
        self.cursor.skip_blanks();
        let kind = match name {
            "YAML" => self.version(mark)?,
            "TAG" => self.tag_directive(mark)?,
            _ => return Err(ScanError::new(mark, "expected the directive %YAML or %TAG")),
        };
        self.cursor.skip_blanks();
        if self.cursor.peek(0) == b'#' {
            self.cursor.skip_to_break();
        }
        if !self.cursor.is_end() && !self.cursor.is_break(0) {
            return Err(ScanError::new(mark, "expected the end of the line after the directive"));
        }
        self.cursor.take_break();
        Ok(Token { kind, mark })
    }

    fn version(&mut self, mark: Mark) -> Result<TokenKind<'t>, ScanError> {
        let version = self.take_while(|byte| byte.is_ascii_digit() || byte == b'.');
        match version {
            "1.1" | "1.2" => Ok(TokenKind::VersionDirective),
            _ => Err(ScanError::new(mark, "expected YAML version 1.1 or 1.2")),
        }
    }

    fn tag_directive(&mut self, mark: Mark) -> Result<TokenKind<'t>, ScanError> {
        let handle = if self.cursor.peek(0) == b'!' { self.tag_handle() } else { "" };
        let is_separate = self.cursor.is_blank(0);
        self.cursor.skip_blanks();
        let prefix = self.uri(b",[]");
        if !handle.ends_with('!') || !is_separate || prefix.is_empty() || !self.cursor.is_space(0) {
            return Err(ScanError::new(mark, "expected `%TAG !handle! prefix`"));
        }
        Ok(TokenKind::TagDirective(handle, prefix))
    }

    fn word(&mut self) -> &'t str {
        self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    }

    /// The characters of a URI, and some more.
    fn uri(&mut self, more: &[u8]) -> &'t str {
        self.take_while(|byte| {
            byte.is_ascii_alphanumeric()
                || b"-_;/?:@&=+$.!~*'()%".contains(&byte)
                || more.contains(&byte)
        })
    }

    /// The ASCII characters up to one that does not fit.
    fn take_while(&mut self, fits: impl Fn(u8) -> bool) -> &'t str {
        let start = self.cursor.at;
        while !self.cursor.is_end() && fits(self.cursor.peek(0)) {
            self.cursor.skip(1);
        }
        &self.cursor.text[start..self.cursor.at]
    }
}
