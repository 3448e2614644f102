//! Untrusted text, made safe for a terminal.

use std::fmt::{self, Write};

/// The maximum length of a text, in characters. Only hostile input is longer.
const MAX_CHARACTERS: usize = 4096;

/// Displays text from manifests, file names or the command line. Control characters are escaped (an
/// escape character becomes `\u{1b}`), so that the text stays on its line and cannot imitate other
/// output.
pub(crate) struct Plain<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for Plain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut filter = Filter { out: f, characters: 0 };
        write!(filter, "{}", self.0)?;
        match filter.characters.saturating_sub(MAX_CHARACTERS) {
            0 => Ok(()),
            more => write!(f, "… and {more} more characters"),
        }
    }
}

struct Filter<'a, 'f> {
    out: &'a mut fmt::Formatter<'f>,
    characters: usize,
}

impl fmt::Write for Filter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            self.characters += 1;
            match character {
                _ if self.characters > MAX_CHARACTERS => (),
                character if is_control(character) => {
                    write!(self.out, "{}", character.escape_unicode())?
                }
                character => self.out.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Whether a terminal interprets the character instead of showing it, or shows nothing: control
/// characters, line separators, changes of the writing direction, and characters without width.
fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let hostile = "a\u{1b}[31mb\rc\nd\u{7}e\u{9b}f\u{202e}g\u{200b}h\u{feff}i é→✓";
        assert_eq!(
            Plain(hostile).to_string(),
            r"a\u{1b}[31mb\u{d}c\u{a}d\u{7}e\u{9b}f\u{202e}g\u{200b}h\u{feff}i é→✓"
        );
    }

    #[test]
    fn a_long_text_is_truncated() {
        let text = Plain("é".repeat(5000)).to_string();
        assert_eq!(text, format!("{}… and 904 more characters", "é".repeat(4096)));
        assert_eq!(Plain("é".repeat(4096)).to_string(), "é".repeat(4096));
    }
}
