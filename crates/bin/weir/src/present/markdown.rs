//! Findings as a Markdown table, for comments on pull requests.

use std::io::{self, Write};

use weir_model::Finding;

/// Writes a table of findings.
pub(crate) fn write(out: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    writeln!(out, "| severity | where | finding |\n| --- | --- | --- |")?;
    for finding in findings {
        let place = finding.location.as_ref().map(ToString::to_string).unwrap_or_default();
        let about = [place, finding.object_text(), finding.field.clone()];
        let about: Vec<String> =
            about.iter().filter(|text| !text.is_empty()).map(|text| code(text)).collect();
        let (severity, kind) = (finding.severity, finding.code);
        let sentence = escape(&super::findings::sentence(finding));
        writeln!(out, "| {severity} | {} | {sentence} [{kind}] |", about.join("<br>"))?;
    }
    writeln!(out)
}

/// Text without markup.
fn escape(text: &str) -> String {
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
fn code(text: &str) -> String {
    format!("<code>{}</code>", escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_no_markup() {
        assert_eq!(escape("a|b\n<img> [x](y)"), r"a\|b &lt;img> \[x\](y)");
    }
}
