//! Manifest files and folders: reading them once, and watching a folder.
//!
//! ```text
//!  paths ─► files (folders searched, sorted) ─► bytes ─► ManifestReader ─► Manifests
//!  a folder ─► FolderWatch ─► SourceEvent: changes, findings, in sync or not
//! ```
//!
//! *Invariant*: every given path is read, or an error names it. Inside a folder, only hidden
//! entries, files with other extensions and special files are skipped, and files that another
//! program must render first, which a finding names. An error *inside* a file is a finding.

mod files;
mod folder;
pub mod manifests;
mod unrendered;

pub use files::{LoadError, case_files, is_manifest, read_file};
pub use folder::{Folder, FolderWatch, WriteState};
