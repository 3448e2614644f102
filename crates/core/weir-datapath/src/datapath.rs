use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt,
    net::IpAddr,
};

use weir_model::{Delta, Flow, PodId, Program};

use crate::Remarks;

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

    /// All or nothing, unless the trouble says for whom not. After any other error the way on is `installed` and `replan`.
    fn apply(&mut self, plan: &Self::Plan) -> Result<(), ApplyError>;

    /// Whether somebody else changed what is ours since this was asked last. Cheap, and never waits.
    fn drifted(&mut self) -> Result<bool, ApplyError>;

    /// Ends established connections that one of these addresses takes part in and that are forbidden now. Returns how many.
    fn cut(
        &mut self,
        touched: &BTreeSet<IpAddr>,
        forbidden: &dyn Fn(&Flow) -> bool,
    ) -> Result<usize, ApplyError>;

    /// Whether something is to be done that the last plan could not do: whom it was for has come since this was asked last, or
    /// there is time now. Cheap, and never waits.
    fn resumes(&mut self) -> bool {
        false
    }

    /// What the backend has to say about itself.
    fn remarks(&self) -> Remarks {
        Remarks::default()
    }

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It does not accept this plan. A part of the plan may be accepted.
    Refused,
    /// It cannot be reached, or has no room now. The same plan may be accepted later.
    Unavailable,
    /// It has carried out the plan, but not for these pods, each with the reason. The old rules of these stay; without any, nothing
    /// passes, as far as it could be made so.
    Partly(BTreeMap<PodId, String>),
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
