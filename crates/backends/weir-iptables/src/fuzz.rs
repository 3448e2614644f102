//! The entry points of the fuzzer, which compiles this crate with `--cfg fuzzing`.

use weir_datapath::{Mode, Planner as _};
use weir_model::{IpFamily, Program};
use weir_netlink::Attributes;

use crate::{
    Installed, Planner,
    installed::{InstalledSet, Table},
    wire,
};

/// Decodes a message as a set with entries, and plans from it to an empty program.
pub fn decode_set(message: Attributes<'_>) {
    let mut set = InstalledSet::default();
    // A message that cannot be decoded is an error value, which is not of interest here.
    _ = wire::parse_message(&mut set, message.clone());
    if let Ok(name) = wire::parse_name(message) {
        replan(Installed { sets: [(name, set)].into(), ..Installed::default() });
    }
}

/// Parses the output of iptables-save, and plans from it to an empty program.
pub fn parse_saved_rules(saved: &str) {
    let table = Table::parse(saved);
    replan(Installed { tables: [(IpFamily::V4, table)].into(), ..Installed::default() });
}

fn replan(installed: Installed) {
    _ = Planner::new(Mode::Enforce).replan(&Program::default(), &installed).to_string();
}
