//! Findings as workflow commands of GitHub Actions, which shows them beside the changed lines.

use std::io::{self, Write};

use weir_model::{Finding, Severity};

/// Writes one command for each finding.
pub(crate) fn write(out: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    for finding in findings {
        let command = match finding.severity {
            Severity::Info => "notice",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let mut properties = Vec::new();
        if let Some(place) = &finding.location {
            properties.push(format!("file={}", property(&place.file)));
            if place.line > 0 {
                properties.push(format!("line={}", place.line));
            }
        }
        properties.push(format!("title={}", property(finding.code)));
        let message = data(&super::findings::sentence(finding));
        writeln!(out, "::{command} {}::{message}", properties.join(","))?;
    }
    Ok(())
}

/// The text of a command. A line break would end it, and begin another command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// The value of a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_a_command() {
        assert_eq!(data("a\n::error::100%\r"), "a%0A::error::100%25%0D");
        assert_eq!(property("a,line=1::x"), "a%2Cline=1%3A%3Ax");
    }
}
