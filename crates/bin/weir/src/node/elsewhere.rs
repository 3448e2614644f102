//! Where there is nothing to enforce rules with.

use weir_agent::Options;

use crate::{agent::Agent, exit::Exit, failure::Failure};

/// No datapath will do.
pub(crate) const DATAPATHS: &[&str] = &["none"];

/// Fails.
pub(crate) fn open(_: &Agent, _: &Options) -> anyhow::Result<Exit> {
    let hint = "run it on Linux or on Windows; the other commands work everywhere";
    Err(Failure::new("there is nothing to enforce rules with here", hint).into())
}
