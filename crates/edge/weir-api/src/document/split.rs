//! Splits a file into its documents before they are parsed.
//!
//! In YAML, a line that begins with `---` separates documents wherever it occurs: no string and no
//! bracket extends beyond it. kubectl splits files in the same way. An error in one document
//! therefore cannot change the meaning of another.

/// A part of a file: one document, or several without a line `---` between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'t> {
    pub(super) text: &'t str,
    /// The number of its first line.
    pub(super) line: u32,
}

/// The offset of the last line `---` before which a file can be cut into two parts. The rest of the
/// file may be missing.
pub fn last_separator(bytes: &[u8]) -> Option<usize> {
    let is_end = |at: &usize| {
        let next = bytes.get(at + 4);
        bytes[*at..].starts_with(b"\n---") && next.is_some_and(u8::is_ascii_whitespace)
    };
    let mut separators = (0..bytes.len()).rev().filter(is_end).map(|at| at + 1);
    separators.find(|at| !ends_with_directive(&bytes[..*at]))
}

/// The parts of a file, each with the line `---` before it. The first one begins at this line.
pub(super) fn parts(text: &str, first_line: u32) -> impl Iterator<Item = Part<'_>> {
    let (mut rest, mut line) = (text, first_line);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = next_separator(rest, 0);
        while end < rest.len() && ends_with_directive(&rest.as_bytes()[..end]) {
            end = next_separator(rest, end);
        }
        let part = Part { text: &rest[..end], line };
        let breaks = part.text.bytes().filter(|byte| *byte == b'\n').count();
        line = line.saturating_add(u32::try_from(breaks).unwrap_or(u32::MAX));
        rest = &rest[end..];
        Some(part)
    })
}

/// The offset of the first line `---` after the offset, or the end.
fn next_separator(text: &str, after: usize) -> usize {
    let mut from = after;
    while let Some(found) = text[from..].find("\n---") {
        let at = from + found + 1;
        if text[at + 3..].chars().next().is_none_or(char::is_whitespace) {
            return at;
        }
        from = at;
    }
    text.len()
}

/// Whether the last line with content is a directive, which belongs to the document after it.
fn ends_with_directive(text: &[u8]) -> bool {
    let lines = text.rsplit(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_start);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    lines.next().is_some_and(|line| line.starts_with(b"%"))
}

/// The kind of the object in a part that cannot be parsed, if exactly one line names a kind at the
/// top level.
pub(super) fn kind(text: &str) -> Option<&str> {
    let mut kinds = text.lines().filter_map(|line| line.strip_prefix("kind:"));
    let kind = kinds.next().filter(|_| kinds.next().is_none())?;
    let kind = kind.split(" #").next()?.trim().trim_matches(['"', '\'']);
    let is_name = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_name.then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_dashes_separate_documents() {
        let parts = |text| -> Vec<(u32, &str)> {
            super::parts(text, 1).map(|part| (part.line, part.text)).collect()
        };
        assert_eq!(parts(""), []);
        assert_eq!(parts("a: 1"), [(1, "a: 1")]);
        assert_eq!(
            parts("a: 1\n---\nb: |\n  ---\n----\n--- # c\nd: 1\n---"),
            [(1, "a: 1\n"), (2, "---\nb: |\n  ---\n----\n"), (6, "--- # c\nd: 1\n"), (8, "---")]
        );
        assert_eq!(parts("---\r\na: 1\r\n---\r\n"), [(1, "---\r\na: 1\r\n"), (3, "---\r\n")]);
        for text in ["# c\n%YAML 1.1\n---\na: 1\n", "a: 1\n...\n%YAML 1.1\n# c\n\n---\nb: 1\n"] {
            assert_eq!(parts(text), [(1, text)], "directives belong to the next document");
        }
    }

    #[test]
    fn a_file_can_be_cut_before_a_separator() {
        for text in [
            "",
            "a: 1\n",
            "a: 1\n---\nb: 2\n--- # c\nc: 3\n----\n  ---\nd\n",
            "a: 1\n---",
            "a: 1\n...\n%YAML 1.1\n---\nb: 1\n",
            "a: \u{e9}\r\n---\r\nb: 1\n---\n%YAML 1.1\n---\nc: 1\n",
        ] {
            let whole: Vec<Part<'_>> = parts(text, 1).collect();
            for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                let Some(cut) = last_separator(&text.as_bytes()[..end]) else { continue };
                let breaks = text[..cut].matches('\n').count() as u32;
                let both = parts(&text[..cut], 1).chain(parts(&text[cut..], 1 + breaks));
                assert_eq!(both.collect::<Vec<_>>(), whole, "{text:?} at {cut}");
            }
        }
        assert_eq!(last_separator(b"a: 1\n---\nb: 2\n---\n"), Some(14));
        assert_eq!(last_separator(b"a: 1\n---\nb: 2\n---"), Some(5), "the rest may be missing");
    }

    #[test]
    fn the_kind_of_a_broken_document_is_known_if_one_line_names_it() {
        assert_eq!(kind("apiVersion: v1\nkind: ConfigMap # c\ndata: [\n"), Some("ConfigMap"));
        assert_eq!(kind("kind: \"Secret\"\r\n"), Some("Secret"));
        assert_eq!(kind("spec:\n  kind: ConfigMap\n"), None);
        assert_eq!(kind("kind: ConfigMap\nkind: Pod\n"), None);
        assert_eq!(kind("kind: {{ .Values.kind }}\n"), None);
        assert_eq!(kind("data:\n"), None);
    }
}
