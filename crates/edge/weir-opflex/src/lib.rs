//! The opflex agent: keeps the files of opflex-agent on a node equal to the objects in the API.
//!
//! ```text
//!  HostprotPols, HostprotRemoteIpContainers ─┐
//!  pods of this node ────────────────────────┴─OpflexEvent→ FileWriter ─→ Files ─→ Folder
//!                      OpflexReport ←── HTTP: /healthz /readyz /metrics /status /hpp ─┘
//! ```
//!
//! It needs the verbs `list` and `watch` on pods and, in the namespace of the objects, on
//! hostprotpols.aci.hpp and hostprotremoteipcontainers.aci.hpp.
//!
//! *Invariants*
//!
//! * The agent writes and removes files only after a complete list of all three kinds. It removes no
//!   file because the API server is unreachable.
//! * It also waits until a list contains the HostprotPol of this node. An agent with the wrong node
//!   name, prefix or namespace would find no objects and remove every file.
//! * An object that cannot be read keeps its last known good file.

mod file_writer;
mod hpp;
mod http;
mod identity;
mod object;
mod report;
mod run;
#[cfg(test)]
mod tests;

pub use run::{OpflexError, OpflexOptions, RunMode, cleanup, run};
