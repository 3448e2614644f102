//! Errors with a hint.

pub(crate) use weir_view::failure::{Failure, nearest};

use crate::present::{
    plain::Plain,
    style::{BAD, Painted, STRONG},
};

/// Writes an error, its causes and its hints to standard error.
pub(crate) fn report(error: &anyhow::Error) {
    let mut causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    // Some libraries include the cause in the message of an error.
    causes.dedup_by(|cause, error| error.ends_with(cause.as_str()));
    anstream::eprintln!("{}: {}", Painted(BAD, "error"), Plain(causes.join(": ")));
    let hints = error.chain().filter_map(|cause| cause.downcast_ref::<Failure>());
    for failure in hints {
        anstream::eprintln!("{}: {}", Painted(STRONG, "hint"), Plain(failure.hint()));
    }
}
