//! Markdown for comments on pull requests.

/// The maximum size of a page in bytes. GitHub accepts comments of 65,536 characters.
const MAX_BYTES: usize = 60_000;

/// The part of a page that tables leave for the lines after them.
const RESERVED_BYTES: usize = 2_000;

/// A text of limited size.
#[derive(Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    /// Adds a paragraph. The text may contain markup.
    pub(crate) fn paragraph(&mut self, text: &str) {
        if self.text.len() + text.len() < MAX_BYTES {
            self.text.push_str(text);
            self.text.push_str("\n\n");
        }
    }

    /// Adds a table, or nothing if there are no rows. Rows that do not fit are counted in a last
    /// line.
    pub(crate) fn table<T>(
        &mut self,
        head: &[&str],
        rows: &[T],
        cells: impl Fn(&T) -> Vec<String>,
    ) {
        if rows.is_empty() {
            return;
        }
        let rule = vec!["---"; head.len()].join(" | ");
        self.text.push_str(&format!("| {} |\n| {rule} |\n", head.join(" | ")));
        let mut written = 0;
        for row in rows {
            let line = format!("| {} |\n", cells(row).join(" | "));
            if self.text.len() + line.len() > MAX_BYTES - RESERVED_BYTES {
                break;
            }
            self.text.push_str(&line);
            written += 1;
        }
        if written < rows.len() {
            self.text
                .push_str(&format!("\n… {} more; `-o json` lists all\n", rows.len() - written));
        }
        self.text.push('\n');
    }

    /// The text, with one line break at its end.
    pub(crate) fn finish(self) -> String {
        format!("{}\n", self.text.trim_end())
    }
}

/// Text without markup.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\n' | '\r' => escaped.push(' '),
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            // A mention would notify a person.
            '@' => escaped.push_str("&#64;"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' => escaped.extend(['\\', c]),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Text in the font of code.
pub(crate) fn code(text: &str) -> String {
    format!("<code>{}</code>", escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_no_markup() {
        assert_eq!(escape("a|b\n<img> [x](y)"), r"a\|b &lt;img> \[x\](y)");
    }

    #[test]
    fn a_page_fits_into_a_comment() {
        let mut page = Page::default();
        let rows: Vec<usize> = (0..9_000).collect();
        page.table(&["a", "b"], &rows, |row| vec![row.to_string(), "x".repeat(100)]);
        page.paragraph("**the end**");
        page.table(&["c"], &rows, |row| vec![row.to_string()]);
        let text = page.finish();
        assert!(text.len() < 65_536, "{}", text.len());
        let written = text.lines().filter(|line| line.contains("xxx")).count();
        assert!(text.contains(&format!("… {} more;", 9_000 - written)), "{written}");
        assert!(text.contains("**the end**"));
        assert!(text.ends_with("more; `-o json` lists all\n"), "every table says what is missing");
    }
}
