use std::{collections::BTreeSet, error::Error, fmt, net::IpAddr};

use weir_model::{Delta, Flow, Program};

/// A place where rule sets take effect. Planning is pure; the other methods touch the machine.
pub trait Datapath {
    /// What is in force, read back.
    type Installed;
    /// What `apply` does.
    type Plan: Plan;

    /// The steps to `program` from what the last plan led to. `delta` is all that changed since then.
    fn plan(&mut self, program: &Program, delta: &Delta) -> Self::Plan;

    /// The steps to `program` from what is installed, whatever that is. Later plans start from here.
    fn replan(&mut self, program: &Program, installed: &Self::Installed) -> Self::Plan;

    /// Reads what is in force, so that a restarted agent compares instead of writing everything again.
    fn installed(&mut self) -> Result<Self::Installed, ApplyError>;

    /// All or nothing. After an error the way on is `installed` and `replan`.
    fn apply(&mut self, plan: &Self::Plan) -> Result<(), ApplyError>;

    /// Whether somebody else changed what is ours since this was asked last. Cheap, and never waits.
    fn drifted(&mut self) -> Result<bool, ApplyError>;

    /// Ends established connections that one of these addresses takes part in and that are forbidden now. Returns how many.
    fn cut(
        &mut self,
        touched: &BTreeSet<IpAddr>,
        forbidden: &dyn Fn(&Flow) -> bool,
    ) -> Result<usize, ApplyError>;

    /// Removes everything that is ours and nothing else.
    fn remove(&mut self) -> Result<(), ApplyError>;
}

/// A finished plan. It displays as exactly what applying it does.
pub trait Plan: fmt::Display {
    /// Whether there is nothing to do.
    fn is_empty(&self) -> bool;
}

/// Why something could not be applied or read.
#[derive(Debug)]
pub struct ApplyError {
    /// What kind of trouble it is.
    pub trouble: Trouble,
    /// What was tried.
    pub what: String,
    /// What happened.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Kinds of trouble with a datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It does not accept this plan. A part of the plan may be accepted.
    Refused,
    /// It cannot be reached, or has no room now. The same plan may be accepted later.
    Unavailable,
}

impl ApplyError {
    /// The error and everything that led to it, as one line.
    pub fn with_causes(&self) -> String {
        let mut line = self.what.clone();
        let mut next = self.source();
        while let Some(cause) = next {
            line.push_str(": ");
            line.push_str(&cause.to_string());
            next = cause.source();
        }
        line
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for ApplyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
