//! Runs the program nft in the namespace of this thread.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::program::SystemProgram;

const NFT: SystemProgram = SystemProgram("nft");

/// Loads a ruleset.
pub(crate) fn load(ruleset: &str) -> Result<()> {
    load_timed(ruleset).map(drop)
}

/// Loads a ruleset. Returns the CPU time of nft, including its start.
pub(crate) fn load_timed(ruleset: &str) -> Result<Duration> {
    NFT.run_timed(&["-f", "-"], ruleset)
}

/// The ruleset of the kernel.
pub(crate) fn list() -> Result<Value> {
    let listed = NFT.run(&["-j", "list", "ruleset"], "")?;
    serde_json::from_slice(&listed).context("cannot parse the output of nft")
}
