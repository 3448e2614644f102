//! Exit codes.

use std::process::ExitCode;

use weir_model::Verdict;

/// The result of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Exit 0: allowed, or no findings.
    Yes,
    /// Exit 1: denied, or findings.
    No,
}

impl Exit {
    /// `Yes` if the condition holds.
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
