//! Text from outside, as it may be shown on a terminal.

use std::fmt::{self, Write};

/// Longer than this, and a text is cut: no name and no sentence is, unless someone wants to flood the screen.
const LONGEST: usize = 4096;

/// A text that came from manifests, file names or the command line. Whatever a terminal would obey is spelled out (an
/// escape is `\u{1b}`), so that it stays in its line and cannot pretend to be something else.
pub(crate) struct Plain<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for Plain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut filter = Filter { out: f, letters: 0 };
        write!(filter, "{}", self.0)?;
        match filter.letters.saturating_sub(LONGEST) {
            0 => Ok(()),
            more => write!(f, "… and {more} more letters"),
        }
    }
}

struct Filter<'a, 'f> {
    out: &'a mut fmt::Formatter<'f>,
    letters: usize,
}

impl fmt::Write for Filter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            self.letters += 1;
            match letter {
                _ if self.letters > LONGEST => (),
                letter if is_obeyed(letter) => write!(self.out, "{}", letter.escape_unicode())?,
                letter => self.out.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// Whether a terminal does something at this letter instead of showing it: controls, line ends, changes of direction.
fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_spelled_out() {
        let evil = "a\u{1b}[31mb\rc\nd\u{7}e\u{9b}f\u{202e}g é→✓";
        assert_eq!(Plain(evil).to_string(), r"a\u{1b}[31mb\u{d}c\u{a}d\u{7}e\u{9b}f\u{202e}g é→✓");
    }

    #[test]
    fn what_is_absurdly_long_is_cut() {
        let text = Plain("é".repeat(5000)).to_string();
        assert_eq!(text, format!("{}… and 904 more letters", "é".repeat(4096)));
        assert_eq!(Plain("é".repeat(4096)).to_string(), "é".repeat(4096));
    }
}
