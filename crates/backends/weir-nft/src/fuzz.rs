//! The entry point of the fuzzer, which compiles this crate with `--cfg fuzzing`.

use weir_datapath::{Mode, Planner as _};
use weir_model::Program;
use weir_netlink::Attributes;

use crate::{Installed, Planner, TableId, guard};

/// Decodes a message as each kind of object, and plans from the decoded table to an empty program.
pub fn decode_objects(message: Attributes<'_>) {
    let mut installed = Installed { has_table: true, ..Installed::default() };
    // An object that cannot be decoded is an error value, which is not of interest here.
    _ = installed.read_table(TableId::Policies, message.clone());
    _ = installed.read_chain(message.clone());
    _ = installed.read_rule(message.clone());
    _ = installed.read_set(message.clone());
    for set in installed.sets.values_mut() {
        _ = set.read_elements(message.clone());
    }
    _ = installed.blocked_replies();
    _ = guard::records(&installed);
    _ = Planner::new(Mode::Enforce).replan(&Program::default(), &installed).to_string();
}
