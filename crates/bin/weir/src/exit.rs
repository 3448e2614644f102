//! What a command answers to the one who started it.

use std::process::ExitCode;

use weir_model::Verdict;

/// How a command ended, short of failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Yes, or nothing to complain about.
    Yes,
    /// No, or something was found.
    No,
}

impl Exit {
    /// Yes if it holds.
    pub(crate) fn when(holds: bool) -> Self {
        if holds { Exit::Yes } else { Exit::No }
    }
}

impl From<Verdict> for Exit {
    fn from(verdict: Verdict) -> Self {
        Exit::when(verdict == Verdict::Allow)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Yes => ExitCode::SUCCESS,
            Exit::No => ExitCode::from(1),
        }
    }
}
