//! Remarks as workflow commands of GitHub Actions, which shows them beside the changed lines.

use std::io::{self, Write};

use weir_model::Severity;

use super::{Remark, path};

/// Writes one command for each remark that is not suppressed.
pub(super) fn write(out: &mut dyn Write, remarks: &[Remark]) -> io::Result<()> {
    for remark in remarks.iter().filter(|remark| remark.suppression.is_none()) {
        let command = match remark.severity {
            Severity::Info => "notice",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let mut properties = Vec::new();
        if let Some(place) = &remark.location {
            properties.push(format!("file={}", property(path(&place.file))));
            if place.line > 0 {
                properties.push(format!("line={}", place.line));
            }
        }
        properties.push(format!("title={}", property(remark.code)));
        writeln!(out, "::{command} {}::{}", properties.join(","), data(&remark.message))?;
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
