//! Failures, with the way out.

use std::{error, fmt};

use crate::present::style::{BAD, Painted, STRONG};

/// Something that cannot be done, and what to do instead.
#[derive(Debug)]
pub(crate) struct Failure {
    what: Box<dyn error::Error + Send + Sync>,
    hint: String,
}

impl Failure {
    /// A failure with its way out: a text, or an error of a library.
    pub(crate) fn new(
        what: impl Into<Box<dyn error::Error + Send + Sync>>,
        hint: impl Into<String>,
    ) -> Self {
        Failure { what: what.into(), hint: hint.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what.fmt(f)
    }
}

impl error::Error for Failure {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.what.source()
    }
}

/// Says on standard error what failed, why, and what helps.
pub(crate) fn report(error: &anyhow::Error) {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    anstream::eprintln!("{}: {}", Painted(BAD, "error"), causes.join(": "));
    let hints = error.chain().filter_map(|cause| cause.downcast_ref::<Failure>());
    for Failure { hint, .. } in hints {
        anstream::eprintln!("{}: {hint}", Painted(STRONG, "hint"));
    }
}
