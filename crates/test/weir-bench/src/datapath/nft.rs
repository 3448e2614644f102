//! The program nft, run in the namespace of this thread.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::program::Program;

const NFT: Program = Program("nft");

/// Hands a ruleset to the kernel.
pub(crate) fn load(ruleset: &str) -> Result<()> {
    load_timed(ruleset).map(drop)
}

/// The same; tells the CPU time that nft took, with that of starting it.
pub(crate) fn load_timed(ruleset: &str) -> Result<Duration> {
    NFT.run_timed(&["-f", "-"], ruleset)
}

/// All that the kernel has.
pub(crate) fn list() -> Result<Value> {
    let listed = NFT.run(&["-j", "list", "ruleset"], "")?;
    serde_json::from_slice(&listed).context("cannot read what nft listed")
}
