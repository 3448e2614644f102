//! Where the world comes from: folders of manifests.
//!
//! ```text
//!  paths ─► files (folders opened, sorted) ─► bytes ─► weir_api::Reader ─► Manifests
//! ```
//!
//! *Invariant*: a path that was asked for is read or named in an error; nothing is skipped in silence but hidden entries,
//! files with other endings and what is no regular file inside a folder. What is wrong *inside* a file is a finding, not an error.

mod files;
pub mod manifests;

pub use files::{LoadError, case_files, read};
