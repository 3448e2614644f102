//! Where there is no Linux kernel to compare with.

use weir_model::Program;

use crate::{failure::Failure, filter::Filter};

/// Fails: there are no rules of such a filter here.
pub(crate) fn difference(_: &Program, filter: Filter) -> Result<String, Failure> {
    let what = format!("there is no {} here to compare with", filter.name());
    Err(Failure::new(what, "run it on a Linux node, where the agent runs"))
}
