//! Where the world comes from: folders of manifests.
//!
//! ```text
//!  paths ─► files (folders opened, sorted) ─► bytes ─► weir_api::Reader ─► Manifests
//!  a folder that changes ─► Watch ─► SourceEvent: changes, findings, in sync or not
//! ```
//!
//! *Invariant*: a path that was asked for is read or named in an error; nothing is skipped in silence but hidden entries,
//! files with other endings and what is no regular file inside a folder. What is wrong *inside* a file is a finding, not an error.

mod files;
mod folder;
pub mod manifests;

pub use files::{LoadError, case_files, read};
pub use folder::{Folder, Watch, Writer};
