//! What weir answers about manifests or a cluster, as data. The commands print the answers as text
//! or JSON; the web page draws them, on a local server or compiled to WebAssembly.
//!
//! ```text
//!  Manifests ──► Loaded ──► Question ──► ExplanationView ──┐
//!                  │   └──► PolicyDiff ──► DiffOutput ─────┼──► JSON
//!                  └──► Page: PageRequest ─────────────────┘
//! ```
//!
//! *Invariant*: no I/O, no clock and no threads.

pub mod apply;
pub mod diff;
pub mod explain;
pub mod explanation_view;
pub mod failure;
pub mod findings;
pub mod flow_end;
pub mod ingress;
pub mod lint_view;
pub mod loaded;
pub mod matrix_view;
pub mod other_networks;
pub mod page;
pub mod pod_cidrs;
pub mod schema;
pub mod service;
pub mod service_view;
pub mod suppression;
pub mod text;
pub mod why;
