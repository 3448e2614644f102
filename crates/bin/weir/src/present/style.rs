//! The few colours there are. They are stripped where the output is no terminal.

use std::fmt;

use anstyle::{AnsiColor, Style};
use weir_model::{Severity, Verdict};

use super::plain::Plain;

/// For what passes.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// For what does not.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// For what passes in part, or should be looked at.
pub(crate) const SOME: Style = AnsiColor::Yellow.on_default();
/// For what matters most.
pub(crate) const STRONG: Style = Style::new().bold();
/// For what matters least.
pub(crate) const FAINT: Style = Style::new().dimmed();

/// A text in a style, whoever wrote it.
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
