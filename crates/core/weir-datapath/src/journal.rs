//! Texts that a machine keeps for the next agent.

use std::collections::BTreeMap;

use crate::ApplyError;

/// Records by number, from 1 on. They consist of printable ASCII characters except quotes and backslashes.
pub type Records = BTreeMap<u32, String>;

/// A machine that keeps records while no agent runs, apart from its rules.
pub trait Journal {
    /// Reads the records.
    fn read_journal(&mut self) -> Result<Records, ApplyError>;

    /// Keeps these records instead of the earlier ones.
    fn write_journal(&mut self, records: &Records) -> Result<(), ApplyError>;
}
