//! Long lines, wrapped at spaces.

use std::io::{self, Write};

/// The width of wrapped lines: that of a terminal.
pub(crate) const WIDTH: usize = 80;

/// Writes a line, wrapped.
pub(crate) fn write(out: &mut dyn Write, text: &str, indent: usize) -> io::Result<()> {
    lines(text, indent).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Wraps a line at spaces. Further lines are indented by two more spaces than the first one. A word
/// that does not fit stays whole.
pub(crate) fn lines(text: &str, indent: usize) -> Vec<String> {
    let own = text.len() - text.trim_start_matches(' ').len();
    let (first, rest) = (" ".repeat(indent + own), " ".repeat(indent + own + 2));
    let mut lines: Vec<String> = Vec::new();
    let mut line = first;
    let mut is_empty = true;
    for word in text[own..].split(' ') {
        if !is_empty && width(&line) + 1 + width(word) > WIDTH {
            lines.push(std::mem::replace(&mut line, rest.clone()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines
}

/// The number of characters of a text, without its colours.
fn width(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_wrapped_at_spaces() {
        assert_eq!(lines("  short  line", 2), ["    short  line"]);
        let long = ["word"; 25].join(" ");
        let wrapped = lines(&long, 4);
        assert_eq!(wrapped.len(), 2);
        assert!(wrapped.iter().all(|line| line.len() <= WIDTH), "{wrapped:?}");
        assert!(wrapped[1].starts_with("      word"), "{wrapped:?}");
        let colour = format!("\u{1b}[31m{}\u{1b}[0m", "x".repeat(76));
        assert_eq!(lines(&colour, 4), [format!("    {colour}")]);
        let whole = "x".repeat(300);
        assert_eq!(lines(&whole, 0), [whole]);
    }
}
