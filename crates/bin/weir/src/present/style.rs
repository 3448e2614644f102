//! Colours. `anstream` strips them if the output is not a terminal.

use std::fmt;

use anstyle::{AnsiColor, Style};
use weir_model::{Severity, Verdict};

use super::plain::Plain;

/// Allowed.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Denied, or an error.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// Partly allowed, or a warning.
pub(crate) const SOME: Style = AnsiColor::Yellow.on_default();
/// Titles and names.
pub(crate) const STRONG: Style = Style::new().bold();
/// Details.
pub(crate) const FAINT: Style = Style::new().dimmed();

/// Untrusted text in a style.
pub(crate) struct Painted<T>(pub(crate) Style, pub(crate) T);

impl<T: fmt::Display> fmt::Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Painted(style, text) = self;
        write!(f, "{style}{}{style:#}", Plain(text))
    }
}

/// The style of a verdict.
pub(crate) fn of_verdict(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Allow => GOOD,
        Verdict::Deny => BAD,
    }
}

/// The style of a severity.
pub(crate) fn of_severity(severity: Severity) -> Style {
    match severity {
        Severity::Info => FAINT,
        Severity::Warning => SOME,
        Severity::Error => BAD,
    }
}
