//! The eBPF backend: a program at netfilter's hooks that looks rules up in maps.
//!
//! ```text
//!   address ─► kind, or pod of this node ─┐
//!                                         ├─► (tier, kind) ─► decision ─► action by port
//!   pod ─► tiers for both directions ─────┘
//!
//!   Program, Delta ─EbpfPlanner→ MapPlan ─bpf(2)→ maps ─read→ Installed ─replan→ MapPlan
//! ```
//!
//! The program is built from instructions (`program`) and loaded without a compiler.
//!
//! *Invariant*: planning does no I/O. The content of the maps depends on the program alone, except for
//! numbers.
//!
//! *Invariant*: all unsafe code is in `sys/raw.rs`. The files in `program` have two licences, because the
//! kernel demands it.

#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "other platforms only render programs")
)]

mod answer;
#[cfg(target_os = "linux")]
mod answering;
#[cfg(target_os = "linux")]
mod apply;
mod assembler;
pub mod btf;
mod classes;
#[cfg(target_os = "linux")]
mod connections;
#[cfg(target_os = "linux")]
mod counters;
mod digest;
#[cfg(target_os = "linux")]
mod drift;
#[cfg(target_os = "linux")]
mod dump;
#[cfg(target_os = "linux")]
mod fast_lane;
mod installed;
pub mod instruction;
#[cfg(target_os = "linux")]
mod kernel;
pub mod layout;
mod plan;
mod planner;
mod prefix_table;
pub mod program;
mod render;
#[cfg(target_os = "linux")]
mod reports;
mod size_limit;
mod sweep;
#[cfg(target_os = "linux")]
mod sys;
mod tables;
mod tier;

#[cfg(target_os = "linux")]
pub use apply::Ebpf;
#[cfg(target_os = "linux")]
pub use connections::EbpfConnections;
pub use digest::Digest;
#[cfg(target_os = "linux")]
pub use dump::{Dump, LoadedLink, LoadedMap, LoadedProgram, LoadedRules};
#[cfg(target_os = "linux")]
pub use fast_lane::{LoadedLane, LoadedLaneLink};
pub use installed::Installed;
#[cfg(target_os = "linux")]
pub use kernel::is_installed;
pub use plan::{MapPlan, MapStep};
pub use planner::EbpfPlanner;
pub use render::{Rendered, render};
#[cfg(target_os = "linux")]
pub use reports::EbpfReports;
pub use size_limit::SizeLimit;
pub use tables::{Tables, Write};
